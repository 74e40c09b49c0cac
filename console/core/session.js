/**
 * Who this tab is: a token, kept in the storage it is given (the tab's own, so that two tabs can be two people).
 *
 * Invariant: a token is used until it expires or is refused; a development login is renewed under the same name without
 * asking again; a pasted token never is.
 * Deliberately does not: verify signatures; the server does. The payload is read only to greet by name.
 */
import { claims } from '../../clients/typescript/core/token.js';

/** A grant's pattern: `*` is any characters, `?` is one. */
function isLike(pattern, text) {
  const parts = [...pattern].map((c) => (c === '*' ? '.*' : c === '?' ? '.' : c.replace(/[\\^$.|+()[\]{}]/, '\\$&')));
  return new RegExp(`^${parts.join('')}$`, 'us').test(text);
}

const KEY = 'conch.session';
const RENEW_BEFORE_MS = 30_000;

export class Session {
  #storage;
  #clock;
  #current;

  constructor({ storage, clock }) {
    this.#storage = storage;
    this.#clock = clock;
    this.#current = this.#restore();
  }

  get isSignedIn() { return this.#current !== null; }
  get token() { return this.#current?.token ?? ''; }
  get sub() { return this.#current?.sub ?? ''; }
  get name() { return this.#current?.name ?? this.sub; }
  /** The name to renew a development login with, or null for a pasted token. */
  get loginName() { return this.#current?.loginName ?? null; }

  /** True if the token has run out; one that can be renewed counts as run out a little earlier. */
  get isStale() {
    const expiresAt = this.#current?.expiresAt;
    const marginMs = this.loginName === null ? 0 : RENEW_BEFORE_MS;
    return Number.isFinite(expiresAt) && expiresAt - marginMs <= this.#clock.now();
  }

  /** Whether the token grants a permission in a conversation. Memberships, which the server knows, give what is not asked here. */
  may(permission, conversation) {
    const grants = claims(this.token)?.conch ?? [];
    return grants.some(({ conversations, can }) => can.includes(permission) && isLike(conversations, conversation));
  }

  /** From a development login's answer. */
  accept({ token, sub, expires_at: expiresAt }, loginName) {
    this.#keep({ token, sub, name: claims(token)?.name ?? loginName, expiresAt: Date.parse(expiresAt), loginName });
  }

  /** From a pasted token. False if it is not a JWT with a subject. */
  paste(token) {
    const payload = claims(token.trim());
    if (!payload?.sub) return false;
    this.#keep({ token: token.trim(), sub: payload.sub, name: payload.name, expiresAt: payload.exp * 1000, loginName: null });
    return true;
  }

  end() {
    this.#current = null;
    this.#storage.removeItem(KEY);
  }

  #keep(session) {
    this.#current = session;
    this.#storage.setItem(KEY, JSON.stringify(session));
  }

  #restore() {
    try {
      const saved = JSON.parse(this.#storage.getItem(KEY));
      return saved?.token && saved.sub ? saved : null;
    } catch {
      return null;
    }
  }
}
