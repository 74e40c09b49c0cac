/**
 * HTTP calls, with refusals turned into `Refusal`s.
 *
 * Invariant: a resolved promise means a 2xx answer; everything else rejects with the server's own code and directive; no
 * call waits longer than `timeoutMs`.
 * Deliberately does not: retry (directive.js does) or cache.
 */
import { Refusal } from './errors.js';

/** @import { Clock } from './clock.js' */
/** @import { LogRecord, Page } from './timeline.js' */

/** The server answers within its own limit of ten seconds; a little more, and the network has lost the answer. */
const TIMEOUT_MS = 15_000;

/**
 * @typedef {(url: string, init: {method: string, headers: Record<string, string>, body?: string, signal: AbortSignal}) =>
 *   Promise<{ok: boolean, status: number, json: () => Promise<any>}>} Fetch
 */

/** @typedef {'keep' | 'rollback'} CancelMode */

/** `seq`: of the record that says so. @typedef {{turn: number, seq: number, epoch: number, at: string, duplicate: boolean}} TurnReceipt */

/** @typedef {{await: string, seq: number, epoch: number, at: string, duplicate: boolean}} AwaitReceipt */

/**
 * @typedef {object} AwaitOverview
 * @property {string} await its name
 * @property {string} step
 * @property {'open' | 'resolved' | 'expired' | 'closed'} state
 * @property {string} expires_at
 * @property {any} [schema] while it is open
 * @property {string} [prompt] while it is open
 * @property {string} [by]
 * @property {number} seq
 * @property {string} at
 */

/**
 * @typedef {object} StepOverview
 * @property {string} step
 * @property {'started' | 'completed' | 'failed' | 'unknown'} state
 * @property {'model' | 'tool' | 'own'} [type]
 * @property {string} [name]
 * @property {number} [attempts]
 * @property {{input_tokens: number, output_tokens: number}} [usage]
 * @property {number} seq
 * @property {string} at
 */

/**
 * @typedef {object} TurnOverview
 * @property {number} turn
 * @property {'queued' | 'running' | 'waiting' | 'completed' | 'failed' | 'cancelled' | 'superseded'} state
 * @property {string} [agent]
 * @property {string} [started_at]
 * @property {string} [deadline]
 * @property {string} [ended_at]
 * @property {StepOverview[]} steps
 * @property {AwaitOverview[]} awaits
 * @property {number[]} joined
 * @property {{steps: number, journal_bytes: number, input_tokens: number, output_tokens: number}} usage
 * @property {{reason: string, detail?: string}} [error]
 * @property {{mode: CancelMode, by: string, reason?: string}} [cancelled]
 * @property {{into?: number, reason?: string}} [superseded]
 * @property {LogRecord | null} answer
 */

export class Http {
  /** @type {Fetch} */
  #fetch;
  /** @type {() => string | Promise<string>} */
  #token;
  /** @type {Clock} */
  #clock;
  #base;
  #timeoutMs;

  /**
   * `token()`: the bearer token of now. `base()`: what goes before each path; empty for the page's own host.
   * @param {{fetch: Fetch, token: () => string | Promise<string>, clock: Clock, base?: () => string, timeoutMs?: number}} options
   */
  constructor({ fetch, token, clock, base = () => '', timeoutMs = TIMEOUT_MS }) {
    this.#fetch = fetch;
    this.#token = token;
    this.#clock = clock;
    this.#base = base;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * A page of history, ascending.
   * @param {string} id
   * @param {{before?: number, after?: number, limit?: number}} [query]
   * @returns {Promise<Page>}
   */
  history(id, { before, after, limit } = {}) {
    return this.call('GET', `${conversationPath(id)}/messages${queryString({ before, after, limit })}`);
  }

  /**
   * Where a turn stands: `{turn, state, steps, awaits, usage, answer, …}`.
   * @param {string} id
   * @param {number} turn
   * @returns {Promise<TurnOverview>}
   */
  turn(id, turn) { return this.call('GET', `${conversationPath(id)}/turns/${turn}`); }

  /**
   * Ends a turn. The same again is answered as it was.
   * @param {string} id
   * @param {number} turn
   * @param {CancelMode} mode
   * @returns {Promise<TurnReceipt>}
   */
  cancelTurn(id, turn, mode) { return this.call('POST', `${conversationPath(id)}/turns/${turn}/cancel`, { mode }); }

  /**
   * Runs the last turn again, as a new one.
   * @param {string} id
   * @param {number} turn
   * @param {string} clientMsgId the same each time
   * @returns {Promise<TurnReceipt>}
   */
  regenerateTurn(id, turn, clientMsgId) {
    return this.call('POST', `${conversationPath(id)}/turns`, { client_msg_id: clientMsgId, regenerate: turn });
  }

  /**
   * Answers what a turn waits for. The same payload again is answered as it was.
   * @param {string} id
   * @param {string} name the await's
   * @param {unknown} payload
   * @returns {Promise<AwaitReceipt>}
   */
  resolveAwait(id, name, payload) {
    return this.call('POST', `${conversationPath(id)}/awaits/${encodeURIComponent(name)}`, { payload });
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @param {{anonymous?: true}} [options]
   * @returns {Promise<any>}
   */
  async call(method, path, body, options) {
    const { answer } = await this.request(method, path, body, options);
    return answer;
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @param {{anonymous?: true}} [options]
   * @returns {Promise<{status: number, answer: any}>}
   */
  async request(method, path, body, { anonymous } = {}) {
    /** @type {Record<string, string>} */
    const headers = { accept: 'application/json' };
    if (!anonymous) headers.authorization = `Bearer ${await this.#token()}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    const limit = new AbortController();
    const timer = this.#clock.setTimeout(() => limit.abort(), this.#timeoutMs);
    try {
      const init = { method, headers, body: body && JSON.stringify(body), signal: limit.signal };
      const response = await this.#fetch(this.#base() + path, init).catch(() => { throw unreachable(); });
      const answer = await response.json().catch(() => ({})); // some answers have no body
      if (limit.signal.aborted) throw unreachable();
      if (response.ok) return { status: response.status, answer };
      throw new Refusal({ code: 'refused', ...answer, status: response.status });
    } finally {
      this.#clock.clearTimeout(timer);
    }
  }
}

const unreachable = () => new Refusal({ code: 'disconnected', detail: 'The server cannot be reached.' });

/** @param {string} id */
export const conversationPath = (id) => `/v1/conversations/${encodeURIComponent(id)}`;

/** @param {Record<string, string | number | undefined>} parameters those that are undefined are left out */
export function queryString(parameters) {
  const given = Object.entries(parameters).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]]));
  return given.length === 0 ? '' : `?${new URLSearchParams(given)}`;
}
