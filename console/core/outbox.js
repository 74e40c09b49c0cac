/**
 * Messages on their way: kept until the server has acknowledged them or has refused them for good.
 *
 * Invariant: an entry keeps one client_msg_id for life, however often it is sent, so that the server makes it one
 * message; entries leave in the order they were written, one at a time; a repeat happens only after an unknown outcome
 * or inside a directive's budget. Entries survive a reload (`storage`).
 * Deliberately does not: repeat a refusal without a directive, nor drop a refused entry: a person decides.
 */
import { Emitter } from './emitter.js';
import { isUnknownOutcome } from './errors.js';
import { spread } from './directive.js';

/** Most entries kept; a person who has that many waiting is told to wait. */
const LIMIT = 100;

/**
 * Entries: {client_msg_id, body, created_at, state, slow, error, seq, after}; `after` is the last seq before a refusal
 * (null until then): a refused message stays there, whatever is said later. State is
 * queued · sending · waiting (a directive's delay) · acked (its record is still to come) · failed.
 * Emits `change` (entries) and `acked` (entry).
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

  entries = [];

  /**
   * `send(client_msg_id, body)` resolves to {seq} or rejects with a Refusal. `storage`: like sessionStorage, or null.
   * `position()`: the last seq that is shown now.
   */
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

  /** Takes a message; false if too many are waiting already. */
  add(body) {
    if (this.isFull) return false;
    const entry = {
      client_msg_id: this.#newId(), body, created_at: this.#clock.now(), state: 'queued', slow: false, error: null, seq: null, after: null,
    };
    this.entries.push(entry);
    this.#watchSlowness(entry);
    this.#changed();
    this.#pump();
    return true;
  }

  /** The conversation is joined and caught up: send what waits. */
  online() {
    this.#isOnline = true;
    this.#pump();
  }

  offline() { this.#isOnline = false; }

  /** Its record has been seen: the entry has done its work. */
  settle(clientMsgId) {
    const index = this.entries.findIndex((entry) => entry.client_msg_id === clientMsgId);
    if (index < 0) return false;
    this.entries.splice(index, 1);
    this.#changed();
    this.#pump();
    return true;
  }

  /** A person asks for one more try of a failed entry; only offered where the server gave a directive. */
  retry(clientMsgId) {
    const entry = this.#find(clientMsgId);
    if (entry?.state !== 'failed' || !entry.error?.retry) return;
    Object.assign(entry, { state: 'queued', error: null, slow: false, attempted_at: null, after: null });
    this.#watchSlowness(entry);
    this.#changed();
    this.#pump();
  }

  /** A person gives a failed entry up. Returns its body. */
  discard(clientMsgId) {
    const entry = this.#find(clientMsgId);
    if (entry?.state !== 'failed') return null;
    this.settle(clientMsgId);
    return entry.body;
  }

  /** Forgets acknowledged entries up to `position`: their records were delivered, or lie before what is loaded. */
  settleThrough(position) {
    const isSettled = (entry) => entry.state === 'acked' && entry.seq <= position;
    if (!this.entries.some(isSettled)) return;
    this.entries = this.entries.filter((entry) => !isSettled(entry));
    this.#changed();
  }

  #find(clientMsgId) {
    return this.entries.find((entry) => entry.client_msg_id === clientMsgId);
  }

  /** The oldest unsettled entry goes first; while it is under way or waits, the others wait behind it. */
  #pump() {
    if (!this.#isOnline) return;
    const next = this.entries.find((entry) => entry.state !== 'failed' && entry.state !== 'acked');
    if (next?.state === 'queued') this.#transmit(next);
  }

  async #transmit(entry) {
    entry.state = 'sending';
    entry.attempted_at ??= this.#clock.now();
    this.#changed();
    try {
      const { seq } = await this.#send(entry.client_msg_id, entry.body);
      this.#lastAcked = Math.max(this.#lastAcked, seq);
      if (!this.entries.includes(entry)) return;
      Object.assign(entry, { state: 'acked', seq, error: null, slow: false });
    } catch (error) {
      if (!this.entries.includes(entry)) return;
      this.#refused(entry, error);
    }
    this.#changed();
    if (entry.state === 'acked') this.emit('acked', entry);
    this.#pump();
  }

  #refused(entry, error) {
    if (isUnknownOutcome(error)) {
      // Timed out on a live connection: the same key again, at once. Lost: `online()` comes with the next join.
      if (error.code === 'disconnected') this.#isOnline = false;
      Object.assign(entry, { state: 'queued', attempted_at: null });
      return;
    }
    entry.error = { code: error.code, detail: error.detail, retry: error.retry };
    if (!error.retry) return this.#fail(entry);
    const delayMs = spread(error.retry.after_ms, this.#random);
    const isSpent = this.#clock.now() + delayMs > entry.attempted_at + error.retry.budget_ms;
    if (isSpent) return this.#fail(entry);
    entry.state = 'waiting';
    this.#clock.setTimeout(() => {
      if (entry.state !== 'waiting' || !this.entries.includes(entry)) return;
      entry.state = 'queued';
      this.#pump();
    }, delayMs);
  }

  #fail(entry) {
    Object.assign(entry, { state: 'failed', slow: false, after: Math.max(this.#position(), this.#lastAcked) });
  }

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
    if (this.entries.length === 0) return this.#storage.removeItem(this.#key);
    const saved = this.entries.map(({ client_msg_id, body, created_at, state, error, after }) =>
      ({ client_msg_id, body, created_at, state, error, after }));
    this.#storage.setItem(this.#key, JSON.stringify(saved));
  }

  #restore() {
    try {
      const saved = JSON.parse(this.#storage?.getItem(this.#key) ?? '[]');
      return saved.slice(0, LIMIT).map((entry) => ({
        after: null, ...entry, state: entry.state === 'failed' ? 'failed' : 'queued', slow: false, seq: null,
      }));
    } catch {
      return [];
    }
  }
}
