/**
 * Which node ran a conversation in which epoch, as far as this tab has been told.
 *
 * Invariant: an epoch keeps its node; what is not known is null, never guessed. At most one question is under way.
 * Deliberately does not: ask again by itself. An epoch that nobody has named is asked for when it is shown.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';

/** Emits `change`. */
export class Owners extends Emitter {
  #id;
  #api;
  #nodes = new Map();
  #asked = 0;
  #isAsking = false;
  /** {node, epoch} as last heard, or null where nobody owns it. */
  current = null;

  constructor({ id, api }) {
    super();
    this.#id = id;
    this.#api = api;
  }

  /** The node of an epoch, or null. A newer epoch than was asked for is asked for once. */
  nodeOf(epoch) {
    if (epoch > this.#asked) this.ask(epoch);
    return this.#nodes.get(epoch) ?? null;
  }

  /** `epoch`: the one that made us ask. */
  async ask(epoch = this.#asked) {
    if (this.#isAsking) return;
    this.#isAsking = true;
    this.#asked = Math.max(this.#asked, epoch);
    try {
      const { owner } = await this.#api.conversation(this.#id);
      this.current = owner;
      if (owner) {
        this.#nodes.set(owner.epoch, owner.node);
        this.#asked = Math.max(this.#asked, owner.epoch);
      }
    } catch {
      // Nobody to ask just now: the epoch is shown without a name.
    } finally {
      this.#isAsking = false;
      this.emit('change');
    }
  }
}
