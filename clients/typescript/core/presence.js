/**
 * Who is here, and who is typing.
 *
 * Invariant: a person is present as long as one of their sessions is (metas are matched by `phx_ref`); a typing hint
 * fades after `TYPING_MS` by itself and ends at once when its sender's message arrives.
 * Deliberately does not: list people above the server's threshold, where it sends only a count.
 */
import { Emitter } from './emitter.js';

/** @import { Clock } from './clock.js' */

export const TYPING_MS = 5_000;

/** One session of a person. @typedef {{phx_ref: string, name?: string}} Meta */

/**
 * Emits `change`.
 * @extends {Emitter<{change: void}>}
 */
export class Presence extends Emitter {
  /** @type {Map<string, Meta[]>} */
  #metas = new Map();
  /** @type {number | null} */
  #count = null;

  /**
   * Applies presence_state, presence_diff or presence_count.
   * @param {string} event
   * @param {any} payload
   */
  apply(event, payload) {
    if (event === 'presence_state') this.#replace(payload);
    if (event === 'presence_diff') this.#merge(payload);
    if (event === 'presence_count') {
      this.#count = payload.count ?? 0;
      this.#metas.clear();
    }
    this.emit('change');
  }

  clear() {
    this.#metas.clear();
    this.#count = null;
    this.emit('change');
  }

  /** [{sub, name}], by name; empty while only a count is known. */
  get people() {
    return [...this.#metas]
      .map(([sub, metas]) => ({ sub, name: metas.at(-1)?.name || sub }))
      .sort((a, b) => a.name.localeCompare(b.name));
  }

  get count() { return this.#count ?? this.#metas.size; }

  /** True if the server tells numbers only. */
  get isCountOnly() { return this.#count !== null; }

  /** @param {string} sub */
  has(sub) { return this.#metas.has(sub); }

  /** @param {Record<string, {metas: Meta[]}>} state */
  #replace(state) {
    this.#count = null;
    this.#metas = new Map(Object.entries(state).map(([sub, { metas }]) => [sub, metas]));
  }

  /** @param {{joins?: Record<string, {metas: Meta[]}>, leaves?: Record<string, {metas: Meta[]}>}} diff */
  #merge({ joins = {}, leaves = {} }) {
    if (this.isCountOnly) return; // a list is complete or it is none
    for (const [sub, { metas }] of Object.entries(joins)) {
      const joined = new Set(metas.map((meta) => meta.phx_ref));
      const kept = (this.#metas.get(sub) ?? []).filter((meta) => !joined.has(meta.phx_ref));
      this.#metas.set(sub, [...kept, ...metas]);
    }
    for (const [sub, { metas }] of Object.entries(leaves)) {
      const left = new Set(metas.map((meta) => meta.phx_ref));
      const kept = (this.#metas.get(sub) ?? []).filter((meta) => !left.has(meta.phx_ref));
      if (kept.length > 0) this.#metas.set(sub, kept);
      else this.#metas.delete(sub);
    }
  }
}

/**
 * Emits `change`.
 * @extends {Emitter<{change: void}>}
 */
export class Typing extends Emitter {
  #clock;
  /** @type {Map<string, unknown>} */
  #timers = new Map();
  /** @type {Map<string, string>} */
  #names = new Map();

  /** @param {{clock: Clock}} options */
  constructor({ clock }) {
    super();
    this.#clock = clock;
  }

  /** @param {{sender: string, name?: string}} hint */
  seen({ sender, name }) {
    if (!sender) return;
    this.#clock.clearTimeout(this.#timers.get(sender));
    this.#timers.set(sender, this.#clock.setTimeout(() => this.ended(sender), TYPING_MS));
    this.#names.set(sender, name || sender);
    this.emit('change');
  }

  /** @param {string} sender */
  ended(sender) {
    if (!this.#names.delete(sender)) return;
    this.#clock.clearTimeout(this.#timers.get(sender));
    this.#timers.delete(sender);
    this.emit('change');
  }

  clear() {
    for (const sender of [...this.#names.keys()]) this.ended(sender);
  }

  /** Their names, in the order in which they began. */
  get names() { return [...this.#names.values()]; }
}
