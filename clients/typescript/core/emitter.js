/**
 * A minimal event emitter.
 *
 * Invariant: a listener that throws neither stops the others nor the emitter's owner; its error is reported, not lost.
 * Deliberately does not: buffer, replay, or bubble events.
 */

/**
 * @template {Record<string, any>} Events each event's name and what its listeners are given
 */
export class Emitter {
  /** @type {Map<keyof Events, Set<(detail: any) => void>>} */
  #listeners = new Map();

  /**
   * Calls `listener` at each `type`; returns the function that stops it.
   * @template {keyof Events} T
   * @param {T} type
   * @param {(detail: Events[T]) => void} listener
   * @returns {() => void}
   */
  on(type, listener) {
    const listeners = this.#listeners.get(type) ?? new Set();
    this.#listeners.set(type, listeners);
    listeners.add(listener);
    return () => { listeners.delete(listener); };
  }

  /**
   * @template {keyof Events} T
   * @param {T} type
   * @param {Events[T]} [detail]
   */
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
