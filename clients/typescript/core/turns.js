/**
 * What an agent's turns look like right now: the journalled steps, and the text that is still being streamed.
 *
 * Invariant: streamed text is always a prefix of one attempt of one step. A delta is applied only where it fits, ordered
 * by (epoch, attempt, offset), offsets in UTF-16 code units: lower is ignored, a gap waits for the snapshot that follows.
 * A durable record (a completed step, an end) always wins over streamed text.
 * Deliberately does not: decide the order of records (timeline.js), nor render.
 */

/** @import { LogRecord } from './timeline.js' */

/** What streams of a step. @typedef {{epoch: number, attempt: number, text: string}} Streamed */

/** @typedef {{turn: number, step: string, epoch: number, attempt: number, offset: number, text: string}} LivePayload */

/**
 * A step as it is shown. `done`: it is journalled, and then has what its record has.
 * @typedef {{step: string, type: string, done: boolean, text: string, attempt?: number, name?: string, input?: any, output?: any}} Step
 */

/**
 * @typedef {object} Turn
 * @property {number} id
 * @property {string | null} agent
 * @property {string} state running, completed, failed, cancelled or superseded
 * @property {string | null} reason
 * @property {Step[]} steps
 * @property {LogRecord | null} answer
 * @property {string | null} startedAt
 * @property {string | null} endedAt
 */

export class Turns {
  /** @type {Map<number, {records: Map<number, LogRecord>, view: Turn | null}>} */
  #durable = new Map();
  /** @type {Map<number, Map<string, Streamed>>} */
  #live = new Map();

  /**
   * Folds a record into its turn. Records of one turn may arrive in any order (older pages come later). Returns the turn's id.
   * @param {LogRecord} record
   */
  record(record) {
    const id = turnOf(record);
    if (id === null) return null;
    const turn = this.#turn(id);
    turn.records.set(record.seq, record);
    turn.view = null;
    if (record.kind === 'step.completed') this.#dropLive(id, record.body.step);
    if (isEnd(record)) this.#live.delete(id);
    return id;
  }

  /**
   * Applies a live event. Returns the turn's id if what is shown has changed, else null.
   * @param {string} event
   * @param {any} payload
   * @returns {number | null}
   */
  live(event, payload) {
    const apply = LIVE.get(event);
    if (!apply || payload?.turn === undefined) return null;
    const turn = this.#turn(payload.turn);
    if (this.#isSettled(turn, payload)) return null;
    const steps = this.#live.get(payload.turn) ?? new Map();
    this.#live.set(payload.turn, steps);
    if (!apply(steps, payload)) return null;
    turn.view = null;
    return payload.turn;
  }

  /**
   * The turn as it is shown, or null.
   * @param {number} id
   */
  get(id) {
    const turn = this.#durable.get(id);
    if (!turn) return null;
    turn.view ??= fold(id, [...turn.records.values()], this.#live.get(id));
    return turn.view;
  }

  /**
   * Turns that stream but have no record here yet (their start lies before what is loaded), except those in `placed`.
   * @param {Set<number>} placed
   */
  liveOnly(placed) {
    return [...this.#live.keys()].filter((id) => !placed.has(id) && this.#durable.get(id)?.records.size === 0).flatMap((id) => this.get(id) ?? []);
  }

  /** @param {number} seq */
  forgetBefore(seq) {
    for (const [id, { records }] of this.#durable) {
      if (records.size > 0 && [...records.keys()].every((known) => known < seq)) this.#durable.delete(id);
    }
  }

  /** Drops streamed text whose continuation was missed; the server sends a snapshot after a join. */
  clear() {
    this.#durable.clear();
    this.#live.clear();
  }

  /** @param {number} id */
  #turn(id) {
    const turn = this.#durable.get(id) ?? { records: new Map(), view: null };
    this.#durable.set(id, turn);
    return turn;
  }

  /** @param {number} id @param {string} step */
  #dropLive(id, step) {
    this.#live.get(id)?.delete(step);
  }

  /** @param {{records: Map<number, LogRecord>}} turn @param {{step?: string}} payload */
  #isSettled(turn, { step }) {
    for (const record of turn.records.values()) {
      if (isEnd(record) || (record.kind === 'step.completed' && record.body.step === step)) return true;
    }
    return false;
  }
}

