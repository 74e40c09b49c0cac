/**
 * Messages on their way: kept until the server has acknowledged them or has refused them for good.
 *
 * Invariant: an entry keeps one client_msg_id for life, however often it is sent, so that the server makes it one
 * message; entries leave in the order they were written, one at a time; a repeat happens only after an unknown outcome
 * or inside a directive's budget. Entries survive a reload (`storage`).
 * Deliberately does not: repeat a refusal without a directive, nor drop a refused entry: a person decides.
 */
import { Emitter } from './emitter.js';
import { Refusal, isUnknownOutcome } from './errors.js';
import { spread } from './directive.js';

/** @import { Clock, Random } from './clock.js' */
/** @import { Directive } from './errors.js' */

/** Most entries kept; a person who has that many waiting is told to wait. */
const LIMIT = 100;

/** Most attempts of one entry in a row whose outcome nobody learns; a message that the server never answers is said to have failed. */
const UNANSWERED_LIMIT = 30;

/**
 * `after` is the last seq before a refusal (null until then): a refused message stays there, whatever is said later.
 * @typedef {object} Entry
 * @property {string} client_msg_id
 * @property {any} body
 * @property {number} created_at
 * @property {'queued' | 'sending' | 'waiting' | 'acked' | 'failed'} state waiting: for a directive's delay; acked: its record is still to come
 * @property {boolean} slow
 * @property {{code: string, detail: string, retry: Directive | null} | null} error
 * @property {number | null} seq
 * @property {number | null} after
 * @property {number} attempts
 * @property {number} unanswered attempts in a row whose outcome nobody learnt
 */

/** What the server says of an accepted message. @typedef {{seq: number, epoch: number, at: string, duplicate: boolean}} Receipt */

/** Like sessionStorage. @typedef {{getItem(key: string): string | null, setItem(key: string, value: string): void, removeItem(key: string): void}} Storage */

/**
 * @typedef {object} OutboxOptions
 * @property {(clientMsgId: string, body: any) => Promise<Receipt>} send rejects with a Refusal
 * @property {Clock} clock
 * @property {Random} random
 * @property {() => string} newId
 * @property {Storage | null} [storage]
 * @property {string} [key] the name in the storage
 * @property {number} [slowMs]
 * @property {() => number} [position] the last seq that is shown now
 */

/**
 * Emits `change` (entries); `acked` (entry): the server has answered; `delivered`: the answer or the record is there,
 * once for each entry that got through; `failed` (entry).
 * @extends {Emitter<{change: Entry[], acked: Entry, delivered: {entry: Entry, receipt: Receipt}, failed: Entry}>}
 */
export class Outbox extends Emitter {
  #send;
  #clock;
  #random;
  #newId;
  #storage;
  #key;
  #slowMs;
  #position;
  #lastAcked = 0;
  #isOnline = false;
  /** Budgets count only the time in which there was a connection: `#spentMs` is that time until `#onlineSince`. */
  #spentMs = 0;
  #onlineSince = 0;
  /** When an entry's first attempt was, in time with a connection. @type {WeakMap<Entry, number>} */
  #firstAttempts = new WeakMap();

  /** @type {Entry[]} */
  entries = [];

  /** @param {OutboxOptions} options */
  constructor({ send, clock, random, newId, storage = null, key = 'outbox', slowMs = 3_000, position = () => 0 }) {
    super();
    this.#send = send;
    this.#clock = clock;
    this.#random = random;
    this.#newId = newId;
    this.#storage = storage;
    this.#key = key;
    this.#slowMs = slowMs;
    this.#position = position;
    this.entries = this.#restore();
  }

  get isFull() { return this.entries.length >= LIMIT; }

