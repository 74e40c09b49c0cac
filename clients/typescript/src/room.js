/**
 * One conversation as a front end uses it: records in order, live events, and sends that settle as promises.
 *
 * Invariant: a promise of `send` settles exactly once: with the receipt, or with the refusal that nothing can mend any more.
 * Deliberately does not: keep what failed; whoever wants another try sends it again under the same key.
 */
import { Conversation } from '../core/conversation.js';
import { obeyDirectives } from '../core/directive.js';
import { Refusal } from '../core/errors.js';

/** @import { ConversationOptions, RecordsChange, Status } from '../core/conversation.js' */
/** @import { AwaitReceipt, CancelMode, Http, TurnOverview, TurnReceipt } from '../core/http.js' */
/** @import { Entry, Receipt } from '../core/outbox.js' */
/** @import { LogRecord, Page } from '../core/timeline.js' */
/** @import { Turn } from '../core/turns.js' */

/** Records that a room keeps for whoever draws it; older ones can be had again by `loadOlder`. */
const KEEP = 1_000;

/** What becomes of one message. `slow`: it takes longer than people expect. @typedef {{state: Entry['state'] | 'delivered', slow: boolean, attempts: number, error: Entry['error']}} SendStatus */

/** @typedef {{clientMsgId?: string, onStatus?: (status: SendStatus) => void}} SendOptions */

/** A settled send's refusal names the key to try again with. @typedef {Refusal & {clientMsgId: string}} SendRefusal */

/** @typedef {{resolve: (receipt: Receipt) => void, reject: (refusal: SendRefusal) => void}} Waiter */

export class Room {
  #conversation;
  #options;
  #keep;
  #onLeft;
  /** @type {Map<string, Waiter[]>} */
  #waiters = new Map();
  /** @type {Refusal | null} */
  #left = null;

