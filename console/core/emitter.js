/**
 * A minimal event emitter.
 *
 * Invariant: a listener that throws neither stops the others nor the emitter's owner; its error is reported, not lost.
 * Deliberately does not: buffer, replay, or bubble events.
 */
export class Emitter {
  #listeners = new Map();

  /** Calls `listener` at each `type`; returns the function that stops it. */
  on(type, listener) {
    if (!this.#listeners.has(type)) this.#listeners.set(type, new Set());
    this.#listeners.get(type).add(listener);
    return () => this.#listeners.get(type)?.delete(listener);
  }

  emit(type, detail) {
    for (const listener of [...(this.#listeners.get(type) ?? [])]) {
      try {
        listener(detail);
      } catch (error) {
        queueMicrotask(() => { throw error; });
      }
    }
  }
}
