/**
 * Obeys directives: runs a call again while the server says that a retry can help, inside the budget it gave.
 *
 * Invariant: never sooner than `after_ms`, never past `budget_ms` counted from the first attempt, never without a directive.
 * Deliberately does not: invent keys; a call with a side effect must carry its own, the same each time.
 */
import { sleep } from './clock.js';

/** Up to a quarter on top, so that clients told the same number do not come back as one. */
export const spread = (delayMs, random) => Math.round(delayMs * (1 + random() / 4));

export async function obeyDirectives(call, { clock, random, stopped = () => false }) {
  const startedAt = clock.now();
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!error?.retry || stopped()) throw error;
      const delayMs = spread(error.retry.after_ms, random);
      if (clock.now() + delayMs > startedAt + error.retry.budget_ms) throw error;
      await sleep(clock, delayMs);
      if (stopped()) throw error;
    }
  }
}

/**
 * The wait before the n-th reconnection attempt (n from 0). The first spreads over what the server asked for
 * (`reconnect_jitter_ms` of the join reply); later ones back off exponentially, with jitter, up to `capMs`.
 */
export function reconnectDelay(attempt, jitterMs, random, { baseMs = 400, capMs = 15_000 } = {}) {
  if (attempt === 0) return Math.round(random() * Math.max(jitterMs, baseMs));
  const ceiling = Math.min(capMs, baseMs * 2 ** Math.min(attempt, 16));
  return Math.round(ceiling / 2 + random() * (ceiling / 2));
}
