/**
 * The cluster as its nodes tell it, through whichever one answers: the nodes, who owns what, and what happened to ownership lately.
 *
 * Invariant: what several nodes tell of one thing is shown once; at most EVENTS_MAX are kept; a page that is not looked at asks
 * nothing. A node that does not answer is named, and what was known of it stays.
 * Deliberately does not: order what happened more exactly than the nodes' clocks do.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';

const POLL_MS = 1_000;
const EVENTS_MAX = 300;
const NAMES_MAX = 1_000;
const OWNED_PAGE = 25;

export class Cluster extends Emitter {
  #api;
  #clock;
  #timer = null;
  #running = false;
  #polls = 0;
  #after = '';
  /** What was told, by what it is about. */
  #told = new Map();
  /** Where each page of what is owned begins; the last one is shown. */
  #begins = [''];
  /** Where the page after it begins. */
  #next = null;
  #names = new Map();

  /** Null until the first answer. */
  view = null;
  owned = [];
  hasNext = false;
  contains = '';
  /** Newest first: {key, kind, at, node, seenBy, event}. */
  events = [];
  /** Some were overwritten before this page asked. */
  missed = false;
  /** Nodes that do not answer: {name, incarnation, link, link_error}. */
  unanswered = [];
  /** Why there is nothing to show. */
  refusal = null;

  constructor({ api, clock }) {
    super();
    this.#api = api;
    this.#clock = clock;
  }

  get hasPrevious() { return this.#begins.length > 1; }

  start() {
    this.#running = true;
    return this.#poll();
  }

  stop() {
    this.#running = false;
    this.#cancel();
  }

  /** The page after the one that is shown. */
  next() {
    if (!this.hasNext) return Promise.resolve();
    return this.#turnTo([...this.#begins, this.#next]);
  }

  previous() { return this.hasPrevious ? this.#turnTo(this.#begins.slice(0, -1)) : Promise.resolve(); }

  /** Shows only conversations whose id contains this. */
  search(contains) {
    this.contains = contains.trim();
    return this.#turnTo(['']);
  }

  /** What people call a process. */
  nameOf(incarnation) { return this.#names.get(incarnation) ?? incarnation?.slice(0, 8) ?? 'another node'; }

  #turnTo(begins) {
    this.#begins = begins;
    return this.#poll();
  }

  #cancel() {
    if (this.#timer !== null) this.#clock.clearTimeout(this.#timer);
    this.#timer = null;
  }

  /** A poll that a later one has overtaken changes nothing. */
  async #poll() {
    this.#cancel();
    this.#polls += 1;
    const poll = this.#polls;
    const isCurrent = () => this.#running && poll === this.#polls;
    const begins = this.#begins.at(-1);
    try {
      const answers = await Promise.all([
        this.#api.nodes(),
        this.#api.nodeEvents({ after: this.#after }),
        this.#api.owned({ after: begins || undefined, limit: OWNED_PAGE, contains: this.contains || undefined }),
      ]);
      if (!isCurrent()) return;
      this.#take(...answers);
      this.refusal = null;
    } catch (refusal) {
      if (!isCurrent()) return;
      this.refusal = refusal;
    }
    this.emit('change');
    // Nobody who may not look now may look in a second.
    if (this.refusal?.code !== 'forbidden') this.#timer = this.#clock.setTimeout(() => this.#poll(), POLL_MS);
  }

  #take(view, events, owned) {
    this.view = { ...view, nodes: view.nodes.toSorted((a, b) => compare(a.name, b.name) || compare(a.incarnation, b.incarnation)) };
    for (const { incarnation, name } of view.nodes) this.#names.set(incarnation, name);
    this.owned = owned.owned;
    this.hasNext = owned.more;
    this.#next = owned.after;
    this.unanswered = events.unanswered;
    this.#after = events.after;
    for (const node of events.nodes) {
      this.#names.set(node.incarnation, node.name);
      this.missed ||= node.missed;
      for (const event of node.events) this.#hear(node, event);
    }
    const newestFirst = [...this.#told.values()].sort((a, b) => compare(b.at, a.at) || compare(b.key, a.key));
    this.events = newestFirst.slice(0, EVENTS_MAX);
    this.#told = new Map(this.events.map((told) => [told.key, told]));
    // Names of long ago are forgotten, oldest first.
    for (const incarnation of this.#names.keys()) {
      if (this.#names.size <= NAMES_MAX) break;
      this.#names.delete(incarnation);
    }
  }

  #hear(teller, event) {
    if (event.kind.startsWith('node_')) this.#names.set(event.incarnation, event.node);
    const key = subjectOf(teller, event);
    const told = this.#told.get(key);
    if (told) {
      if (!told.seenBy.includes(teller.name)) told.seenBy.push(teller.name);
      return;
    }
    this.#told.set(key, { key, kind: event.kind, at: event.at, node: teller.name, incarnation: teller.incarnation, seenBy: [teller.name], event });
  }
}

