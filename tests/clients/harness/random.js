/**
 * Chance that can be had again: the same seed, the same numbers.
 */

/** The seed of this run: CONCH_SEED, else a new one. Tests print it. */
export const seed = Number(process.env.CONCH_SEED ?? Date.now() % 1_000_000_000);

/** Numbers in [0, 1), as Math.random gives them (mulberry32). */
export function randomFrom(start) {
  let state = start >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}

/** A whole number from `least` to `most`. */
export const between = (random, least, most) => least + Math.floor(random() * (most - least + 1));
