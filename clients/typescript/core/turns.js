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
 * A step as it is shown, in the order in which it happened. `type`: model, tool, own (a worker's), `await` (somebody is asked) or
 * `takeover` (another owner goes on, in `epoch`; a tool's is that of who wrote last that it is about to call). `done`: it is journalled, and then has what its record has. `attempt`: of a tool,
 * how often it was written down that the call is about to be made. `calledAgain`: the epoch of an owner that made it again, under the
 * same key, without writing that down, for the tool is declared idempotent: it has the result of a call that another one began.
 * @typedef {{step: string, type: string, done: boolean, text: string, attempt?: number, calledAgain?: number, name?: string, input?: any, output?: any, status?: string, ask?: Ask, epoch?: number}} Step
 */

/**
 * What a turn waits for. `answer`: null while it is open; `closed`: its turn ended before anybody answered.
 * @typedef {{id: string, prompt: string | null, schema: any, expiresAt: string, answer: {payload?: any, expired?: boolean, closed?: boolean, by: string | null} | null}} Ask
 */

/**
 * @typedef {object} Turn
 * @property {number} id
 * @property {string | null} agent
 * @property {string} state running, waiting, completed, failed, cancelled or superseded
 * @property {string | null} reason
 * @property {string | null} detail of a failure, in words
 * @property {'keep' | 'rollback' | null} mode of a cancelled one
 * @property {number | null} into the turn that this input joined, of a superseded one
 * @property {number | null} epoch of the owner that runs it, or that wrote last
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
  /** The turns that were rolled back: what they were to replace counts again. @type {Set<number>} */
  #rolledBack = new Set();
  /** The epoch of the owner that said last that it goes on with a turn. @type {Map<number, number>} */
  #resumed = new Map();

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
    if (record.kind === 'turn.cancelled' && record.body.mode === 'rollback') this.#rollBack(id);
    if (record.kind === 'step.completed') this.#dropLive(id, record.body.step);
    if (isEnd(record)) {
      this.#live.delete(id);
      this.#resumed.delete(id);
    }
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
    if (event === 'turn.resumed') this.#resumed.set(payload.turn, Math.max(payload.epoch ?? 0, this.#resumed.get(payload.turn) ?? 0));
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
    turn.view ??= fold(id, this.#counted(turn.records), this.#live.get(id), this.#resumed.get(id) ?? 0);
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
    for (const id of this.#rolledBack) if (id < seq) this.#rolledBack.delete(id);
  }

  /** Drops streamed text whose continuation was missed; the server sends a snapshot after a join. */
  clear() {
    this.#durable.clear();
    this.#rolledBack.clear();
    this.#live.clear();
    this.#resumed.clear();
  }

  /** @param {number} id */
  #turn(id) {
    const turn = this.#durable.get(id) ?? { records: new Map(), view: null };
    this.#durable.set(id, turn);
    return turn;
  }

  /** @param {number} id */
  #rollBack(id) {
    this.#rolledBack.add(id);
    for (const turn of this.#durable.values()) if (isReplacedBy(turn.records.get(id - 1), id)) turn.view = null;
  }

  /**
   * Without what says that another run replaces the turn, if that run was rolled back.
   * @param {Map<number, LogRecord>} records
   */
  #counted(records) {
    return [...records.values()].filter((record) => !(isReplacedBy(record, record.seq + 1) && this.#rolledBack.has(record.seq + 1)));
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
/**
 * The input of a turn's other run is the record behind the one that says so.
 * @param {LogRecord | undefined} record
 * @param {number} run
 */
const isReplacedBy = (record, run) => record?.kind === 'turn.superseded' && record.body.into === undefined && record.seq === run - 1;

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
 * @param {Map<string, Streamed>} live
 * @param {number} resumed
 */
function fold(id, records, live = new Map(), resumed = 0) {
  /** @type {Turn} */
  const turn = {
    id, agent: null, state: 'running', reason: null, detail: null, mode: null, into: null, epoch: null, steps: [], answer: null, startedAt: null, endedAt: null,
  };
  for (const record of records.sort((a, b) => a.seq - b.seq)) {
    runBy(turn, record.epoch);
    FOLDS.get(record.kind)?.(turn, record);
    if (isEnd(record)) ended(turn, record);
  }
  if (turn.endedAt !== null) return turn;
  runBy(turn, resumed);
  for (const { epoch } of live.values()) runBy(turn, epoch);
  for (const [step, { text, attempt }] of live) {
    const announced = turn.steps.findIndex((known) => known.step === step);
    const known = announced < 0 ? { step, type: stepType(step), done: false } : turn.steps.splice(announced, 1)[0];
    // A tool's attempts are the calls that are written down; what is told live counts runs of the turn.
    turn.steps.push(known.type === 'tool' ? { ...known, text } : { ...known, text, attempt });
  }
  if (turn.steps.some(({ ask }) => ask?.answer === null)) turn.state = 'waiting';
  return turn;
}

/**
 * A higher epoch is another owner, or the same one after it had let go.
 * @param {Turn} turn
 * @param {number} epoch 0: not known
 */
function runBy(turn, epoch) {
  if (!(epoch > (turn.epoch ?? 0))) return;
  if (turn.epoch !== null) turn.steps.push({ step: `epoch:${epoch}`, type: 'takeover', done: true, text: '', epoch });
  turn.epoch = epoch;
}

/** @type {Map<string, (turn: Turn, record: LogRecord) => void>} */
const FOLDS = new Map([
  ['turn.started', (turn, { body, at }) => {
    turn.agent = body.agent ?? null;
    turn.startedAt = at;
  }],
  ['step.started', (turn, { body, epoch }) => {
    const { step, attempt, name, input } = body;
    const known = turn.steps.find((other) => other.step === step);
    if (known) Object.assign(known, { attempt, epoch });
    else turn.steps.push({ step, type: stepType(step), done: false, text: '', attempt, epoch, name, input });
  }],
  ['step.completed', (turn, { body, epoch }) => {
    const known = turn.steps.find(({ step }) => step === body.step);
    // Whoever does not know what came of another owner's call and does not make it again says that it is unknown.
    const isAgain = known?.epoch !== undefined && epoch > known.epoch && body.status !== 'unknown';
    if (known) Object.assign(known, body, { done: true }, isAgain ? { calledAgain: epoch } : {});
    else turn.steps.push({ ...body, done: true, text: textOf(body) });
    // What the model asks for is known before it is done.
    for (const [index, { name, input }] of (body.calls ?? []).entries()) {
      turn.steps.push({ step: `${body.step}.t${index}`, type: 'tool', done: false, text: '', name, input });
    }
  }],
  ['await.opened', (turn, { body }) => {
    const ask = { id: body.await, prompt: body.prompt ?? null, schema: body.schema, expiresAt: body.expires_at, answer: null };
    turn.steps.push({ step: `await:${body.await}`, type: 'await', done: false, text: '', ask });
  }],
  ['await.resolved', (turn, { body, name }) => {
    const step = turn.steps.find(({ ask }) => ask?.id === body.await);
    if (!step?.ask) return;
    step.done = true;
    step.ask.answer = body.expired ? { expired: true, by: null } : { payload: body.payload, by: name ?? null };
  }],
  ['message', (turn, record) => {
    turn.answer = record;
    turn.agent ??= record.sender.slice('@agent:'.length);
  }],
]);

/** @param {Turn} turn @param {LogRecord} record */
function ended(turn, { kind, body, at }) {
  turn.state = kind.slice('turn.'.length);
  turn.reason = body?.reason ?? null;
  turn.detail = body?.detail ?? null;
  turn.mode = body?.mode ?? null;
  turn.into = body?.into ?? null;
  turn.endedAt = at;
  for (const { ask } of turn.steps) if (ask?.answer === null) ask.answer = { closed: true, by: null };
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
