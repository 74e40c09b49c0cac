/**
 * The connection over phoenix.js's Socket: when it comes back, with which token, and when it is over for good.
 *
 * Invariant: every loss leads to one attempt, no sooner than the server's directive allows and spread over the window that the
 * server named, until `close()` or a token that the server does not accept.
 * Deliberately does not: resume anything (each channel rejoins with its own position), nor queue pushes.
 */
import { Emitter } from '../core/emitter.js';
import { Refusal } from '../core/errors.js';
import { Http } from '../core/http.js';
import { Reconnection, reconnectDelay } from '../core/reconnection.js';
import { claims, tokenProtocols } from '../core/token.js';
import { PhoenixChannel } from './channel.js';
import { transportClass } from './transport.js';

/** @import { Addresses } from '../core/addresses.js' */
/** @import { Channel as StockChannel, Socket as StockSocket } from 'phoenix' */
/** @import { Clock, Random } from '../core/clock.js' */
/** @import { Fetch } from '../core/http.js' */
/** @import { JoinParams } from '../core/timeline.js' */
/** @import { ConnectionState } from '../core/reconnection.js' */
/** @import { TokenSource } from '../core/token.js' */
/** @import { WebSocketClass } from './transport.js' */

/** The server ends a socket that is silent for 75 s. */
const HEARTBEAT_MS = 20_000;
/** The server answers within ten seconds, or not at all. */
const REPLY_TIMEOUT_MS = 10_000;

/**
 * @typedef {object} ConnectionOptions
 * @property {typeof StockSocket} Socket phoenix.js's
 * @property {Addresses} addresses the server's, or its nodes'
 * @property {TokenSource} token
 * @property {WebSocketClass} WebSocket
 * @property {Fetch} fetch
 * @property {Clock} clock
 * @property {Random} random
 */

/** @extends {Emitter<{state: {state: ConnectionState}}>} */
export class PhoenixConnection extends Emitter {
  #options;
  /** @type {StockSocket} */
  #socket;
  /** @type {Set<PhoenixChannel>} */
  #channels = new Set();
  /** @type {{abandon: () => void} | null} */
  #transport = null;
  #unopened = 0;
  /** @type {number | null} */
  #closedWith = null;

  /** @type {ConnectionState} */
  state = 'idle';
  /** Why the state is `refused`. @type {Refusal | null} */
  refusal = null;
  /** The subject of the token in use; null while none is known. @type {string | null} */
  sub = null;
  replyTimeoutMs = REPLY_TIMEOUT_MS;

  /** @param {ConnectionOptions} options */
  constructor(options) {
    super();
    this.#options = options;
    const { Socket, addresses, WebSocket, random } = options;
    this.reconnection = new Reconnection(random);
    const Transport = transportClass({
      WebSocket,
      address: (url) => addresses.at(url),
      authorize: () => this.#authorize(),
      opening: (transport) => {
        this.#transport = transport;
        this.#enter('connecting');
      },
      closed: (code, hasBeenOpen) => {
        this.#closedWith = code;
        addresses.next();
        if (!hasBeenOpen) this.#unopened += 1;
      },
      ended: () => this.#lost(),
    });
    this.#socket = new Socket(addresses.socket, {
      transport: Transport,
      timeout: REPLY_TIMEOUT_MS,
      heartbeatIntervalMs: HEARTBEAT_MS,
      reconnectAfterMs: () => this.reconnection.nextDelay(this.#closedWith),
      rejoinAfterMs: (/** @type {number} */ tries) => reconnectDelay(tries, 0, random),
    });
    this.#socket.onOpen(() => this.#opened());
    this.#socket.onMessage((message) => {
      const { event, payload } = /** @type {{event: string, payload: any}} */ (message);
      if (event === 'reconnect') this.#askedToReturn(payload?.after_ms ?? 0);
    });
  }

  get clock() { return this.#options.clock; }
  get random() { return this.#options.random; }
  get isOpen() { return this.state === 'open' && this.#socket.isConnected(); }

  connect() {
    if (this.state === 'idle') this.#socket.connect();
  }

  /** The network is back, or a person asked: attempt now instead of waiting. */
  retryNow() {
    if (this.state === 'waiting') this.#socket.disconnect(() => this.#socket.connect());
  }

  close() {
    for (const channel of [...this.#channels]) channel.leave();
    this.#enter('closed');
    this.#socket.disconnect();
  }

  /**
   * @param {string} topic
   * @param {() => JoinParams} params evaluated at every join and rejoin
   */
  channel(topic, params) {
    const channel = new PhoenixChannel(this, topic, params);
    this.#channels.add(channel);
    return channel;
  }

  /** @param {PhoenixChannel} channel */
  remove(channel) { this.#channels.delete(channel); }

  /**
   * @param {string} topic
   * @param {() => JoinParams} params
   * @returns {StockChannel}
   */
  stockChannel(topic, params) { return this.#socket.channel(topic, params); }

  /** The token of now, for whoever needs one. */
  async token() {
    const token = await this.#options.token({ isRefused: false });
    this.sub = claims(token)?.sub ?? null;
    return token;
  }

  /** The subprotocols of the next connection. A platform does not say why a socket failed to open, so HTTP is asked. */
  async #authorize() {
    let token = await this.token();
    if (this.#unopened > 0) token = await this.#probed(token);
    return tokenProtocols(token);
  }

  /** @param {string} token */
  async #probed(token) {
    const { addresses, fetch, clock } = this.#options;
    try {
      await new Http({ fetch, token: () => token, clock, base: () => addresses.current }).call('GET', '/v1/conversations?limit=1');
    } catch (/** @type {any} */ refusal) {
      if (refusal.retry) this.reconnection.refused(refusal.retry.after_ms);
      if (refusal.code === 'forbidden') this.#giveUp(refusal);
      if (refusal.code !== 'unauthenticated') throw refusal;
      const another = await this.#options.token({ isRefused: true });
      if (another !== token) return another;
      this.#giveUp(refusal);
      throw refusal;
    }
    return token;
  }

  #opened() {
    this.#unopened = 0;
    this.#enter('open');
    for (const channel of [...this.#channels]) channel.connectionOpened();
  }

  /** Told when phoenix.js is through with the loss: a listener may want to try again at once. */
  #lost() {
    if (this.#isOver) return;
    this.#enter('waiting');
    for (const channel of [...this.#channels]) channel.connectionLost();
  }

  get #isOver() { return this.state === 'closed' || this.state === 'refused'; }

  /** @param {number} afterMs */
  #askedToReturn(afterMs) {
    this.reconnection.askedToReturn(afterMs);
    this.#transport?.abandon();
  }

  /** @param {Refusal} refusal */
  #giveUp(refusal) {
    if (this.#isOver) return;
    this.refusal = refusal;
    this.#enter('refused');
    this.#socket.disconnect();
    for (const channel of [...this.#channels]) channel.connectionRefused(refusal);
  }

  /** @param {ConnectionState} state */
  #enter(state) {
    if (this.state === state || this.state === 'closed') return;
    this.state = state;
    this.emit('state', { state });
  }
}
