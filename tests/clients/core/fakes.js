/**
 * What the core is given in unit tests: a clock that moves only when told, a WebSocket whose far end is the test,
 * and a storage. No test here waits for real time.
 */
export class FakeClock {
  #now = 1_000_000;
  #timers = [];

  now = () => this.#now;

  setTimeout = (callback, delayMs) => {
    const timer = { at: this.#now + delayMs, callback };
    this.#timers.push(timer);
    return timer;
  };

  clearTimeout = (timer) => { this.#timers = this.#timers.filter((other) => other !== timer); };

  /** Moves on, running what falls due in order, with pending promises settled in between. */
  async advance(durationMs) {
    const end = this.#now + durationMs;
    await settle();
    for (;;) {
      const next = this.#timers.filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.#now = next.at;
      this.clearTimeout(next);
      next.callback();
      await settle();
    }
    this.#now = end;
  }

  get pending() { return this.#timers.length; }
}

/** Lets every promise that can settle without time do so. */
export const settle = () => new Promise((resolve) => setImmediate(resolve));

/** A WebSocket class whose instances are driven by the test. */
export function fakeWebSockets() {
  const opened = [];
  class FakeWebSocket {
    readyState = 0;
    sent = [];

    constructor(url, protocols) {
      this.url = url;
      this.protocols = protocols;
      opened.push(this);
    }

    send(text) { this.sent.push(JSON.parse(text)); }

    close() { this.readyState = 3; }

    // The far end.
    open() {
      this.readyState = 1;
      this.onopen({});
    }

    lose(code = 1006) {
      this.readyState = 3;
      this.onclose({ code });
    }

    push(joinRef, ref, topic, event, payload) { this.onmessage({ data: JSON.stringify([joinRef, ref, topic, event, payload]) }); }

    /** Answers the last unanswered frame with `event`. */
    reply(event, response, status = 'ok') {
      const [joinRef, ref, topic] = this.last(event);
      this.push(joinRef, ref, topic, 'phx_reply', { status, response });
    }

    last(event) {
      const frame = this.sent.findLast((sent) => sent[3] === event);
      if (!frame) throw new Error(`no ${event} was sent`);
      return frame;
    }

    count(event) { return this.sent.filter((frame) => frame[3] === event).length; }
  }
  return { FakeWebSocket, opened, get latest() { return opened.at(-1); } };
}

export function fakeStorage() {
  const items = new Map();
  return {
    items,
    getItem: (key) => items.get(key) ?? null,
    setItem: (key, value) => items.set(key, value),
    removeItem: (key) => items.delete(key),
  };
}

export const never = () => 0;

export function counter(prefix) {
  let count = 0;
  return () => `${prefix}${++count}`;
}

export const message = (seq, text, more = {}) => ({
  seq, kind: 'message', conversation: 'c', sender: 'bob', name: 'Bob', at: '2026-11-30T10:00:00.000Z', epoch: 1, body: { text }, ...more,
});
