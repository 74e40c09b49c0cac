/**
 * The HTTP calls that the console makes, with refusals turned into `Refusal`s.
 *
 * Invariant: a resolved promise means a 2xx answer; everything else rejects with the server's own code and directive.
 * Deliberately does not: retry (directive.js does), cache, or send messages (they go over the socket).
 */
import { Refusal } from './errors.js';

export class Api {
  #fetch;
  #token;

  /** `token()`: the bearer token of now. `fetch`: the platform's. */
  constructor({ fetch, token }) {
    this.#fetch = fetch;
    this.#token = token;
  }

  /** A development login: {token, sub, expires_at}; 404 where the server is not in development mode. */
  login(name) { return this.#call('POST', '/dev/login', { name }, { anonymous: true }); }

  conversations({ limit } = {}) { return this.#call('GET', `/v1/conversations${query({ limit })}`); }

  conversation(id) { return this.#call('GET', path(id)); }

  /** The conversation, and whether it is new; one that exists stays as it is. */
  async create(id, body) {
    const { status, answer } = await this.#request('PUT', path(id), body);
    return { conversation: answer, isNew: status === 201 };
  }

  /** A page of history, ascending: {messages, head_seq, log, more}. */
  history(id, { before, limit = 50 } = {}) { return this.#call('GET', `${path(id)}/messages${query({ before, limit })}`); }

  members(id) { return this.#call('GET', `${path(id)}/members${query({ limit: 500 })}`); }

  addMember(id, sub) { return this.#call('PUT', `${path(id)}/members/${encodeURIComponent(sub)}`); }

  async #call(...request) {
    const { answer } = await this.#request(...request);
    return answer;
  }

  async #request(method, url, body, { anonymous = false } = {}) {
    const headers = { accept: 'application/json' };
    if (!anonymous) headers.authorization = `Bearer ${this.#token()}`;
    if (body !== undefined) headers['content-type'] = 'application/json';
    let response;
    try {
      response = await this.#fetch(url, { method, headers, body: body && JSON.stringify(body) });
    } catch {
      throw new Refusal({ code: 'disconnected', detail: 'The server cannot be reached.' });
    }
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return { status: response.status, answer };
    throw new Refusal({ code: 'refused', ...answer, status: response.status });
  }
}

const path = (id) => `/v1/conversations/${encodeURIComponent(id)}`;

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined);
  return given.length === 0 ? '' : `?${new URLSearchParams(given)}`;
}
