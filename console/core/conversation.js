/**
 * One open conversation: its page of history, its live channel, and everything shown of it.
 *
 * Invariant: what is shown is a contiguous stretch of the log up to `timeline.position`, whatever happens to the
 * connection: every (re)join asks for what follows that position, and a resync starts over from the latest page.
 * Deliberately does not: render, or decide when something has been read (the view knows what is visible).
 */
import { Emitter } from './emitter.js';
import { Outbox } from './outbox.js';
import { Presence, Typing } from './presence.js';
import { Timeline, isRecord } from './timeline.js';
import { Turns } from './turns.js';
import { obeyDirectives } from './directive.js';

const PAGE = 50;
const TYPING_EVERY_MS = 3_000;
const CURSOR_DELAY_MS = 250;
const RELOAD_MS = 2_000;

/**
 * status: loading · joining · catching_up · live · offline · refused (see `refusal`).
 * Emits `status`, `records` ({reason: 'page'|'older'|'live'|'caught_up', record?}), `turn` (id), `outbox`, `presence`, `typing`.
 */
export class Conversation extends Emitter {
  #api;
  #clock;
  #random;
  #channel;
  #me;
  #isStopped = false;
  #isLoading = false;
  #isResyncing = false;
  #typingSentAt = -Infinity;
  #cursorTimer = null;
  #cursor = 0;
  #stopListening;

  status = 'loading';
  refusal = null;
  hasBeenLive = false;
  timeline = new Timeline();
  turns = new Turns();
  presence = new Presence();
  isLoadingOlder = false;

  /** `beforeSending()`: a promise to wait for before a message goes out, or null. */
  constructor({ id, me, api, socket, clock, random, newId, storage, beforeSending = () => null }) {
    super();
    this.id = id;
    this.#me = me;
    this.#api = api;
    this.#clock = clock;
    this.#random = random;
    this.typing = new Typing({ clock });
    this.#channel = socket.channel(`conversation:${id}`, () => this.timeline.joinParams());
    this.outbox = new Outbox({
      send: async (clientMsgId, body) => {
        const admission = beforeSending();
        if (admission !== null) await admission;
        return this.#channel.push('message', { client_msg_id: clientMsgId, body });
      },
      position: () => this.timeline.position ?? 0,
      clock, random, newId, storage, key: `conch.outbox.${me}.${id}`,
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
    this.#isLoading = true;
    try {
      await this.#loadLatest();
      this.#channel.join();
    } catch (error) {
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

  /** False if too much is waiting already. */
  say(text) {
    this.#typingSentAt = -Infinity;
    return this.outbox.add({ text });
  }

  /** Tells the others, at most every three seconds. */
  isTyping() {
    const now = this.#clock.now();
    if (now - this.#typingSentAt < TYPING_EVERY_MS) return;
    this.#typingSentAt = now;
    this.#channel.hint('typing', {});
  }

  /** Everything up to `seq` has been seen. Sent a moment later, and only forward. */
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

  /** Lets go of the oldest records beyond `limit`, and of turns that lie wholly before the rest. */
  trim(limit) {
    if (this.timeline.trim(limit)) this.turns.forgetBefore(this.timeline.records[0].seq);
  }

  /** Loads the page before the oldest record. Resolves to false if there is none or it cannot be had now. */
  async loadOlder() {
    const first = this.timeline.records[0]?.seq;
    if (!this.timeline.hasOlder || first === undefined || this.isLoadingOlder) return false;
    this.isLoadingOlder = true;
    try {
      const page = await this.#obeying(() => this.#api.history(this.id, { before: first, limit: PAGE }));
      if (!this.timeline.prepend(page)) return void this.#resync();
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

  async #loadLatest() {
    const page = await this.#obeying(() => this.#api.history(this.id, { limit: PAGE }));
    if (this.#isStopped) return;
    this.timeline.replace(page);
    this.turns.clear();
    for (const record of page.messages) this.#fold(record);
    this.outbox.settleThrough(this.timeline.position);
    this.emit('records', { reason: 'page' });
  }

  #obeying(call) {
    return obeyDirectives(call, { clock: this.#clock, random: this.#random, stopped: () => this.#isStopped });
  }

  #channelState(state) {
    if (state === 'joining') this.#enter('joining');
    if (state === 'errored') {
      this.outbox.offline();
      this.typing.clear();
      this.#enter('offline');
    }
  }

  #joined({ catchup }) {
    this.#enter('catching_up');
    if (catchup === 'resync') this.#resync();
  }

  #refused(refusal) {
    this.outbox.offline();
    this.refusal = refusal;
    this.#enter('refused');
  }

  #received(event, payload) {
    if (isRecord(payload)) return this.#apply(payload);
    if (event === 'caught_up') return this.#caughtUp(payload);
    if (event === 'resync') return this.#resync();
    if (event === 'typing') return payload.sender === this.#me ? undefined : this.typing.seen(payload);
    if (event.startsWith('presence_')) return this.presence.apply(event, payload);
    const turn = this.turns.live(event, payload);
    if (turn !== null) this.emit('turn', turn);
  }

  #apply(record) {
    if (this.#isResyncing || !this.timeline.apply(record)) return;
    this.#fold(record);
    this.emit('records', { reason: this.status === 'live' ? 'live' : 'caught_up', record });
  }

  #fold(record) {
    this.turns.record(record);
    this.typing.ended(record.sender);
    if (record.sender === this.#me && record.client_msg_id) this.outbox.settle(record.client_msg_id);
  }

  #caughtUp({ seq }) {
    if (this.#isResyncing) return;
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
    try {
      await this.#loadLatest();
    } catch {
      this.timeline.position = null;
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

  #enter(status) {
    if (this.status === status || this.#isStopped) return;
    this.status = status;
    this.emit('status', status);
  }
}
