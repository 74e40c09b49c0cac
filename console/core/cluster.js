/**
 * The cluster as one node sees it: the nodes, what the answering one owns, and what happened to ownership lately.
 *
 * Invariant: events are shown once each, in order, and at most EVENTS_MAX are kept; a page that is not looked at asks nothing.
 * Deliberately does not: ask other nodes. Whoever is behind the address answers, and is named.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';

const POLL_MS = 1_000;
const EVENTS_MAX = 200;
const OWNED_PAGE = 50;

export class Cluster extends Emitter {
  #api;
  #clock;
  #timer = null;
  #running = false;
  #latest = 0;

  /** Null until the first answer. */
  view = null;
  owned = [];
  hasMoreOwned = false;
  /** Newest first. */
  events = [];
  /** Some were overwritten before this page asked. */
  missed = false;
  /** Why there is nothing to show. */
  refusal = null;

  constructor({ api, clock }) {
    super();
    this.#api = api;
    this.#clock = clock;
  }

  start() {
    this.#running = true;
    return this.#poll();
  }

  stop() {
    this.#running = false;
    if (this.#timer !== null) this.#clock.clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** The next page of what the answering node owns. */
  async more() {
    const after = this.owned.at(-1)?.conversation;
    const page = await this.#api.owned({ after, limit: OWNED_PAGE });
    // Another node answers, behind a balancer: its pages are not this one's.
    this.owned = page.answered_by === this.view?.answered_by ? [...this.owned, ...page.owned] : page.owned;
    this.hasMoreOwned = page.more;
    this.emit('change');
  }

  async #poll() {
    try {
      await this.#look();
      this.refusal = null;
    } catch (refusal) {
      this.refusal = refusal;
    }
    if (!this.#running) return;
    this.emit('change');
    // Nobody who may not look now may look in a second.
    if (this.refusal?.code !== 'forbidden') this.#timer = this.#clock.setTimeout(() => this.#poll(), POLL_MS);
  }

  async #look() {
    const before = this.view?.answered_by;
    this.view = await this.#api.nodes();
    if (this.view.answered_by !== before) {
      this.#latest = 0;
      this.events = [];
      this.owned = [];
    }
    const page = await this.#api.nodeEvents({ after: this.#latest });
    // Of another process: it counts anew.
    if (page.latest < this.#latest) this.events = [];
    this.missed = page.missed;
    this.#latest = page.events.at(-1)?.id ?? page.latest;
    this.events = [...page.events.toReversed(), ...this.events].slice(0, EVENTS_MAX);
    if (this.owned.length <= OWNED_PAGE) {
      const owned = await this.#api.owned({ limit: OWNED_PAGE });
      this.owned = owned.owned;
      this.hasMoreOwned = owned.more;
    }
  }
}

/** An event as a sentence. */
export function sentence(event) {
  const where = event.conversation ? ` ${event.conversation}` : '';
  const epoch = event.epoch ? ` in epoch ${event.epoch}` : '';
  switch (event.kind) {
    case 'claim_won': return `Claimed${where}${epoch}: ${{ unowned: 'nobody owned it', lost: 'its task had gone', owner_died: 'its owner is dead' }[event.why] ?? event.why}`;
    case 'claim_lost': return `Lost the claim of${where} to another node`;
    case 'fenced': return `Refused by the store: a write to${where}${epoch}; another node owns it`;
    case 'released': return `Released${where}${epoch}: ${event.why}`;
    case 'handed_off': return `Handed${where}${epoch} to ${event.to}`;
    case 'death_declared': return `Declared ${event.node ?? event.incarnation} dead: ${{ lease_ran_out: 'its lease ran out', process_died: 'its process is gone' }[event.why] ?? event.why}`;
    case 'lifeline_lost': return 'Lost its lifeline; it waits for a new one';
    case 'lease_lost': return 'Was declared dead';
    default: return `${event.kind}${where}${epoch}`;
  }
}
