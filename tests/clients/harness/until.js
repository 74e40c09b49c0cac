/**
 * Waiting for a condition, bounded: the only way these tests wait.
 */
import { setTimeout as pause } from 'node:timers/promises';

const EVERY_MS = 20;

/** Resolves with the first truthy result of `condition`; rejects with `what` after `timeoutMs`, naming the last error. */
export async function until(condition, what, timeoutMs = 20_000) {
  const deadline = Date.now() + timeoutMs;
  let last = null;
  for (;;) {
    try {
      const result = await condition();
      if (result) return result;
      last = null;
    } catch (error) {
      last = error;
    }
    if (Date.now() > deadline) throw new Error(`waited ${timeoutMs} ms for ${what}${last ? `; last: ${last.message}` : ''}`);
    await pause(EVERY_MS);
  }
}
