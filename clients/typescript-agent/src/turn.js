/**
 * One turn, as an agent's function sees it.
 *
 * Invariants: a step's action runs only if the journal has no output of it, and what it returned is durable before `step`
 * resolves; the n-th step of a name is the same one in every run; after `Stale` nothing more is sent.
 */

/** How long one attempt to make a step durable may take, in milliseconds. */
const STEP_TIMEOUT_MS = 30_000;
/** How often a step is sent when no answer comes; the same step twice counts once. */
export const STEP_ATTEMPTS = 8;

/** Another run of this turn has taken over, or the turn has ended. The worker stops. */
export class Stale extends Error {
  name = 'Stale';
}

/** The journal has a step of this key with another input: the code took another way than the run before. */
export class JournalMismatch extends Error {
  name = 'JournalMismatch';
}

/** The owner did not take a step, for instance because its output is over 1 MiB. */
export class StepRefused extends Error {
  name = 'StepRefused';
}

/** The turn waits for somebody. Ends the agent's function. */
export class Parked extends Error {
  name = 'Parked';
}

/** @typedef {{role: string, text: string} & Record<string, unknown>} Message */
/** @typedef {{key: string, input?: unknown, output: unknown}} StepEntry */
/** @typedef {{await: string, state: 'open' | 'resolved' | 'expired', payload?: unknown}} AwaitEntry */
/**
 * @typedef {object} TurnRequest
 * @property {string} conversation
 * @property {number} turn
 * @property {number} epoch
 * @property {number} attempt
 * @property {string | null} [deadline]
 * @property {Message[]} messages
 * @property {unknown} [state]
 * @property {(StepEntry | AwaitEntry)[]} journal
 * @property {string} callback
 */
/** @typedef {(line: Record<string, unknown>) => void} Emit */
/** @typedef {{fetch: typeof globalThis.fetch, sleep: (ms: number) => Promise<void>}} Surroundings */

/** A turn that runs. Steps that run side by side need names of their own. */
export class Turn {
  /** @type {Map<string, StepEntry>} */
  #journal = new Map();
  /** @type {Map<string, AwaitEntry>} */
  #awaits = new Map();
  /** @type {Map<string, number>} */
  #occurrences = new Map();
  #callback;
  #emit;
  #surroundings;

  /** @param {TurnRequest} request @param {Emit} emit @param {Surroundings} surroundings */
  constructor(request, emit, surroundings) {
    this.conversation = request.conversation;
    this.id = request.turn;
    this.epoch = request.epoch;
    this.attempt = request.attempt;
    this.deadline = request.deadline ?? null;
    /** The conversation, oldest first. */
    this.messages = request.messages;
    /** What the conversation's last turn left; what is here at the end is kept for its next one. @type {any} */
    this.state = request.state ?? null;
    this.#callback = request.callback;
    this.#emit = emit;
    this.#surroundings = surroundings;
    for (const entry of request.journal) {
      if ('key' in entry) this.#journal.set(entry.key, entry);
      else this.#awaits.set(entry.await, entry);
    }
  }

  /** What was said last. */
  get text() {
    return this.messages.findLast(({ role }) => role === 'user')?.text ?? '';
  }

  /** Shows more text at once. It is not kept: the answer is. @param {string} text */
  delta(text) {
    if (text !== '') this.#emit({ type: 'delta', text });
  }

  /**
   * Runs `action` unless an earlier run of the turn completed this step, and resolves with its output, which must be JSON.
   * `input` is compared with the one in the journal. Rejects with JournalMismatch, StepRefused, Stale, and whatever
   * `action` rejects with.
   * @template T
   * @param {string} name
   * @param {() => T | Promise<T>} action
   * @param {unknown} [input]
   * @returns {Promise<T>}
   */
  async step(name, action, input = null) {
    const key = this.#next(name);
    const entry = this.#journal.get(key);
    if (entry !== undefined) {
      if (canonical(entry.input ?? null) !== canonical(input)) {
        throw new JournalMismatch(`step ${key}: was run with another input before`);
      }
      return /** @type {T} */ (entry.output);
    }
    const output = (await action()) ?? null;
    const body = JSON.stringify({ input, output });
    await this.#complete(key, body);
    // As a later run will see it: a Date is a text there.
    return JSON.parse(body).output;
  }

