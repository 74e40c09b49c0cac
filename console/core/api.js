/**
 * The HTTP calls that the console makes, with refusals turned into `Refusal`s.
 *
 * Invariant: a resolved promise means a 2xx answer; everything else rejects with the server's own code and directive.
 * Deliberately does not: retry (directive.js does), cache, or send messages (they go over the socket).
 */
import { Http, conversationPath as path, queryString } from '../../clients/typescript/core/http.js';

export class Api extends Http {
  /** A development login: {token, sub, expires_at}; 404 where the server is not in development mode. */
  login(name) { return this.call('POST', '/dev/login', { name }, { anonymous: true }); }

  conversations({ limit } = {}) { return this.call('GET', `/v1/conversations${queryString({ limit })}`); }

  conversation(id) { return this.call('GET', path(id)); }

  /** The conversation, and whether it is new; one that exists stays as it is. */
  async create(id, body) {
    const { status, answer } = await this.request('PUT', path(id), body);
    return { conversation: answer, isNew: status === 201 };
  }

  members(id) { return this.call('GET', `${path(id)}/members${queryString({ limit: 500 })}`); }

  /** The agents that a session may have: [{name}]. */
  async agents() { return (await this.call('GET', '/v1/agents')).agents; }

  /** The nodes, for whoever has `admin` on everything; `forbidden` for others. */
  nodes() { return this.call('GET', '/v1/nodes'); }

  /** What happened on all nodes since the cursor `after`. */
  nodeEvents({ after }) { return this.call('GET', `/v1/nodes/events${queryString({ after })}`); }

  /** What all nodes own, page by page. */
  owned({ after, limit, contains }) { return this.call('GET', `/v1/nodes/owned${queryString({ after, limit, contains })}`); }

  drain(name) { return this.call('POST', `/v1/nodes/${encodeURIComponent(name)}/drain`); }

  addMember(id, sub) { return this.call('PUT', `${path(id)}/members/${encodeURIComponent(sub)}`); }
}
