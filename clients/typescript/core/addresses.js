/**
 * The addresses of one cluster's nodes, of which one is used at a time.
 *
 * Invariant: after each loss of a connection the next one is tried, round and round.
 * Deliberately does not: know which node owns what; any of them takes everything.
 */

/** Addresses that may be given. */
const MAX = 16;

export class Addresses {
  /** @type {string[]} */
  #all;
  #index = 0;

  /** @param {string | string[]} given */
  constructor(given) {
    const all = [given].flat();
    if (all.length === 0 || all.length > MAX) throw new TypeError(`url: ${all.length} addresses; 1 to ${MAX} are allowed`);
    for (const url of all) {
      if (!/^https?:\/\//.test(url)) throw new TypeError(`url: "${url}" is not an http: or https: address`);
    }
    this.#all = all.map((url) => url.replace(/\/+$/, ''));
  }

  get current() { return this.#all[this.#index]; }

  /** The last connection is over. */
  next() { this.#index = (this.#index + 1) % this.#all.length; }

  /** Where phoenix.js finds a socket at the first address. */
  get socket() { return socketOf(this.#all[0]); }

  /** The same at the current one. */
  get currentSocket() { return socketOf(this.current); }

  /** That socket's URL, at the current address. @param {string} url */
  at(url) { return this.currentSocket + url.slice(this.socket.length); }
}

/** @param {string} url */
const socketOf = (url) => `${url.replace(/^http/, 'ws')}/socket`;
