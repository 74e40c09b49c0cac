/**
 * The durable records of one conversation that this client holds, and the position it resumes from.
 *
 * Invariant: `records` ascends strictly by seq; a record at or below `position` is never applied again; `position` is a
 * seq of `log` and only moves forward within it. Holes between seqs are normal and never waited for.
 * Deliberately does not: talk to the server, nor keep live events (turns.js does).
 */

/**
 * A durable record.
 * @typedef {object} LogRecord
 * @property {number} seq
 * @property {string} kind
 * @property {string} conversation
 * @property {string} sender
 * @property {string} [name]
 * @property {string} [client_msg_id]
 * @property {string} at
 * @property {number} epoch
 * @property {number} [turn]
 * @property {any} body
 */

/**
 * A page of history, ascending.
 * @typedef {{messages: LogRecord[], head_seq: number, log: string, more: boolean}} Page
 */

/** What a join says about where to begin. @typedef {{after?: number, log?: string}} JoinParams */

export class Timeline {
  /** @type {LogRecord[]} */
  records = [];
  /** The last seq known to be covered; null before the first page. @type {number | null} */
  position = null;
  /** Which history `position` belongs to; null if only the server knows. @type {string | null} */
  log = null;
  /** True if the server has older records than the first one here. */
  hasOlder = false;

  /**
   * Starts over from the latest page: the first load, or after a resync.
   * @param {Page} page
   */
  replace({ messages, head_seq: headSeq, log, more }) {
    this.records = [...messages];
    this.position = Math.max(headSeq, this.records.at(-1)?.seq ?? 0);
    this.log = log;
    this.hasOlder = Boolean(more);
  }

  /**
   * Begins at a position that is known from elsewhere, without any records. Without a log the join's reply names it.
   * @param {{after: number, log?: string | null}} position
   */
  beginAt({ after, log = null }) {
    this.records = [];
    this.position = after;
    this.log = log;
    this.hasOlder = after > 0;
  }

  /** The position is of no use any more. */
  forget() {
    this.position = null;
    this.log = null;
  }

  /**
   * Puts an older page in front. False if it belongs to another log: then only a resync helps.
   * @param {Page} page
   */
  prepend({ messages, log, more }) {
    if (log !== this.log) return false;
    const first = this.records[0]?.seq ?? Infinity;
    this.records = [...messages.filter((record) => record.seq < first), ...this.records];
    this.hasOlder = Boolean(more);
    return true;
  }

  /**
   * Applies a live or caught-up record. False if it was here already.
   * @param {LogRecord} record
   */
  apply(record) {
    if (record.seq <= (this.position ?? 0)) return false;
    this.records.push(record);
    this.position = record.seq;
    return true;
  }

  /**
   * Catch-up reached `seq`, whether or not a record carries that number.
   * @param {number} seq
   */
  advance(seq) {
    if (Number.isSafeInteger(seq) && seq > (this.position ?? 0)) this.position = seq;
  }

  /**
   * What a join says: everything after this, please. Without a position: from the head on.
   * @returns {JoinParams}
   */
  joinParams() {
    if (this.position === null) return {};
    return this.log === null ? { after: this.position } : { after: this.position, log: this.log };
  }

  /**
   * Forgets the oldest records beyond `limit`; the server still has them.
   * @param {number} limit
   */
  trim(limit) {
    if (this.records.length <= limit) return false;
    this.records = this.records.slice(-limit);
    this.hasOlder = true;
    return true;
  }
}

/**
 * A durable record carries a seq, a kind and the epoch it was written under; no live event does.
 * @param {any} payload
 * @returns {payload is LogRecord}
 */
export const isRecord = (payload) =>
  Number.isSafeInteger(payload?.seq) && typeof payload.kind === 'string' && payload.epoch !== undefined;