const compare = (a, b) => (a < b ? -1 : Number(a > b));

/** What an event is about: two nodes that tell of the same thing have the same. */
function subjectOf(teller, event) {
  switch (event.kind) {
    case 'node_came': case 'node_drains': case 'node_gone': return `${event.kind} ${event.incarnation}`;
    case 'handed_off': case 'received': return `handed ${event.conversation} ${event.epoch}`;
    default: return `${teller.incarnation} ${String(event.id).padStart(16, '0')}`;
  }
}

const GROUPS = {
  claim_lost: ['refusals'], fenced: ['refusals'], lease_lost: ['refusals', 'nodes'], lifeline_lost: ['refusals', 'nodes'],
  released: ['handovers'], handed_off: ['handovers'], received: ['handovers'],
  death_declared: ['takeovers', 'nodes'], node_came: ['nodes'], node_drains: ['handovers', 'nodes'], node_gone: ['nodes'],
};

/** Which of `takeovers`, `handovers`, `refusals` and `nodes` something belongs to. */
export function groupsOf({ kind, event }) {
  if (kind === 'claim_won') return event.why === 'unowned' ? [] : ['takeovers'];
  return GROUPS[kind] ?? [];
}

const WHY_DEAD = { lease_ran_out: 'its lease ran out', process_died: 'its process is gone' };
const WHY_RELEASED = { idle: 'nobody used it', draining: 'the node drains', not_taken: 'the node that was to take it did not', wedged: 'its task did not answer' };

/** What happened, as a sentence. `nameOf(incarnation)`: a node's name. */
export function sentence({ kind, node, incarnation, event }, nameOf) {
  const epoch = event.epoch ? ` in epoch ${event.epoch}` : '';
  const it = event.conversation;
  switch (kind) {
    case 'claim_won':
      if (event.why === 'owner_died') return `${node} took over ${it}${epoch}: its owner is dead`;
      if (event.why === 'lost') return `${node} claimed ${it} again${epoch}: its task had gone`;
      return `${node} claimed ${it}${epoch}`;
    case 'claim_lost': return `${node} was refused ${it}: another node had claimed it`;
    case 'fenced': return `The store refused ${node} a write to ${it}${epoch}: another node owns it`;
    case 'released': return `${node} released ${it}${epoch}: ${WHY_RELEASED[event.why] ?? event.why}`;
    case 'handed_off': return `${node} handed ${it} to ${nameOf(event.to)}${epoch}`;
    case 'received': return `${nameOf(event.from)} handed ${it} to ${nameOf(incarnation)}${epoch}`;
    case 'node_came': return `${event.node} came`;
    case 'node_drains': return `${event.node} drains`;
    case 'node_gone': return `${event.node} is gone`;
    case 'death_declared': return `${node} declared ${event.node ?? nameOf(event.incarnation)} dead: ${WHY_DEAD[event.why] ?? event.why}`;
    case 'lifeline_lost': return `${node} lost its lifeline, and waits for a new one`;
    case 'lease_lost': return `${node} was declared dead, and ends`;
    default: return [`${node}: ${kind.replaceAll('_', ' ')}`, it].filter(Boolean).join(' ') + epoch;
  }
}