  /**
   * Takes a message; null if too many are waiting already. A key that is here already is the same message: its entry, which
   * is tried again if it had failed. Throws `idempotency_key_reused` if it has another body.
   * @param {any} body
   * @param {string} [clientMsgId]
   * @returns {Entry | null}
   */
  add(body, clientMsgId) {
    const known = clientMsgId === undefined ? undefined : this.#find(clientMsgId);
    if (known) return this.#addAgain(known, body);
    if (this.isFull) return null;
    /** @type {Entry} */
    const entry = {
      client_msg_id: clientMsgId ?? this.#newId(), body, created_at: this.#clock.now(), state: 'queued', slow: false, error: null,
      seq: null, after: null, attempts: 0, unanswered: 0,
    };
    this.entries.push(entry);
    this.#watchSlowness(entry);
    this.#changed();
    this.#pump();
    return entry;
  }

  /** The conversation is joined and caught up: send what waits. */
  online() {
    if (!this.#isOnline) this.#onlineSince = this.#clock.now();
    this.#isOnline = true;
    this.#pump();
  }

  offline() {
    if (this.#isOnline) this.#spentMs += this.#clock.now() - this.#onlineSince;
    this.#isOnline = false;
  }

  /**
   * Its record has been seen: the entry has done its work.
   * @param {{seq: number, epoch: number, at: string, client_msg_id?: string}} record
   */
  settle({ seq, epoch, at, client_msg_id: clientMsgId }) {
    const entry = clientMsgId === undefined ? undefined : this.#find(clientMsgId);
    if (!entry) return false;
    const isNews = entry.state !== 'acked';
    this.#remove(entry);
    if (isNews) this.emit('delivered', { entry, receipt: { seq, epoch, at, duplicate: false } });
    this.#pump();
    return true;
  }

  /**
   * A person asks for one more try of a failed entry; only offered where the server gave a directive.
   * @param {string} clientMsgId
   */
  retry(clientMsgId) {
    const entry = this.#find(clientMsgId);
    if (entry?.state === 'failed' && entry.error?.retry) this.#requeue(entry);
  }

  /**
   * A person gives a failed entry up. Returns its body.
   * @param {string} clientMsgId
   */
  discard(clientMsgId) {
    const entry = this.#find(clientMsgId);
    if (entry?.state !== 'failed') return null;
    this.#remove(entry);
    return entry.body;
  }

  /**
   * Nothing can be sent any more: whatever the server has not acknowledged has failed.
   * @param {Refusal} refusal
   */
  refuse(refusal) {
    for (const entry of [...this.entries]) {
      if (entry.state !== 'acked' && entry.state !== 'failed') this.#fail(entry, refusal);
    }
    this.#changed();
  }

  /**
   * Forgets acknowledged entries up to `position`: their records were delivered, or lie before what is loaded.
   * @param {number | null} position
   */
  settleThrough(position) {
    const isSettled = (/** @type {Entry} */ { state, seq }) => state === 'acked' && seq !== null && position !== null && seq <= position;
    if (!this.entries.some(isSettled)) return;
    this.entries = this.entries.filter((entry) => !isSettled(entry));
    this.#changed();
  }

  /** @param {string} clientMsgId */
  #find(clientMsgId) {
    return this.entries.find((entry) => entry.client_msg_id === clientMsgId);
  }

  /** @param {Entry} entry */
  #remove(entry) {
    this.entries = this.entries.filter((other) => other !== entry);
    this.#changed();
  }

