/**
 * What an agent's turns look like right now: the journalled steps, and the text that is still being streamed.
 *
 * Invariant: streamed text is always a prefix of one attempt of one step. A delta is applied only where it fits, ordered
 * by (epoch, attempt, offset), offsets in UTF-16 code units: lower is ignored, a gap waits for the snapshot that follows.
 * A durable record (a completed step, an end) always wins over streamed text.
 * Deliberately does not: decide the order of records (timeline.js), nor render.
 */
export class Turns {
  #durable = new Map();
  #live = new Map();

  /** Folds a record into its turn. Records of one turn may arrive in any order (older pages come later). Returns the turn's id. */
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

  /** Applies a live event. Returns the turn's id if what is shown has changed, else null. */
  live(event, payload) {
    const apply = { delta, 'turn.snapshot': snapshot, 'step.reset': reset, 'turn.resumed': resumed }[event];
    if (!apply || payload?.turn === undefined) return null;
    const turn = this.#turn(payload.turn);
    if (this.#isSettled(turn, payload)) return null;
    if (!this.#live.has(payload.turn)) this.#live.set(payload.turn, new Map());
    if (!apply(this.#live.get(payload.turn), payload)) return null;
    turn.view = null;
    return payload.turn;
  }

  /** {id, agent, state: queued|running|completed|failed|cancelled, reason, steps, answer, startedAt, endedAt}, or null. */
  get(id) {
    const turn = this.#durable.get(id);
    if (!turn) return null;
    turn.view ??= fold(id, [...turn.records.values()], this.#live.get(id));
    return turn.view;
  }

  /** Turns that stream but have no record here yet (their start lies before what is loaded), except those in `placed`. */
  liveOnly(placed) {
    return [...this.#live.keys()].filter((id) => !placed.has(id) && this.#durable.get(id)?.records.size === 0).map((id) => this.get(id));
  }

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

  #turn(id) {
    if (!this.#durable.has(id)) this.#durable.set(id, { records: new Map(), view: null });
    return this.#durable.get(id);
  }

  #dropLive(id, step) {
    this.#live.get(id)?.delete(step);
  }

  #isSettled(turn, { step }) {
    for (const record of turn.records.values()) {
      if (isEnd(record) || (record.kind === 'step.completed' && record.body.step === step)) return true;
    }
    return false;
  }
}

const ENDS = new Set(['turn.completed', 'turn.failed', 'turn.cancelled', 'turn.superseded']);
const isEnd = (record) => ENDS.has(record.kind);

/** The id of the turn that a record is part of; null for all others, the turn's own input included. */
export function turnOf(record) {
  if (record.turn === undefined || record.turn === null) return null;
  const isPart = record.kind !== 'message' || record.sender.startsWith('@agent:');
  return isPart ? record.turn : null;
}

/** Orders attempts: a later epoch first, then a later attempt. */
const compare = (a, b) => (a.epoch - b.epoch) || (a.attempt - b.attempt);

function delta(steps, payload) {
  const known = steps.get(payload.step);
  const order = known ? compare(payload, known) : 1;
  if (order < 0) return false;
  if (order > 0) {
    if (payload.offset !== 0) return false; // its beginning was missed: the snapshot brings it
    steps.set(payload.step, { epoch: payload.epoch, attempt: payload.attempt, text: payload.text });
    return true;
  }
  if (payload.offset !== known.text.length || payload.text === '') return false;
  steps.set(payload.step, { ...known, text: known.text + payload.text });
  return true;
}

function snapshot(steps, payload) {
  const known = steps.get(payload.step);
  if (known && compare(payload, known) < 0) return false;
  steps.set(payload.step, { epoch: payload.epoch, attempt: payload.attempt, text: payload.text });
  return true;
}

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

function fold(id, records, live) {
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

/** `m<n>` is a model call, `m<n>.t<i>` a tool call. */
const stepType = (step) => (/\.t\d+$/.test(step) ? 'tool' : 'model');

/** The words of a completed model step, whether its output is a string or an object with `text`. */
function textOf({ type, output }) {
  if (type !== 'model') return '';
  if (typeof output === 'string') return output;
  return typeof output?.text === 'string' ? output.text : '';
}
