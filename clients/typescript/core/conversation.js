/**
 * One open conversation: its page of history, its live channel, and everything shown of it.
 *
 * Invariant: what is shown is a contiguous stretch of the log up to `timeline.position`, whatever happens to the
 * connection: every (re)join asks for what follows that position, and a resync starts over from the latest page.
 * Deliberately does not: render, decide when something has been read (the view knows what is visible), or know the
 * transport (it is given a channel).
 */
import { Emitter } from './emitter.js';
import { Outbox } from './outbox.js';
import { Presence, Typing } from './presence.js';
import { Timeline, isRecord } from './timeline.js';
import { Turns } from './turns.js';
import { obeyDirectives } from './directive.js';

/** @import { Clock, Random } from './clock.js' */
/** @import { Refusal } from './errors.js' */
/** @import { Entry, Storage } from './outbox.js' */
/** @import { JoinParams, LogRecord, Page } from './timeline.js' */

const PAGE = 50;
const TYPING_EVERY_MS = 3_000;
const CURSOR_DELAY_MS = 250;
const RELOAD_MS = 2_000;

/** @typedef {{head_seq: number, log: string, epoch: number, catchup: 'streaming' | 'resync', reconnect_jitter_ms: number}} Joined */

/**
 * One topic on a connection. It joins again by itself after a loss, with the parameters of then; a push settles exactly
 * once: with its reply, a refusal, a timeout, or the loss of the connection.
 * @typedef {object} Channel
 * @property {string} state closed, joining, joined, errored (will rejoin) or refused (a retry cannot mend it)
 * @property {() => void} join
 * @property {() => void} rejoin joins anew with the parameters of now
 * @property {() => void} leave
 * @property {(event: string, payload: object) => Promise<any>} push
 * @property {(event: string, payload: object) => void} hint
 * @property {Emitter<ChannelEvents>['on']} on
 */

/** @typedef {{state: string, joined: Joined, refused: Refusal, event: {event: string, payload: any}}} ChannelEvents */

/**
 * @typedef {object} Connection
 * @property {(topic: string, params: () => JoinParams) => Channel} channel
 * @property {(type: 'state', listener: (now: {state: string}) => void) => () => void} on
 */

/**
 * Where to begin: with the latest page of so many records, behind a position that is known already, or at the head.
 * @typedef {{latest: number} | {after: number, log?: string | null} | 'head'} Start
 */

/**
 * @typedef {object} ConversationOptions
 * @property {string} id
 * @property {() => string | null} me whose messages settle the outbox; null while that is not known
 * @property {{history: (id: string, query: {before?: number, limit?: number}) => Promise<Page>}} api
 * @property {Connection} socket
 * @property {Clock} clock
 * @property {Random} random
 * @property {() => string} newId
 * @property {Storage | null} [storage]
 * @property {string} [storageKey]
 * @property {Start} [start]
 * @property {() => Promise<void> | null} [beforeSending] a promise to wait for before a message goes out, or null
 */

/** @typedef {'loading' | 'joining' | 'catching_up' | 'live' | 'offline' | 'refused'} Status */

/**
 * `page`: everything shown is replaced by it, at the start and after a resync.
 * @typedef {{reason: 'page', page: Page, cause: 'start' | 'resync'} | {reason: 'older'} | {reason: 'live' | 'caught_up', record: LogRecord}} RecordsChange
 */

/**
 * Emits `status`, `records`, `live` (each live event), `turn` (its id), `outbox`, `presence`, `typing`.
 * @extends {Emitter<{
 *   status: Status, records: RecordsChange, live: {event: string, payload: any}, turn: number, outbox: void, presence: void, typing: void,
 * }>}
 */
export class Conversation extends Emitter {
  #api;
  #clock;
  #random;
  /** @type {Channel} */
  #channel;
  #me;
  #start;
  #isStopped = false;
  #isLoading = false;
  #isResyncing = false;
  #typingSentAt = -Infinity;
  /** @type {unknown} */
  #cursorTimer = null;
  #cursor = 0;
  #stopListening;

  /** @type {Status} */
  status = 'loading';
  /** Why the status is `refused`. @type {Refusal | null} */
  refusal = null;
  hasBeenLive = false;
  timeline = new Timeline();
  turns = new Turns();
  presence = new Presence();
  isLoadingOlder = false;

