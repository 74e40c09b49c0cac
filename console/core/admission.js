/**
 * Joining by writing: whoever writes into a conversation that they only look into becomes a member first.
 *
 * Invariant: a message never waits for more than one answer to a join, and a join that was refused for good is not asked
 * for again while the conversation is open.
 * Deliberately does not: decide who may join (the server does), nor show anything.
 */
import { isUnknownOutcome } from '../../clients/typescript/core/errors.js';

export class Admission {
  #inbox;
  #join;
  #id;
  #isRefused = false;

  /** `join(id)`: resolves once I am a member, else rejects with a Refusal. */
  constructor({ id, inbox, join }) {
    this.#id = id;
    this.#inbox = inbox;
    this.#join = join;
  }

  /** True, false, or null while my list is not known yet. */
  get isMember() { return this.#inbox.isLoaded ? this.#inbox.get(this.#id) !== null : null; }

  /** True if the next message will make me a member. */
  get joinsByWriting() { return this.isMember === false && !this.#isRefused; }

  /** Before a message: null if there is nothing to wait for, else a promise that resolves whatever the answer is. */
  beforeSending() {
    if (this.#isRefused || this.#inbox.get(this.#id) !== null) return null;
    return this.#ask();
  }

  async #ask() {
    try {
      await this.#join(this.#id);
    } catch (refusal) {
      // What may go better next time is asked for again with the next message.
      this.#isRefused = !refusal.retry && !isUnknownOutcome(refusal);
    }
  }
}
