/**
 * When to come back after a lost connection.
 *
 * Invariant: the first attempt spreads over the window that the server named (`reconnect_jitter_ms` of a join's reply); a
 * `reconnect {after_ms}` is never undercut; further attempts back off exponentially with jitter, until a join is answered.
 * Deliberately does not: hold a timer or a socket; it only says how long to wait.
 */

/** @import { Random } from './clock.js' */

/** refused: the server lets this client in no more. @typedef {'idle' | 'connecting' | 'open' | 'waiting' | 'refused' | 'closed'} ConnectionState */

/** How the server closes when a token has run out. That happens to one client at a time: no storm, so no jitter. */
const TOKEN_OVER = 1008;
const BASE_MS = 400;
const CAP_MS = 15_000;

/**
 * The wait before the n-th attempt (n from 0).
 * @param {number} attempt
 * @param {number} jitterMs
 * @param {Random} random
 */
export function reconnectDelay(attempt, jitterMs, random, { baseMs = BASE_MS, capMs = CAP_MS } = {}) {
  if (attempt === 0) return Math.round(random() * Math.max(jitterMs, baseMs));
  const ceiling = Math.min(capMs, baseMs * 2 ** Math.min(attempt, 16));
  return Math.round(ceiling / 2 + random() * (ceiling / 2));
}

export class Reconnection {
  /** @type {Random} */
  #random;
  #attempt = 0;
  /** @type {number | null} */
  #directedMs = null;

  /** The largest spread that a join's reply asked for: how long a lost client waits at most before its first attempt. */
  jitterMs = 0;

  /** @param {Random} random */
  constructor(random) {
    this.#random = random;
  }

  /**
   * A join was answered: the server is truly there, so the back-off starts anew. An open socket alone proves nothing.
   * @param {{reconnect_jitter_ms?: number}} reply
   */
  confirmed({ reconnect_jitter_ms: jitterMs }) {
    this.#attempt = 0;
    this.#directedMs = null;
    if (typeof jitterMs === 'number' && Number.isFinite(jitterMs)) this.jitterMs = jitterMs;
  }

  /**
   * The server asked all who are here to leave and to come back later: its delay, spread over its jitter.
   * @param {number} afterMs
   */
  askedToReturn(afterMs) { this.#directedMs = afterMs + Math.round(this.#random() * this.jitterMs); }

  /**
   * The server told this client alone when to try again.
   * @param {number} afterMs
   */
  refused(afterMs) { this.#directedMs = afterMs; }

  /**
   * The wait before the next attempt, which is counted with it.
   * @param {number | null} closeCode the code that the lost socket was closed with
   */
  nextDelay(closeCode = null) {
    const jitterMs = closeCode === TOKEN_OVER ? 0 : this.jitterMs;
    const delayMs = this.#directedMs ?? reconnectDelay(this.#attempt, jitterMs, this.#random);
    this.#directedMs = null;
    this.#attempt += 1;
    return delayMs;
  }
}
