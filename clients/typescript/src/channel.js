/**
 * One topic over phoenix.js, as the core wants it: what a stock channel leaves to chance is settled here.
 *
 * Invariant: only what belongs to the current join is passed on; a push settles exactly once, and at once when its connection
 * is lost; no push waits in phoenix.js's own buffers, where it would be sent again without anybody knowing.
 * Deliberately does not: know what a record is, nor repeat a push (the outbox does, under the same key).
 */
import { Emitter } from '../core/emitter.js';
import { Refusal, disconnected, timedOut } from '../core/errors.js';
import { spread } from '../core/directive.js';

/** @import { Channel as Stock } from 'phoenix' */
/** @import { ChannelEvents } from '../core/conversation.js' */
/** @import { JoinParams } from '../core/timeline.js' */
/** @import { PhoenixConnection } from './connection.js' */

/** @extends {Emitter<ChannelEvents>} */
export class PhoenixChannel extends Emitter {
  #connection;
  #params;
  /** The stock channel of now. It rejoins by itself after a loss. @type {Stock | null} */
  #stock = null;
  #isWanted = false;
  /** @type {Set<(refusal: Refusal) => void>} */
  #pending = new Set();
  /** @type {unknown} */
  #timer = null;

  state = 'closed';

  /**
   * @param {PhoenixConnection} connection
   * @param {string} topic
   * @param {() => JoinParams} params evaluated at every join and rejoin
   */
  constructor(connection, topic, params) {
    super();
    this.#connection = connection;
    this.topic = topic;
    this.#params = params;
  }

  /** Joins, unless that is under way already. */
  join() {
    this.#isWanted = true;
    if (this.#stock !== null && this.state !== 'joined') return;
    if (this.#connection.isOpen) this.#open();
  }

  /** Joins anew with the parameters of now. */
  rejoin() {
    if (this.#isWanted && this.#connection.isOpen) this.#open();
  }

  leave() {
    this.#isWanted = false;
    this.#drop();
    this.#connection.remove(this);
    this.#enter('closed');
  }

  /**
   * Resolves with the reply's response; rejects with a Refusal. Needs a joined channel.
   * @param {string} event
   * @param {object} payload
   * @returns {Promise<any>}
   */
  push(event, payload) {
    const stock = this.#stock;
    if (this.state !== 'joined' || stock === null || !this.#connection.isOpen) {
      return Promise.reject(disconnected('There is no connection just now.'));
    }
    return new Promise((resolve, reject) => {
      this.#pending.add(reject);
      const settle = (/** @type {(response: any) => void} */ how) => (/** @type {any} */ response) => {
        this.#pending.delete(reject);
        how(response);
      };
      stock.push(event, payload, this.#connection.replyTimeoutMs)
        .receive('ok', settle((response) => resolve(response ?? {})))
        .receive('error', settle((response) => reject(new Refusal({ code: 'refused', ...response }))))
        .receive('timeout', settle(() => reject(timedOut())));
    });
  }

  /**
   * Fire and forget, for hints such as typing.
   * @param {string} event
   * @param {object} payload
   */
  hint(event, payload) { this.push(event, payload).catch(() => {}); }

  // Called by the connection.

  /** A stock channel that is there rejoins by itself. */
  connectionOpened() {
    if (this.#isWanted && this.#stock === null) this.#open();
  }

  connectionLost() {
    if (this.#stock !== null && this.state !== 'errored') this.#lost();
  }

  /** @param {Refusal} refusal there will be no connection any more */
  connectionRefused(refusal) { if (this.#isWanted) this.#refused(refusal); }

  #open() {
    this.#drop();
    const stock = this.#connection.stockChannel(this.topic, () => {
      // Told when phoenix.js is through with sending: a listener may leave, and a leave must not overtake its join.
      queueMicrotask(current(() => { if (this.state === 'errored') this.#enter('joining'); }));
      return this.#params();
    });
    const current = (/** @type {(...given: any[]) => void} */ handle) => (/** @type {any[]} */ ...given) => {
      if (this.#stock === stock) handle(...given);
    };
    this.#stock = stock;
    const pass = current((event, payload) => this.#received(event, payload));
    stock.onMessage = (event, payload) => {
      pass(event, payload);
      return payload;
    };
    stock.onError(current(() => this.#lost()));
    stock.onClose(current(() => this.#refused(new Refusal({ code: 'closed', detail: 'You are no longer part of this conversation.' }))));
    this.#enter('joining');
    if (this.#stock !== stock) return; // a listener has left
    stock.join(this.#connection.replyTimeoutMs)
      .receive('ok', current((reply) => this.#joined(reply)))
      .receive('error', current((response) => this.#joinFailed(new Refusal({ code: 'refused', ...response }))))
      .receive('timeout', current(() => this.#lost()));
  }

  /** @param {any} reply */
  #joined(reply) {
    this.#connection.reconnection.confirmed(reply);
    this.#enter('joined');
    this.emit('joined', reply);
  }

  /** A stock client would ask for ever. @param {Refusal} refusal */
  #joinFailed(refusal) {
    if (refusal.retry === null) return this.#refused(refusal);
    this.#drop();
    const { clock, random } = this.#connection;
    this.#timer = clock.setTimeout(() => this.#tryAgain(), spread(refusal.retry.after_ms, random));
    this.#enter('errored');
  }

  #tryAgain() { if (this.#connection.isOpen) this.connectionOpened(); }

  /** @param {string} event @param {any} payload */
  #received(event, payload) {
    if (event.startsWith('phx_') || event.startsWith('chan_reply_') || event === 'reconnect') return;
    // Broadcasts carry no join_ref: one that overtakes the join's reply belongs to an earlier join, and the catch-up brings it again.
    if (this.state === 'joined') this.emit('event', { event, payload });
  }

  #lost() {
    this.#abandon();
    this.#enter('errored');
  }

  /** @param {Refusal} refusal */
  #refused(refusal) {
    this.#isWanted = false;
    this.#drop();
    this.#enter('refused');
    this.emit('refused', refusal);
  }

  /** Lets go of the stock channel, so that nothing of it is heard any more. */
  #drop() {
    const stock = this.#stock;
    this.#stock = null;
    this.#connection.clock.clearTimeout(this.#timer);
    this.#abandon();
    stock?.leave();
  }

  #abandon() {
    const pending = [...this.#pending];
    this.#pending.clear();
    for (const reject of pending) reject(disconnected());
  }

  /** @param {string} state */
  #enter(state) {
    if (this.state === state) return;
    this.state = state;
    this.emit('state', state);
  }
}
