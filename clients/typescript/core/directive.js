/**
 * Obeys directives: runs a call again while the server says that a retry can help, inside the budget it gave.
 *
 * Invariant: never sooner than `after_ms`, never past `budget_ms` counted from the first attempt, never without a directive.
 * Deliberately does not: invent keys; a call with a side effect must carry its own, the same each time.
 */
import { sleep } from './clock.js';

/** @import { Clock, Random } from './clock.js' */

/**
 * Up to a quarter on top, so that clients told the same number do not come back as one.
 * @param {number} delayMs
 * @param {Random} random
 */
export const spread = (delayMs, random) => Math.round(delayMs * (1 + random() / 4));

/**
 * @template T
 * @param {() => Promise<T>} call
 * @param {{clock: Clock, random: Random, stopped?: () => boolean}} options
 * @returns {Promise<T>}
 */
export async function obeyDirectives(call, { clock, random, stopped = () => false }) {
  const startedAt = clock.now();
  for (;;) {
    try {
      return await call();
    } catch (/** @type {any} */ error) {
      if (!error?.retry || stopped()) throw error;
      const delayMs = spread(error.retry.after_ms, random);
      if (clock.now() + delayMs > startedAt + error.retry.budget_ms) throw error;
      await sleep(clock, delayMs);
      if (stopped()) throw error;
    }
  }
}