  /** The same in every run of this turn: for the side effect within the next step of this name. @param {string} name */
  idempotencyKey(name) {
    return `${this.conversation}/${this.id}/${numbered(name, (this.#occurrences.get(name) ?? 0) + 1)}`;
  }

  /**
   * What somebody answered, or that nobody did in time. While nobody has, it throws what ends the agent's function, which
   * runs again once there is an answer.
   * @param {string} name
   * @param {{prompt: string, schema?: object, expiresInMs?: number}} options
   * @returns {{payload: any, expired: boolean}}
   */
  wait(name, { prompt, schema, expiresInMs = 86_400_000 }) {
    const known = this.#awaits.get(name);
    if (known !== undefined && known.state !== 'open') {
      return { payload: known.payload ?? null, expired: known.state === 'expired' };
    }
    if (known === undefined) {
      this.#emit({ type: 'await', id: name, prompt, expires_in_ms: expiresInMs, ...(schema && { schema }) });
    }
    throw new Parked();
  }

  /** The answer. Without it, the answer is all text that was shown. @param {string} text */
  message(text) {
    this.#emit({ type: 'message', body: { text } });
  }

  /** @param {string} name */
  #next(name) {
    const occurrence = (this.#occurrences.get(name) ?? 0) + 1;
    this.#occurrences.set(name, occurrence);
    return numbered(name, occurrence);
  }

  /** @param {string} key @param {string} body */
  async #complete(key, body) {
    const { fetch, sleep } = this.#surroundings;
    let problem = 'the owner was busy all the time';
    for (let attempt = 0; attempt < STEP_ATTEMPTS; attempt += 1) {
      let waitMs = Math.min(100 * 2 ** attempt, 5_000);
      try {
        const answer = await fetch(`${this.#callback}/steps/${encodeURIComponent(key)}`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body,
          // The callback's URL carries a proof: it goes to the host that gave it, and to no other.
          redirect: 'manual',
          signal: AbortSignal.timeout(STEP_TIMEOUT_MS),
        });
        if (answer.ok) return;
        waitMs = await refused(key, answer);
      } catch (error) {
        if (error instanceof Stale || error instanceof JournalMismatch || error instanceof StepRefused) throw error;
        problem = String(error);
      }
      await sleep(waitMs);
    }
    throw new StepRefused(`step ${key}: ${problem}`);
  }
}

/**
 * How long to wait before the same again; throws where that cannot help.
 * @param {string} key @param {Response} answer
 * @returns {Promise<number>}
 */
async function refused(key, answer) {
  /** @type {{code?: string, detail?: string, retry?: {after_ms?: number}} | null} */
  const told = /** @type {any} */ (await answer.json().catch(() => null));
  const detail = told?.detail ?? `HTTP ${answer.status}`;
  if (told?.code === 'stale_attempt') throw new Stale(detail);
  if (told?.code === 'journal_mismatch') throw new JournalMismatch(detail);
  if (typeof told?.retry?.after_ms !== 'number') throw new StepRefused(`step ${key}: ${detail}`);
  return told.retry.after_ms;
}

/** @param {string} name @param {number} occurrence */
const numbered = (name, occurrence) => (occurrence === 1 ? name : `${name}#${occurrence}`);

/** JSON with sorted keys, so that equal values are equal texts. @param {unknown} value */
function canonical(value) {
  return JSON.stringify(value, (_, inner) =>
    inner !== null && typeof inner === 'object' && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner);
}
