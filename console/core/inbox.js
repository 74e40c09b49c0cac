/**
 * My conversations, live: the personal stream (topic `user:me`) folded into one list, newest activity first.
 *
 * Invariant: after every `caught_up` the list is exactly what the server pushed since the last join; what it no longer
 * names is gone. A summary replaces its predecessor whole.
 * Deliberately does not: count unread messages itself; the server's figure spares holes and system records.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';

/** Emits `change`, and `removed` (id) when I am no longer a member. */
export class Inbox extends Emitter {
  #channel;
  #summaries = new Map();
  #seenSinceJoin = new Set();
  #reading = null;

  /** False until the first catch-up: an empty list then means "not known yet". */
  isLoaded = false;
  /** True between a join and its `caught_up`. */
  isResuming = false;

  constructor({ socket }) {
    super();
    this.#channel = socket.channel('user:me', () => ({}));
    this.#channel.on('state', (state) => this.#channelState(state));
    this.#channel.on('event', ({ event, payload }) => this.#received(event, payload));
  }

  start() { this.#channel.join(); }

  stop() { this.#channel.leave(); }

  /** Newest activity first. */
  get list() {
    return [...this.#summaries.values()].sort((a, b) => (b.updated_at ?? '').localeCompare(a.updated_at ?? '') || a.id.localeCompare(b.id));
  }

  get(id) { return this.#summaries.get(id) ?? null; }

  /** The conversation being read right now counts as read before the server confirms it. */
  reading(id) {
    if (this.#reading === id) return;
    this.#reading = id;
    this.emit('change');
  }

  unread(summary) { return summary.id === this.#reading ? 0 : summary.unread ?? 0; }

  get totalUnread() { return [...this.#summaries.values()].reduce((total, summary) => total + this.unread(summary), 0); }

  #received(event, payload) {
    if (event === 'conversation') this.#upsert(payload);
    if (event === 'caught_up') this.#caughtUp();
    if (event === 'membership' && payload.change === 'removed') this.#remove(payload.conversation);
  }

  #upsert(summary) {
    if (typeof summary?.id !== 'string') return;
    this.#seenSinceJoin.add(summary.id);
    this.#summaries.set(summary.id, summary);
    if (!this.isResuming) this.emit('change');
  }

  #caughtUp() {
    for (const id of [...this.#summaries.keys()]) {
      if (!this.#seenSinceJoin.has(id)) this.#remove(id);
    }
    this.isLoaded = true;
    this.isResuming = false;
    this.emit('change');
  }

  #remove(id) {
    if (!this.#summaries.delete(id)) return;
    this.emit('removed', id);
    this.emit('change');
  }

  #channelState(state) {
    if (state === 'joined') return; // the summaries are still to come
    if (state === 'joining') this.#seenSinceJoin.clear();
    this.isResuming = state === 'joining';
    this.emit('change');
  }
}
