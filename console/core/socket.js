/**
 * One WebSocket that speaks Phoenix Channels V2: frames, heartbeat, reconnection. Channels live in channel.js.
 *
 * Invariant: at most one transport is open; events of a transport that was given up are ignored; every loss leads to
 * exactly one scheduled attempt, no sooner than the server's directive allows, until `close()` or a refused token.
 * Deliberately does not: resume anything (each channel rejoins with its own position), nor queue pushes (outbox.js does).
 */
import { Emitter } from '../../clients/typescript/core/emitter.js';
import { Channel } from './channel.js';
import { Reconnection } from '../../clients/typescript/core/reconnection.js';

/**
 * Emits `state` ({state, retryAt, reason}) with state one of
 * idle · connecting · open · waiting (until `retryAt`) · closed (`reason`: 'unauthenticated' or null).
 */
export class Socket extends Emitter {
  #options;
  #transport = null;
  #generation = 0;
  #timer = null;
  #heartbeat = null;
  #heartbeatDeadline = null;
  #ref = 0;
  #unopened = 0;
  #channels = new Map();

  state = 'idle';
  retryAt = null;
  reason = null;
  /** When to come back after a loss. */
  reconnection;

  /**
   * `url()`: the endpoint of now, e.g. ws://host/socket/websocket?vsn=2.0.0. `onLost()`: a connection, or the try at one, is over.
   * `authorize({failedToOpen})`: resolves to the subprotocols to offer; rejects with a Refusal
   * (code `unauthenticated` ends the socket, a directive sets the next delay).
   */
  constructor({ url, onLost = () => {}, authorize, WebSocket, clock, random, heartbeatMs = 20_000, replyTimeoutMs = 10_000 }) {
    super();
    this.#options = { url, onLost, authorize, WebSocket, clock, random, heartbeatMs, replyTimeoutMs };
    this.reconnection = new Reconnection(random);
  }

  get clock() { return this.#options.clock; }
  get random() { return this.#options.random; }
  get replyTimeoutMs() { return this.#options.replyTimeoutMs; }
  get isOpen() { return this.state === 'open'; }

  connect() {
    if (this.state === 'connecting' || this.state === 'open') return;
    this.#cancelTimer();
    this.#open();
  }

  /** A person asked, or the network came back: attempt now instead of waiting. */
  retryNow() {
    if (this.state === 'waiting') this.connect();
  }

  close(reason = null) {
    this.#cancelTimer();
    this.reason = reason;
    this.state = 'closed';
    this.#drop(1000);
    this.#announce();
  }

  /** The server asked for a reconnection: leave now, come back after its delay, spread over its jitter. */
  reconnectAfter(afterMs) {
    if (this.state !== 'open') return;
    this.reconnection.askedToReturn(afterMs);
    this.#lost(1000);
  }

  /** The channel of a topic; `params()` is evaluated at every join and rejoin. */
  channel(topic, params) {
    const channel = new Channel(this, topic, params);
    this.#channels.set(topic, channel);
    return channel;
  }

  remove(channel) {
    if (this.#channels.get(channel.topic) === channel) this.#channels.delete(channel.topic);
  }

  nextRef() { return String(++this.#ref); }

  /** Sends a frame now, or returns false: nothing is queued here. */
  send(joinRef, ref, topic, event, payload) {
    if (!this.isOpen || this.#transport.readyState !== 1) return false;
    this.#transport.send(JSON.stringify([joinRef, ref, topic, event, payload]));
    return true;
  }

  async #open() {
    const generation = ++this.#generation;
    const { url, authorize, WebSocket } = this.#options;
    this.#enter('connecting');
    let protocols;
    try {
      protocols = await authorize({ failedToOpen: this.#unopened > 0 });
    } catch (error) {
      if (generation !== this.#generation) return;
      if (error?.code === 'unauthenticated') return this.close('unauthenticated');
      if (error?.retry) this.reconnection.refused(error.retry.after_ms);
      return this.#lost();
    }
    if (generation !== this.#generation) return;
    const transport = new WebSocket(url(), protocols);
    this.#transport = transport;
    const current = (handle) => (event) => { if (this.#transport === transport) handle(event); };
    transport.onopen = current(() => this.#opened());
    transport.onmessage = current(({ data }) => this.#received(data));
    transport.onclose = current(({ code }) => this.#lost(null, code));
    transport.onerror = () => {}; // a close always follows
  }

  #opened() {
    this.#unopened = 0;
    this.#enter('open');
    this.#scheduleHeartbeat();
    for (const channel of this.#channels.values()) channel.socketOpened();
  }

  #received(data) {
    let frame;
    try {
      frame = JSON.parse(data);
    } catch {
      return;
    }
    if (!Array.isArray(frame) || frame.length !== 5) return;
    const [joinRef, ref, topic, event, payload] = frame;
    if (topic === 'phoenix') {
      if (event === 'phx_reply' && ref === this.#heartbeat?.ref) this.#scheduleHeartbeat();
      if (event === 'reconnect') this.reconnectAfter(payload?.after_ms ?? 0);
      return;
    }
    this.#channels.get(topic)?.received(joinRef, ref, event, payload ?? {});
  }

  #scheduleHeartbeat() {
    const { clock, heartbeatMs, replyTimeoutMs } = this.#options;
    this.#stopHeartbeat();
    const timer = clock.setTimeout(() => {
      const ref = this.nextRef();
      this.#heartbeat = { ref };
      this.send(null, ref, 'phoenix', 'heartbeat', {});
      this.#heartbeatDeadline = clock.setTimeout(() => this.#lost(4000), replyTimeoutMs);
    }, heartbeatMs);
    this.#heartbeat = { timer };
  }

  #stopHeartbeat() {
    this.clock.clearTimeout(this.#heartbeat?.timer);
    this.clock.clearTimeout(this.#heartbeatDeadline);
    this.#heartbeat = this.#heartbeatDeadline = null;
  }

  /** `close`: the code to close with, if the far end did not; `closedWith`: the far end's code. */
  #lost(close = null, closedWith = null) {
    if (this.state === 'waiting' || this.state === 'closed') return;
    if (this.state === 'connecting') this.#unopened += 1;
    this.#options.onLost();
    const delayMs = this.reconnection.nextDelay(closedWith);
    this.retryAt = this.clock.now() + delayMs;
    this.#timer = this.clock.setTimeout(() => this.connect(), delayMs);
    // The state first: whoever hears of a lost channel must not find an open socket.
    this.state = 'waiting';
    this.#drop(close);
    this.#announce();
  }

  #drop(code) {
    this.#generation += 1;
    this.#stopHeartbeat();
    const transport = this.#transport;
    this.#transport = null;
    if (transport && code !== null) transport.close(code);
    for (const channel of this.#channels.values()) channel.socketLost();
  }

  #cancelTimer() {
    this.clock.clearTimeout(this.#timer);
    this.#timer = null;
    this.retryAt = null;
  }

  #enter(state) {
    this.state = state;
    this.#announce();
  }

  #announce() {
    const { state } = this;
    this.emit('state', { state, retryAt: this.retryAt, reason: this.reason });
  }
}
