/**
 * The WebSocket class that phoenix.js is given. It asks for the token before each connection, and offers it as a subprotocol.
 *
 * Invariant: phoenix.js hears of each connection at most one opening and exactly one close, never with code 1000 unless it
 * closed by itself: up to 1.8.15 it does not come back after that.
 * Deliberately does not: decide when to connect again.
 */

/**
 * What is used of a WebSocket, the platform's or npm `ws`.
 * @typedef {object} WebSocketLike
 * @property {number} readyState
 * @property {string} binaryType
 * @property {number} bufferedAmount
 * @property {((event: any) => void) | null} onopen
 * @property {((event: any) => void) | null} onmessage
 * @property {((event: any) => void) | null} onerror
 * @property {((event: any) => void) | null} onclose
 * @property {(data: string) => void} send
 * @property {(code?: number, reason?: string) => void} close
 */

/** @typedef {new (url: string, protocols?: string | string[]) => WebSocketLike} WebSocketClass */

const CONNECTING = 0;
const OPEN = 1;
const CLOSING = 2;
const CLOSED = 3;

/** A code of this client's own: given up by `abandon`, or never opened. */
const GIVEN_UP = 4000;

/**
 * `address(url)`: where phoenix.js's URL is found now. `authorize()`: resolves to the subprotocols, or rejects if there is to be no connection now. `opening(transport)` is called
 * with each new one, `closed(code, hasBeenOpen)` before phoenix.js hears of its end, and `ended()` after that.
 * @param {{
 *   WebSocket: WebSocketClass, address: (url: string) => string, authorize: () => Promise<string[]>,
 *   opening: (transport: {abandon: () => void}) => void, closed: (code: number, hasBeenOpen: boolean) => void, ended: () => void,
 * }} options
 * @returns {new (url: string) => WebSocketLike}
 */
export function transportClass({ WebSocket, address, authorize, opening, closed, ended }) {
  return class Transport {
    /** @type {WebSocketLike | null} */
    #inner = null;
    #isClosedByPhoenix = false;
    readyState = CONNECTING;
    binaryType = 'arraybuffer';
    /** @type {((event: any) => void) | null} */
    onopen = null;
    /** @type {((event: any) => void) | null} */
    onmessage = null;
    /** @type {((event: any) => void) | null} */
    onerror = null;
    /** @type {((event: any) => void) | null} */
    onclose = null;

    /** @param {string} url */
    constructor(url) {
      opening(this);
      this.#open(url);
    }

    get bufferedAmount() { return this.#inner?.bufferedAmount ?? 0; }

    /** @param {string} data */
    send(data) { this.#inner?.send(data); }

    /** @param {number} [code] @param {string} [reason] */
    close(code, reason) {
      if (this.readyState >= CLOSING) return;
      this.#isClosedByPhoenix = true;
      if (this.#inner === null) return this.#end(GIVEN_UP, false);
      this.readyState = CLOSING;
      if (code === undefined) this.#inner.close();
      else this.#inner.close(code, reason);
    }

    /** Leaves this connection; phoenix.js takes it for lost, and comes back. */
    abandon() {
      const inner = this.#inner;
      const hasBeenOpen = this.readyState === OPEN;
      this.#end(GIVEN_UP, hasBeenOpen);
      inner?.close(1000);
    }

    /** @param {string} url */
    async #open(url) {
      /** @type {string[]} */
      let protocols;
      try {
        protocols = await authorize();
      } catch {
        return this.#end(GIVEN_UP, false);
      }
      if (this.readyState !== CONNECTING) return;
      const inner = new WebSocket(address(url), protocols);
      this.#inner = inner;
      inner.binaryType = this.binaryType;
      let hasBeenOpen = false;
      inner.onopen = (event) => {
        if (this.readyState !== CONNECTING) return;
        hasBeenOpen = true;
        this.readyState = OPEN;
        this.onopen?.(event);
      };
      inner.onmessage = (event) => { if (this.readyState === OPEN) this.onmessage?.(event); };
      inner.onerror = (event) => { if (this.readyState !== CLOSED) this.onerror?.(event); };
      inner.onclose = ({ code }) => this.#end(code === 1000 && !this.#isClosedByPhoenix ? GIVEN_UP : code, hasBeenOpen);
    }

    /** @param {number} code @param {boolean} hasBeenOpen */
    #end(code, hasBeenOpen) {
      if (this.readyState === CLOSED) return;
      this.readyState = CLOSED;
      closed(code, hasBeenOpen);
      this.onclose?.({ code, reason: '', wasClean: code === 1000 });
      ended();
    }
  };
}