const ENDS = new Set(['turn.completed', 'turn.failed', 'turn.cancelled', 'turn.superseded']);
/** @param {LogRecord} record */
const isEnd = (record) => ENDS.has(record.kind);

/**
 * The id of the turn that a record is part of; null for all others, the turn's own input included.
 * @param {LogRecord} record
 */
export function turnOf(record) {
  if (record.turn === undefined || record.turn === null) return null;
  const isPart = record.kind !== 'message' || record.sender.startsWith('@agent:');
  return isPart ? record.turn : null;
}

/**
 * Orders attempts: a later epoch first, then a later attempt.
 * @param {{epoch: number, attempt: number}} a
 * @param {{epoch: number, attempt: number}} b
 */
const compare = (a, b) => (a.epoch - b.epoch) || (a.attempt - b.attempt);

/** @param {Map<string, Streamed>} steps @param {LivePayload} payload */
function delta(steps, payload) {
  const known = steps.get(payload.step);
  const order = known ? compare(payload, known) : 1;
  if (order < 0) return false;
  if (known === undefined || order > 0) {
    if (payload.offset !== 0) return false; // its beginning was missed: the snapshot brings it
    steps.set(payload.step, { epoch: payload.epoch, attempt: payload.attempt, text: payload.text });
    return true;
  }
  if (payload.offset !== known.text.length || payload.text === '') return false;
  steps.set(payload.step, { ...known, text: known.text + payload.text });
  return true;
}

/** @param {Map<string, Streamed>} steps @param {LivePayload} payload */
function snapshot(steps, payload) {
  const known = steps.get(payload.step);
  if (known && compare(payload, known) < 0) return false;
  steps.set(payload.step, { epoch: payload.epoch, attempt: payload.attempt, text: payload.text });
  return true;
}

/** @param {Map<string, Streamed>} steps @param {{step: string, epoch?: number, attempt?: number}} payload */
function reset(steps, payload) {
  const known = steps.get(payload.step);
  const epoch = payload.epoch ?? known?.epoch ?? 0;
  const attempt = payload.attempt ?? (known?.attempt ?? 0) + 1;
  if (known && compare({ epoch, attempt }, known) < 0) return false;
  steps.set(payload.step, { epoch, attempt, text: '' });
  return true;
}

/** The turn has another owner; what the former one streamed stays until it is retracted or replaced. */
const resumed = () => true;

/** @type {Map<string, (steps: Map<string, Streamed>, payload: any) => boolean>} */
const LIVE = new Map([['delta', delta], ['turn.snapshot', snapshot], ['step.reset', reset], ['turn.resumed', resumed]]);

/**
 * @param {number} id
 * @param {LogRecord[]} records
 * @param {Map<string, Streamed>} [live]
 */
function fold(id, records, live) {
  /** @type {Turn} */
  const turn = { id, agent: null, state: 'running', reason: null, steps: [], answer: null, startedAt: null, endedAt: null };
  for (const record of records.sort((a, b) => a.seq - b.seq)) {
    if (record.kind === 'turn.started') {
      turn.agent = record.body.agent ?? null;
      turn.startedAt = record.at;
    } else if (record.kind === 'step.completed') {
      turn.steps.push({ ...record.body, done: true, text: textOf(record.body) });
    } else if (record.kind === 'message') {
      turn.answer = record;
      turn.agent ??= record.sender.slice('@agent:'.length);
    } else if (isEnd(record)) {
      turn.state = record.kind.slice('turn.'.length);
      turn.reason = record.body?.reason ?? null;
      turn.endedAt = record.at;
    }
  }
  for (const [step, { text, attempt }] of live ?? []) {
    turn.steps.push({ step, type: stepType(step), done: false, text, attempt });
  }
  return turn;
}

/**
 * `m<n>` is a model call, `m<n>.t<i>` a tool call.
 * @param {string} step
 */
const stepType = (step) => (/\.t\d+$/.test(step) ? 'tool' : 'model');

/**
 * The words of a completed model step, whether its output is a string or an object with `text`.
 * @param {{type?: string, output?: any}} step
 */
function textOf({ type, output }) {
  if (type !== 'model') return '';
  if (typeof output === 'string') return output;
  return typeof output?.text === 'string' ? output.text : '';
}