  /** @param {ConversationOptions} options */
  constructor({ id, me, api, socket, clock, random, newId, storage, storageKey, start = { latest: PAGE }, beforeSending = () => null }) {
    super();
    this.id = id;
    this.#me = me;
    this.#api = api;
    this.#clock = clock;
    this.#random = random;
    this.#start = start;
    this.typing = new Typing({ clock });
    this.#channel = socket.channel(`conversation:${id}`, () => this.timeline.joinParams());
    this.outbox = new Outbox({
      send: async (clientMsgId, body) => {
        const admission = beforeSending();
        if (admission !== null) await admission;
        return this.#channel.push('message', { client_msg_id: clientMsgId, body });
      },
      position: () => this.timeline.position ?? 0,
      clock, random, newId, storage, key: storageKey,
    });
    this.#channel.on('state', (state) => this.#channelState(state));
    this.#channel.on('joined', (reply) => this.#joined(reply));
    this.#channel.on('refused', (refusal) => this.#refused(refusal));
    this.#channel.on('event', ({ event, payload }) => this.#received(event, payload));
    this.outbox.on('change', () => this.emit('outbox'));
    this.outbox.on('acked', () => this.outbox.settleThrough(this.timeline.position));
    this.presence.on('change', () => this.emit('presence'));
    this.typing.on('change', () => this.emit('typing'));
    this.#stopListening = socket.on('state', ({ state }) => { if (state === 'open') this.start(); });
  }

