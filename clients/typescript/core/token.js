/**
 * What a client needs to know of its own token.
 *
 * Invariant: nothing here decides what a token allows; the server verifies and decides.
 * Deliberately does not: verify signatures. The payload is read only to know whose token it is.
 */

/**
 * The bearer token of now. `isRefused`: the server does not accept the one that was given last; the same again ends it.
 * @typedef {(context: {isRefused: boolean}) => string | Promise<string>} TokenSource
 */

/**
 * The payload of a JWT, unverified, or null.
 * @param {string} token
 * @returns {{sub?: string, name?: string, exp?: number, [claim: string]: unknown} | null}
 */
export function claims(token) {
  try {
    const payload = token.split('.')[1].replace(/-/g, '+').replace(/_/g, '/');
    const bytes = Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    return null;
  }
}

/**
 * The WebSocket's way to hand a token over without putting it into a URL (phoenix.js 1.8's `authToken`).
 * @param {string} token
 */
export const tokenProtocols = (token) => ['phoenix', `base64url.bearer.phx.${btoa(token).replace(/=+$/, '')}`];
