/**
 * Time and chance, passed in: everything in core/ takes them as arguments, so that a test can hold both.
 *
 * Invariant: no other module in core/ reads the time, sets a timer or draws a random number by itself.
 * Deliberately does not: keep wall-clock time for display; records carry the server's own `at`.
 */

/**
 * @typedef {object} Clock
 * @property {() => number} now milliseconds since the epoch
 * @property {(callback: () => void, delayMs: number) => unknown} setTimeout
 * @property {(timer: any) => void} clearTimeout
 */

/** Uniform in [0, 1). @typedef {() => number} Random */

/** @type {Clock} */
export const systemClock = {
  now: () => Date.now(),
  setTimeout: (callback, delayMs) => globalThis.setTimeout(callback, delayMs),
  clearTimeout: (timer) => globalThis.clearTimeout(timer),
};

/** @type {Random} */
export const systemRandom = () => Math.random();

/** A key that no other client will choose: 1–128 printable ASCII characters, as the contract asks. */
export const randomId = () => globalThis.crypto.randomUUID();

/**
 * @param {Clock} clock
 * @param {number} delayMs
 * @returns {Promise<void>}
 */
export const sleep = (clock, delayMs) => new Promise((resolve) => { clock.setTimeout(resolve, delayMs); });
