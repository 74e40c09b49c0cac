/**
 * What to call a conversation: its title, else its partner's name (direct), else its id.
 *
 * Invariant: members of a direct conversation are asked for once, one request at a time.
 * Deliberately does not: name the many members of a channel.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';

export class Titles extends Emitter {
  #api;
  #me;
  #partners = new Map();
  #queue = [];
  #isAsking = false;
  #isStopped = false;

  constructor({ api, me }) {
    super();
    this.#api = api;
    this.#me = me;
  }

  stop() { this.#isStopped = true; }

  of(summary) {
    if (summary.kind === 'direct') return summary.title || this.partnerOf(summary) || 'Direct';
    return summary.title || summary.id;
  }

  /** The other member's sub of a direct conversation, or null while it is not known. */
  partnerOf({ id, kind }) {
    if (kind !== 'direct') return null;
    if (!this.#partners.has(id)) this.#ask(id);
    return this.#partners.get(id);
  }

  /** [{sub, name?}] of a conversation. */
  async members(id) {
    const { members } = await this.#api.members(id);
    return members.map((member) => (typeof member === 'string' ? { sub: member } : member));
  }

  #ask(id) {
    this.#partners.set(id, null);
    this.#queue.push(id);
    this.#next();
  }

  async #next() {
    if (this.#isAsking || this.#isStopped || this.#queue.length === 0) return;
    this.#isAsking = true;
    const id = this.#queue.shift();
    try {
      const members = await this.members(id);
      const other = members.find(({ sub }) => sub !== this.#me.sub);
      this.#partners.set(id, other ? other.name || other.sub : null);
      this.emit('change');
    } catch {
      this.#partners.delete(id); // asked again when it is next shown
    } finally {
      this.#isAsking = false;
      this.#next();
    }
  }
}
