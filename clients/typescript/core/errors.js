/**
 * A refusal as the server words it: a stable `code`, a `detail` for people, and a directive where a retry can help.
 *
 * Invariant: `retry` is present only if the server sent one (or the network, not the server, failed);
 * without it nothing may be retried.
 * Deliberately does not: guess from an HTTP status whether a retry would help.
 */

/** Send the same again, not before `after_ms`; give up `budget_ms` after the first attempt. @typedef {{after_ms: number, budget_ms: number}} Directive */

export class Refusal extends Error {
  /** Stable; decide by it. @type {string} */
  code;
  /** For people. @type {string} */
  detail;
  /** The server's directive; null if a retry cannot help. @type {Directive | null} */
  retry;
  /** The HTTP status; 0 for what no HTTP call has said. @type {number} */
  status;

  /** @param {{code: string, detail?: string, retry?: any, status?: number}} refusal */
  constructor({ code, detail, retry = null, status = 0 }) {
    super(detail || code);
    this.name = 'Refusal';
    this.code = code;
    this.detail = code === 'too_large' ? tooLarge(detail) : detail || describe(code);
    this.retry = parseDirective(retry);
    this.status = status;
  }
}

/** The connection was lost before an answer came: the outcome is unknown, so a repeat needs the same key. */
export const disconnected = (detail = 'The connection was lost before the server answered.') =>
  new Refusal({ code: 'disconnected', detail });

/** The server did not answer in time: also an unknown outcome. */
export const timedOut = () => new Refusal({ code: 'timeout', detail: 'The server did not answer in time.' });

/**
 * True if the request may or may not have been carried out.
 * @param {any} error
 */
export const isUnknownOutcome = (error) => error?.code === 'disconnected' || error?.code === 'timeout';

/**
 * A directive with both numbers valid, else null.
 * @param {any} retry
 * @returns {Directive | null}
 */
export function parseDirective(retry) {
  if (!retry || !Number.isFinite(retry.after_ms)) return null;
  const afterMs = Math.max(0, retry.after_ms);
  const budgetMs = Number.isFinite(retry.budget_ms) ? Math.max(afterMs, retry.budget_ms) : afterMs;
  return { after_ms: afterMs, budget_ms: budgetMs };
}

/**
 * The server counts in bytes ("is 70013 bytes long; at most 65536 are allowed"); people do not.
 * @param {string} [detail]
 */
function tooLarge(detail = '') {
  const [size, limit] = [...detail.matchAll(/\d+/g)].map(([digits]) => Number(digits));
  if (limit === undefined || size <= limit) return detail || WORDS.too_large;
  const kilobytes = (/** @type {number} */ bytes) => Math.ceil(bytes / 1024);
  return `Too long: ${kilobytes(size)} KB of at most ${Math.floor(limit / 1024)} KB.`;
}

/** @type {Record<string, string>} */
const WORDS = {
  unauthenticated: 'The token is not valid, or no longer.',
  forbidden: 'This token does not allow that.',
  not_found: 'There is no such conversation.',
  too_large: 'That is too large to send.',
  rate_limited: 'Too many messages at once.',
  conversation_unavailable: 'This conversation is not available just now.',
  overloaded: 'The server has too much to do just now.',
  store_unavailable: 'The server cannot reach its store just now.',
  draining: 'The server is about to restart.',
  idempotency_key_reused: 'Another message was already sent under the same key.',
};

/** @param {string} code */
const describe = (code) => WORDS[code] ?? `The server refused (${code}).`;
