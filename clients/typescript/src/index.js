/**
 * Conch for front ends, over npm `phoenix`: what stock clients lack is here.
 *
 * Invariant: one connection, one room for each conversation, and everything that is in a room is in the order of its log.
 * Deliberately does not: create conversations, manage members or mint tokens; those are HTTP calls.
 */
import { Socket } from 'phoenix';
import { randomId, systemClock, systemRandom } from '../core/clock.js';
import { Http } from '../core/http.js';
import { Addresses } from '../core/addresses.js';
import { PhoenixConnection } from './connection.js';
import { Room } from './room.js';

export { Refusal as ConchRefusal } from '../core/errors.js';
export { Room } from './room.js';

/** @import { Fetch } from '../core/http.js' */
/** @import { Storage } from '../core/outbox.js' */
/** @import { ConnectionState } from '../core/reconnection.js' */
/** @import { TokenSource } from '../core/token.js' */
/** @import { WebSocketClass } from './transport.js' */

/** @typedef {import('../core/timeline.js').LogRecord} LogRecord */
/** @typedef {import('../core/timeline.js').Page} Page */
/** @typedef {import('../core/outbox.js').Receipt} Receipt */
/** @typedef {import('../core/turns.js').Turn} Turn */
/** @typedef {import('../core/http.js').TurnOverview} TurnOverview */
/** @typedef {import('../core/http.js').TurnReceipt} TurnReceipt */
/** @typedef {import('../core/http.js').AwaitReceipt} AwaitReceipt */
/** @typedef {import('./room.js').SendStatus} SendStatus */
/** @typedef {import('./room.js').SendRefusal} SendRefusal */

/**
 * @typedef {object} ConchOptions
 * @property {string | string[]} url the server's address: https://chat.example; or those of several nodes, tried in turn
 * @property {TokenSource} token called before every connection and request; may renew
 * @property {any} [WebSocket] the platform's unless given (npm `ws` in Node)
 * @property {Fetch} [fetch] the platform's unless given
 */

/**
 * `after` and `log`: go on behind a position that is known. Else it begins with the latest page of `latest` records (50),
 * or at the head with `latest: 0`. `storage`: like sessionStorage, so that messages on their way survive a reload; one
 * storage belongs to one person. `keep`: records that the room holds at most.
 * @typedef {{after?: number, log?: string | null, latest?: number, storage?: Storage | null, keep?: number}} RoomOptions
 */

const LATEST = 50;

export class Conch {
  #connection;
  #api;
  /** @type {Map<string, Room>} */
  #rooms = new Map();

  /** @param {ConchOptions} options */
  constructor({ url, token, WebSocket = globalThis.WebSocket, fetch = (address, init) => globalThis.fetch(address, init) }) {
    const addresses = new Addresses(url);
    if (WebSocket === undefined) throw new TypeError('WebSocket: this platform has none; pass a class, such as that of npm "ws"');
    this.#connection = new PhoenixConnection({
      Socket, addresses, token, WebSocket: /** @type {WebSocketClass} */ (WebSocket), fetch, clock: systemClock, random: systemRandom,
    });
    this.#api = new Http({ fetch, token: () => this.#connection.token(), clock: systemClock, base: () => addresses.current });
  }

  /** idle · connecting · open · waiting (to try again) · refused (see `refusal`) · closed. */
  get state() { return this.#connection.state; }

  /** Why the server lets this client in no more. */
  get refusal() { return this.#connection.refusal; }

  /** @param {(state: ConnectionState) => void} listener */
  onState(listener) { return this.#connection.on('state', ({ state }) => listener(state)); }

  /** The network is back, or a person asked: try now instead of waiting. */
  retryNow() { this.#connection.retryNow(); }

  /**
   * Opens a conversation. One that is open already cannot be opened again before it is left.
   * @param {string} id
   * @param {RoomOptions} [options]
   */
  conversation(id, { after, log, latest = LATEST, storage = null, keep } = {}) {
    if (this.#rooms.has(id)) throw new Error(`the conversation "${id}" is open already`);
    /** @type {import('../core/conversation.js').Start} */
    let start = latest === 0 ? 'head' : { latest };
    if (after !== undefined) start = { after, log };
    const room = new Room({
      id, start, storage, storageKey: `conch.outbox.${id}`,
      me: () => this.#connection.sub,
      api: this.#api, socket: this.#connection, clock: systemClock, random: systemRandom, newId: randomId,
    }, { keep, onLeft: () => { this.#rooms.delete(id); } });
    this.#rooms.set(id, room);
    this.#connection.connect();
    // The caller's listeners come first.
    queueMicrotask(() => room.start());
    return room;
  }

  /** Leaves every conversation and ends the connection for good. */
  close() {
    for (const room of [...this.#rooms.values()]) room.leave();
    this.#connection.close();
  }
}
