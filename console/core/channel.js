/**
 * One topic on a socket: join, push, reply, rejoin.
 *
 * Invariant: only frames of the current join reach listeners (a frame with another join_ref is a ghost of an earlier
 * join); every push settles exactly once: with its reply, a timeout, or the loss of the connection.
 * Deliberately does not: know what a record is, nor repeat a push: an unanswered push has an unknown outcome.
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';
import { Refusal, disconnected, timedOut } from '../../clients/typescript/core/errors.js';
import { spread } from '../../clients/typescript/core/directive.js';
import { reconnectDelay } from '../../clients/typescript/core/reconnection.js';

/**
 * States: closed · joining · joined · errored (will rejoin) · refused (a retry cannot mend it).
 * Emits `state` (state), `joined` (the reply), `refused` (Refusal), `event` ({event, payload}).
 */
export class Channel extends Emitter {
  #socket;
  #params;
  #joinRef = null;
  #pending = new Map();
  #rejoinTimer = null;
  #attempt = 0;
  #wanted = false;

  state = 'closed';

  constructor(socket, topic, params) {
    super();
    this.#socket = socket;
    this.topic = topic;
    this.#params = params;
  }

  join() {
    this.#wanted = true;
    if (this.#socket.isOpen) this.#sendJoin();
  }

  /** Joins again with the parameters of now; the server replaces the earlier join. */
  rejoin() {
    if (this.#wanted && this.#socket.isOpen) this.#sendJoin();
  }

  leave() {
    this.#wanted = false;
    this.#cancelRejoin();
    if (this.#joinRef) this.#socket.send(this.#joinRef, this.#socket.nextRef(), this.topic, 'phx_leave', {});
    this.#joinRef = null;
    this.#abandon();
    this.#enter('closed');
    this.#socket.remove(this);
  }

  /** Resolves with the reply's response; rejects with a Refusal. Needs a joined channel. */
  push(event, payload) {
    if (this.state !== 'joined') return Promise.reject(disconnected('There is no connection just now.'));
    return this.#request(event, payload);
  }

  /** Fire and forget, for hints such as typing. */
  hint(event, payload) {
    if (this.state === 'joined') this.#request(event, payload).catch(() => {});
  }

  // Called by the socket.

  socketOpened() {
    this.#attempt = 0;
    if (this.#wanted) this.#sendJoin();
  }

  socketLost() {
    this.#cancelRejoin();
    this.#joinRef = null;
    this.#abandon();
    if (this.state !== 'closed' && this.state !== 'refused') this.#enter('errored');
  }

  received(joinRef, ref, event, payload) {
    if (joinRef !== null && joinRef !== this.#joinRef) return;
    if (event === 'phx_reply') return this.#replied(ref, payload);
    if (event === 'phx_error') return this.#scheduleRejoin();
    if (event === 'phx_close') return this.#closedByServer();
    if (event === 'reconnect') return this.#socket.reconnectAfter(payload.after_ms ?? 0);
    // Broadcasts carry no join_ref: one that overtakes the join's reply belongs to an earlier join, and the catch-up brings it again.
    if (this.state === 'joined') this.emit('event', { event, payload });
  }

  #sendJoin() {
    this.#cancelRejoin();
    this.#abandon();
    this.#joinRef = this.#socket.nextRef();
    const joinRef = this.#joinRef;
    this.#enter('joining');
    this.#request('phx_join', this.#params(), joinRef).then(
      (reply) => { if (joinRef === this.#joinRef) this.#joined(reply); },
      (error) => { if (joinRef === this.#joinRef) this.#joinFailed(error); },
    );
  }

  #joined(reply) {
    this.#attempt = 0;
    this.#socket.reconnection.confirmed(reply);
    this.#enter('joined');
    this.emit('joined', reply);
  }

  #joinFailed(error) {
    if (error.code === 'timeout' || error.retry) return this.#scheduleRejoin(error.retry?.after_ms);
    if (error.code === 'disconnected') return;
    this.#wanted = false;
    this.#joinRef = null;
    this.#enter('refused');
    this.emit('refused', error);
  }

  #scheduleRejoin(afterMs = null) {
    if (!this.#wanted) return;
    this.#cancelRejoin();
    this.#abandon();
    const { clock, random } = this.#socket;
    const delayMs = afterMs === null ? reconnectDelay(this.#attempt, 0, random) : spread(afterMs, random);
    this.#attempt += 1;
    this.#rejoinTimer = clock.setTimeout(() => this.rejoin(), delayMs);
    this.#enter('errored');
  }

  /** `phx_close` of the current join: the server ended it for good (a removed member, say). */
  #closedByServer() {
    this.#wanted = false;
    this.#joinRef = null;
    this.#abandon();
    this.#enter('refused');
    this.emit('refused', new Refusal({ code: 'closed', detail: 'You are no longer part of this conversation.' }));
  }

  #request(event, payload, ref = this.#socket.nextRef()) {
    return new Promise((resolve, reject) => {
      const { clock, replyTimeoutMs } = this.#socket;
      const timer = clock.setTimeout(() => {
        this.#pending.delete(ref);
        reject(timedOut());
      }, replyTimeoutMs);
      this.#pending.set(ref, { resolve, reject, timer });
      if (!this.#socket.send(this.#joinRef, ref, this.topic, event, payload)) this.#settle(ref)?.reject(disconnected());
    });
  }

  #replied(ref, { status, response }) {
    const request = this.#settle(ref);
    if (status === 'ok') return request?.resolve(response ?? {});
    request?.reject(new Refusal({ code: 'refused', ...response }));
  }

  #settle(ref) {
    const request = this.#pending.get(ref);
    this.#pending.delete(ref);
    this.#socket.clock.clearTimeout(request?.timer);
    return request;
  }

  #abandon() {
    for (const ref of [...this.#pending.keys()]) this.#settle(ref).reject(disconnected());
  }

  #cancelRejoin() {
    this.#socket.clock.clearTimeout(this.#rejoinTimer);
    this.#rejoinTimer = null;
  }

  #enter(state) {
    if (this.state === state) return;
    this.state = state;
    this.emit('state', state);
  }
}