  /** @param {Entry} known @param {any} body */
  #addAgain(known, body) {
    if (JSON.stringify(known.body) !== JSON.stringify(body)) throw new Refusal({ code: 'idempotency_key_reused' });
    if (known.state === 'failed') this.#requeue(known);
    return known;
  }

  /** @param {Entry} entry */
  #requeue(entry) {
    Object.assign(entry, { state: 'queued', error: null, slow: false, after: null, unanswered: 0 });
    this.#firstAttempts.delete(entry);
    this.#watchSlowness(entry);
    this.#changed();
    this.#pump();
  }

  /** The oldest unsettled entry goes first; while it is under way or waits, the others wait behind it. */
  #pump() {
    if (!this.#isOnline) return;
    const next = this.entries.find((entry) => entry.state !== 'failed' && entry.state !== 'acked');
    if (next?.state === 'queued') this.#transmit(next);
  }

  /** @param {Entry} entry */
  async #transmit(entry) {
    entry.state = 'sending';
    entry.attempts += 1;
    if (!this.#firstAttempts.has(entry)) this.#firstAttempts.set(entry, this.#onlineMs());
    this.#changed();
    try {
      const receipt = await this.#send(entry.client_msg_id, entry.body);
      this.#lastAcked = Math.max(this.#lastAcked, receipt.seq);
      if (!this.#isSending(entry)) return;
      this.#acknowledged(entry, receipt);
    } catch (/** @type {any} */ error) {
      if (!this.#isSending(entry)) return;
      this.#refused(entry, error);
      this.#changed();
    }
    this.#pump();
  }

  /** False once the entry was settled by its record, or given up. @param {Entry} entry */
  #isSending(entry) { return entry.state === 'sending' && this.entries.includes(entry); }

  /** @param {Entry} entry @param {Receipt} receipt */
  #acknowledged(entry, { seq, epoch, at, duplicate }) {
    Object.assign(entry, { state: 'acked', seq, error: null, slow: false });
    this.#changed();
    this.emit('delivered', { entry, receipt: { seq, epoch, at, duplicate } });
    this.emit('acked', entry);
  }

  /** @param {Entry} entry @param {Refusal} error */
  #refused(entry, error) {
    if (isUnknownOutcome(error)) {
      // Timed out on a live connection: the same key again, at once. Lost: `online()` comes with the next join.
      if (error.code === 'disconnected') this.offline();
      entry.unanswered += 1;
      if (entry.unanswered >= UNANSWERED_LIMIT) return this.#fail(entry, error);
      entry.state = 'queued';
      return;
    }
    if (!error.retry) return this.#fail(entry, error);
    const delayMs = spread(error.retry.after_ms, this.#random);
    const firstAttempt = this.#firstAttempts.get(entry) ?? 0;
    const isSpent = this.#onlineMs() + delayMs > firstAttempt + error.retry.budget_ms;
    if (isSpent) return this.#fail(entry, error);
    Object.assign(entry, { state: 'waiting', error: { code: error.code, detail: error.detail, retry: error.retry }, unanswered: 0 });
    this.#clock.setTimeout(() => {
      if (entry.state !== 'waiting' || !this.entries.includes(entry)) return;
      entry.state = 'queued';
      this.#pump();
    }, delayMs);
  }

  #onlineMs() { return this.#spentMs + (this.#isOnline ? this.#clock.now() - this.#onlineSince : 0); }

  /** @param {Entry} entry @param {Refusal} error */
  #fail(entry, error) {
    Object.assign(entry, {
      state: 'failed', slow: false, after: Math.max(this.#position(), this.#lastAcked),
      error: { code: error.code, detail: error.detail, retry: error.retry },
    });
    this.emit('failed', entry);
  }

  /** @param {Entry} entry */
  #watchSlowness(entry) {
    this.#clock.setTimeout(() => {
      if (!this.entries.includes(entry) || entry.state === 'failed' || entry.state === 'acked') return;
      entry.slow = true;
      this.#changed();
    }, this.#slowMs);
  }

  #changed() {
    this.#save();
    this.emit('change', this.entries);
  }

  #save() {
    if (!this.#storage) return;
    const saved = this.entries.map(({ client_msg_id, body, created_at, state, error, after }) =>
      ({ client_msg_id, body, created_at, state, error, after }));
    try {
      if (saved.length === 0) this.#storage.removeItem(this.#key);
      else this.#storage.setItem(this.#key, JSON.stringify(saved));
    } catch {
      // A full storage: the entries are sent all the same, they only do not survive a reload.
    }
  }

  /** @returns {Entry[]} */
  #restore() {
    try {
      const saved = JSON.parse(this.#storage?.getItem(this.#key) ?? '[]');
      return saved.slice(0, LIMIT).map((/** @type {Entry} */ entry) => ({
        ...entry, after: entry.after ?? null, state: entry.state === 'failed' ? 'failed' : 'queued', slow: false, seq: null, attempts: 0, unanswered: 0,
      }));
    } catch {
      return [];
    }
  }
}