  /**
   * @param {ConversationOptions & {api: Http}} options
   * @param {{keep?: number, onLeft: () => void}} more
   */
  constructor(options, { keep = KEEP, onLeft }) {
    this.#options = options;
    this.#keep = keep;
    this.#onLeft = onLeft;
    this.#conversation = new Conversation(options);
    const { outbox } = this.#conversation;
    for (const { state, client_msg_id: id } of [...outbox.entries]) if (state === 'failed') outbox.discard(id);
    outbox.on('delivered', ({ entry, receipt }) => this.#settle(entry, ({ resolve }) => resolve(receipt)));
    outbox.on('failed', (entry) => this.#failed(entry));
    this.#conversation.on('records', () => this.#conversation.trim(this.#keep));
    this.#conversation.on('status', (status) => {
      if (status === 'refused' && this.#conversation.refusal) outbox.refuse(this.#conversation.refusal);
    });
  }

  get id() { return this.#conversation.id; }
  /** loading · joining · catching_up · live · offline · refused (see `refusal`). */
  get state() { return this.#conversation.status; }
  get refusal() { return this.#conversation.refusal; }
  /** The newest records, ascending. */
  get records() { return this.#conversation.timeline.records; }
  /** True if `loadOlder` can find more. */
  get hasOlder() { return this.#conversation.timeline.hasOlder; }
  /** Where a later visit can go on from: `conversation(id, room.position)`. Null before there is one. */
  get position() {
    const { position, log } = this.#conversation.timeline;
    return position === null ? null : { after: position, log };
  }
  get turns() { return this.#conversation.turns; }
  get presence() { return this.#conversation.presence; }
  get typing() { return this.#conversation.typing; }
  /** Messages on their way. */
  get outgoing() { return this.#conversation.outbox.entries; }

  start() { this.#conversation.start(); }

  /** After a refusal that was mended (by becoming a member, say). */
  restart() { this.#conversation.restart(); }

  /** Ends it. What was not acknowledged by now is refused with the code `left`. */
  leave() {
    if (this.#left) return;
    this.#left = new Refusal({ code: 'left', detail: 'This conversation was left.' });
    this.#conversation.stop();
    this.#conversation.outbox.refuse(this.#left);
    this.#onLeft();
  }

  /**
   * Sends a message. It is sent again under the same key after every loss and inside every directive's budget, until the
   * server has it or has refused it for good. Messages leave in the order in which they were sent.
   * @param {object} body with a string `text`
   * @param {SendOptions} [options]
   * @returns {Promise<Receipt>} rejects with a SendRefusal
   */
  send(body, { clientMsgId, onStatus } = {}) {
    const refused = this.#left ?? (this.state === 'refused' ? this.#conversation.refusal : null);
    if (refused) return Promise.reject(named(refused, clientMsgId ?? ''));
    const { outbox } = this.#conversation;
    /** @type {Entry | null} */
    let entry;
    try {
      entry = outbox.add(body, clientMsgId);
    } catch (/** @type {any} */ refusal) {
      return Promise.reject(named(refusal, clientMsgId ?? ''));
    }
    if (entry === null) {
      const full = new Refusal({ code: 'outbox_full', detail: 'Too many messages are waiting to be sent.' });
      return Promise.reject(named(full, clientMsgId ?? ''));
    }
    const { client_msg_id: key } = entry;
    const stop = onStatus ? this.#watch(entry, onStatus) : () => {};
    const sent = new Promise((resolve, reject) => {
      const waiter = { resolve, reject };
      this.#waiters.set(key, [...(this.#waiters.get(key) ?? []), waiter]);
    });
    return sent.finally(stop);
  }

  /**
   * A page of history. Without `before` and `after` the newest.
   * @param {{before?: number, after?: number, limit?: number}} [query]
   * @returns {Promise<Page>}
   */
  history(query = {}) { return this.#asked((api) => api.history(this.id, query)); }

  /** Where a turn stands, as any node reads it from the log. @param {number} turn @returns {Promise<TurnOverview>} */
  turn(turn) { return this.#asked((api) => api.turn(this.id, turn)); }

  /**
   * Ends a turn: when it resolves, nothing more of it is said or done. `keep`: what was said so far is the answer; `rollback`:
   * later turns see nothing of it. Again after a lost answer is no mistake.
   * @param {number} turn
   * @param {CancelMode} [mode]
   * @returns {Promise<TurnReceipt>} rejects with the code `conflict` if it has ended otherwise
   */
  cancel(turn, mode = 'keep') { return this.#asked((api) => api.cancelTurn(this.id, turn, mode)); }

  /**
   * Answers what a turn waits for (`await.opened`). The same payload again is no mistake; another one is a `conflict`.
   * @param {string} name the await's
   * @param {unknown} payload what fits its schema
   * @returns {Promise<AwaitReceipt>}
   */
  resolve(name, payload) { return this.#asked((api) => api.resolveAwait(this.id, name, payload)); }

  /**
   * Runs the last turn again. For another try after a lost answer give the same `clientMsgId`.
   * @param {number} turn
   * @param {{clientMsgId?: string}} [options]
   * @returns {Promise<TurnReceipt>} whose `turn` is the new one
   */
  regenerate(turn, { clientMsgId = this.#options.newId() } = {}) {
    return this.#asked((api) => api.regenerateTurn(this.id, turn, clientMsgId));
  }

  /** Puts the page before the oldest record in front of `records`. False if there is none, or it cannot be had now. */
  loadOlder() { return this.#conversation.loadOlder(); }

  /** Everything up to `seq` has been read. @param {number} seq */
  readThrough(seq) { this.#conversation.readThrough(seq); }

  /** Tells the others that something is being written; call it at each key. */
  isTyping() { this.#conversation.isTyping(); }

  /**
   * Every record behind the first page, once and in order. Each call returns the function that stops it.
   * @param {(record: LogRecord) => void} listener
   */
  onRecord(listener) {
    return this.#onRecords((change) => { if ('record' in change) listener(change.record); });
  }

  /**
   * The latest page, which replaces everything before it: at the start, and whenever the position was of no use any more.
   * @param {(page: Page & {cause: 'start' | 'resync'}) => void} listener
   */
  onResync(listener) {
    return this.#onRecords((change) => { if (change.reason === 'page') listener({ ...change.page, cause: change.cause }); });
  }

  /** Every live event, as it came. @param {(live: {event: string, payload: any}) => void} listener */
  onLive(listener) { return this.#conversation.on('live', listener); }

  /** A turn, whenever its streamed text has changed. @param {(turn: Turn) => void} listener */
  onTurn(listener) {
    return this.#conversation.on('turn', (id) => {
      const turn = this.turns.get(id);
      if (turn) listener(turn);
    });
  }

  /** @param {(state: Status) => void} listener */
  onState(listener) { return this.#conversation.on('status', listener); }

  /** Messages on their way, whenever one has changed. @param {(entries: Entry[]) => void} listener */
  onOutgoing(listener) { return this.#conversation.on('outbox', () => listener(this.outgoing)); }

  /**
   * @template T
   * @param {(api: Http) => Promise<T>} call what may be sent again
   * @returns {Promise<T>}
   */
  #asked(call) {
    const { api, clock, random } = this.#options;
    return obeyDirectives(() => call(api), { clock, random, stopped: () => this.#left !== null });
  }

  /** @param {(change: RecordsChange) => void} listener */
  #onRecords(listener) { return this.#conversation.on('records', listener); }

  /** @param {Entry} entry @param {(status: SendStatus) => void} onStatus */
  #watch(entry, onStatus) {
    let told = '';
    const tell = (/** @type {SendStatus['state']} */ state) => {
      const status = { state, slow: entry.slow, attempts: entry.attempts, error: entry.error };
      if (JSON.stringify(status) === told) return;
      told = JSON.stringify(status);
      onStatus(status);
    };
    const { outbox } = this.#conversation;
    const stops = [
      outbox.on('change', () => { if (entry.state !== 'acked') tell(entry.state); }),
      outbox.on('delivered', ({ entry: delivered }) => { if (delivered === entry) tell('delivered'); }),
    ];
    tell(entry.state);
    return () => { for (const stop of stops) stop(); };
  }

  /** @param {Entry} entry */
  #failed(entry) {
    const refusal = named(new Refusal(entry.error ?? { code: 'refused' }), entry.client_msg_id);
    this.#conversation.outbox.discard(entry.client_msg_id);
    this.#settle(entry, ({ reject }) => reject(refusal));
  }

  /** @param {Entry} entry @param {(waiter: Waiter) => void} how */
  #settle({ client_msg_id: id }, how) {
    const waiters = this.#waiters.get(id) ?? [];
    this.#waiters.delete(id);
    for (const waiter of waiters) how(waiter);
  }
}

/**
 * @param {Refusal} refusal
 * @param {string} clientMsgId
 * @returns {SendRefusal}
 */
function named(refusal, clientMsgId) {
  const { code, detail, retry, status } = refusal;
  return Object.assign(new Refusal({ code, detail, retry, status }), { clientMsgId });
}