  /** Loads the latest page, then joins behind it. Safe to call again: it does only what is still missing. */
  async start() {
    if (this.#isLoading || this.#isStopped || this.timeline.position !== null) return;
    if (this.#start === 'head') return this.#channel.join();
    if ('after' in this.#start) {
      this.timeline.beginAt(this.#start);
      return this.#channel.join();
    }
    this.#isLoading = true;
    try {
      await this.#loadLatest(this.#start.latest, 'start');
      this.#channel.join();
    } catch (/** @type {any} */ error) {
      if (error.code === 'disconnected' || error.retry) this.#tryAgainLater();
      else this.#refused(error);
    } finally {
      this.#isLoading = false;
    }
  }

  /** After a refusal that a person has mended (by becoming a member, say). */
  restart() {
    this.refusal = null;
    this.#enter('loading');
    if (this.timeline.position === null) return this.start();
    this.#channel.join();
  }

  stop() {
    this.#isStopped = true;
    this.#stopListening();
    this.#clock.clearTimeout(this.#cursorTimer);
    this.typing.clear();
    this.#channel.leave();
  }

  /**
   * False if too much is waiting already.
   * @param {string} text
   */
  say(text) {
    this.#typingSentAt = -Infinity;
    return this.outbox.add({ text }) !== null;
  }

  /** Tells the others, at most every three seconds. */
  isTyping() {
    const now = this.#clock.now();
    if (now - this.#typingSentAt < TYPING_EVERY_MS) return;
    this.#typingSentAt = now;
    this.#channel.hint('typing', {});
  }

  /**
   * Everything up to `seq` has been seen. Sent a moment later, and only forward.
   * @param {number} seq
   */
  readThrough(seq) {
    if (!(seq > this.#cursor)) return;
    this.#cursor = seq;
    if (this.#cursorTimer !== null) return;
    this.#cursorTimer = this.#clock.setTimeout(() => {
      this.#cursorTimer = null;
      if (this.#channel.state === 'joined') this.#channel.hint('cursor', { seq: this.#cursor });
      else this.#cursor = 0; // nobody was told; the next sight of it tells
    }, CURSOR_DELAY_MS);
  }

  /**
   * Lets go of the oldest records beyond `limit`, and of turns that lie wholly before the rest.
   * @param {number} limit
   */
  trim(limit) {
    if (this.timeline.trim(limit)) this.turns.forgetBefore(this.timeline.records[0].seq);
  }

  /**
   * Loads the page before the oldest record. Resolves to false if there is none or it cannot be had now.
   * @returns {Promise<boolean>}
   */
  async loadOlder() {
    const first = this.timeline.records[0]?.seq ?? this.#firstUnseen();
    if (!this.timeline.hasOlder || first === undefined || this.isLoadingOlder) return false;
    this.isLoadingOlder = true;
    try {
      const page = await this.#obeying(() => this.#api.history(this.id, { before: first, limit: PAGE }));
      if (!this.timeline.prepend(page)) {
        this.#resync();
        return false;
      }
      for (const record of page.messages) this.turns.record(record);
      this.isLoadingOlder = false;
      this.emit('records', { reason: 'older' });
      return true;
    } catch {
      return false;
    } finally {
      this.isLoadingOlder = false;
    }
  }

  /** Where history goes on backwards from while no record is held: behind the position. */
  #firstUnseen() {
    return this.timeline.position === null ? undefined : this.timeline.position + 1;
  }

  /** @param {number} limit @param {'start' | 'resync'} cause */
  async #loadLatest(limit, cause) {
    const page = await this.#obeying(() => this.#api.history(this.id, { limit }));
    if (this.#isStopped) return;
    this.timeline.replace(page);
    this.turns.clear();
    for (const record of page.messages) this.#fold(record);
    this.outbox.settleThrough(this.timeline.position);
    this.emit('records', { reason: 'page', page, cause });
  }

  /**
   * @template T
   * @param {() => Promise<T>} call
   */
  #obeying(call) {
    return obeyDirectives(call, { clock: this.#clock, random: this.#random, stopped: () => this.#isStopped });
  }

  /** @param {string} state */
  #channelState(state) {
    if (state === 'joining') this.#enter('joining');
    if (state === 'errored') {
      this.outbox.offline();
      this.typing.clear();
      this.#enter('offline');
    }
  }

  /** @param {Joined} reply */
  #joined({ catchup, head_seq: headSeq, log }) {
    this.#enter('catching_up');
    if (catchup === 'resync') return this.#resync();
    if (this.timeline.position !== null) this.timeline.log ??= log;
    // Else a page is still to come, and to go on from the head would leave out what is before it.
    else if (this.#start === 'head') this.timeline.beginAt({ after: headSeq, log });
  }

  /** @param {Refusal} refusal */
  #refused(refusal) {
    this.outbox.offline();
    this.refusal = refusal;
    this.#enter('refused');
  }

  /** @param {string} event @param {any} payload */
  #received(event, payload) {
    if (isRecord(payload)) return this.#apply(payload);
    if (event === 'caught_up') return this.#caughtUp(payload);
    if (event === 'resync') return this.#resync();
    this.emit('live', { event, payload });
    if (event === 'typing') return payload.sender === this.#me() ? undefined : this.typing.seen(payload);
    if (event.startsWith('presence_')) return this.presence.apply(event, payload);
    const turn = this.turns.live(event, payload);
    if (turn !== null) this.emit('turn', turn);
  }

  /** @param {LogRecord} record */
  #apply(record) {
    if (!this.#isFollowing || !this.timeline.apply(record)) return;
    this.#fold(record);
    this.outbox.settleThrough(this.timeline.position);
    this.emit('records', { reason: this.status === 'live' ? 'live' : 'caught_up', record });
  }

  /** What arrives while there is no position to go on from is brought again by the next join. */
  get #isFollowing() { return !this.#isResyncing && this.timeline.position !== null; }

  /** @param {LogRecord} record */
  #fold(record) {
    this.turns.record(record);
    this.typing.ended(record.sender);
    if (record.sender === this.#me()) this.outbox.settle(record);
  }

  /** @param {{seq: number}} payload */
  #caughtUp({ seq }) {
    if (!this.#isFollowing) return;
    this.timeline.advance(seq);
    this.outbox.settleThrough(this.timeline.position);
    this.hasBeenLive = true;
    this.#enter('live');
    this.outbox.online();
  }

  /** The position is of no use any more: the latest page, then a join behind it. */
  async #resync() {
    if (this.#isResyncing || this.#isStopped) return;
    this.#isResyncing = true;
    this.outbox.offline();
    this.#enter('catching_up');
    const limit = typeof this.#start === 'object' && 'latest' in this.#start ? this.#start.latest : PAGE;
    try {
      await this.#loadLatest(limit, 'resync');
    } catch {
      this.timeline.forget();
      this.#start = { latest: limit };
    } finally {
      this.#isResyncing = false;
    }
    if (this.#isStopped) return;
    if (this.timeline.position === null) return this.#tryAgainLater();
    this.#channel.rejoin();
  }

  /** No page could be had: the next opening of the socket starts over, or a moment passes, whichever is first. */
  #tryAgainLater() {
    this.#enter('offline');
    this.#clock.setTimeout(() => this.start(), RELOAD_MS);
  }

  /** @param {Status} status */
  #enter(status) {
    if (this.status === status || this.#isStopped) return;
    this.status = status;
    this.emit('status', status);
  }
}
