/**
 * A server and a line to it, as far as a conversation can tell, both at the mercy of a seed: answers come late, are lost with or
 * without what they answer, are refusals with a directive; connections break; records come twice; the log changes.
 *
 * Invariant: a message is kept once for each key, and records are numbered in the order in which they were kept.
 * Deliberately does not: refuse without a directive; every message of a run must get through.
 */
import { Conversation } from '../../../clients/typescript/core/conversation.js';
import { Emitter } from '../../../clients/typescript/core/emitter.js';
import { Refusal, disconnected, timedOut } from '../../../clients/typescript/core/errors.js';
import { between, randomFrom } from '../harness/random.js';
import { FakeClock, counter, message } from './fakes.js';

const MESSAGES = 20;
const PAGE = 10;
const LIMIT_MS = 120_000;
const BUSY = { code: 'conversation_unavailable', retry: { after_ms: 50, budget_ms: 60_000 } };

class ModelServer {
  log = 'l.1';
  head = 0;
  records = [];
  sessions = new Set();
  #keys = new Map();

  constructor(random) { this.random = random; }

  /** Numbers have holes. */
  append(sender, clientMsgId, body) {
    const key = `${sender} ${clientMsgId}`;
    const known = this.#keys.get(key);
    if (known) return { ...known, duplicate: true };
    this.head += this.random() < 0.1 ? between(this.random, 2, 50) : 1;
    const record = message(this.head, body.text, { sender, client_msg_id: clientMsgId });
    this.records.push(record);
    const receipt = { seq: record.seq, epoch: record.epoch, at: record.at, duplicate: false };
    this.#keys.set(key, receipt);
    for (const session of this.sessions) session.record(record);
    return receipt;
  }

  /** A backup is restored: some of the newest records are gone, and the history has another name. Numbers do not come back. */
  restore(log) {
    this.log = log;
    const recent = this.records.slice(-5);
    this.records = this.records.filter((record) => record.sender === 'alice' || !recent.includes(record));
  }

  page(limit) {
    const messages = this.records.slice(-limit);
    return { messages, head_seq: this.head, log: this.log, more: messages.length < this.records.length };
  }
}

/** The conversation's channel: what `Channel` of the core promises, over a bad line. */
class ModelChannel extends Emitter {
  #world;
  #params;
  #session = null;
  #pending = new Set();
  state = 'closed';

  constructor(world, params) {
    super();
    this.#world = world;
    this.#params = params;
  }

  join() { this.#open(); }

  rejoin() { this.#open(); }

  leave() { this.#end('closed'); }

  hint() {}

  async push(event, { client_msg_id: key, body }) {
    const { random, server } = this.#world;
    if (this.state !== 'joined') throw disconnected();
    const fate = this.#world.isCalm ? 1 : random();
    if (fate < 0.1) return this.#lose();
    if (fate < 0.2) throw new Refusal(BUSY);
    const receipt = await this.#later(() => server.append('alice', key, body));
    if (fate < 0.3) return this.#lose();
    if (fate < 0.35) return this.#later(() => { throw timedOut(); }, 10_000);
    return this.#later(() => receipt);
  }

  /** The line breaks: nothing more is heard of what was under way. */
  #lose() {
    this.drop();
    throw disconnected();
  }

  drop() {
    if (this.state === 'closed' || this.state === 'errored') return;
    this.#end('errored');
    this.#world.after(10, 500, () => { if (this.state === 'errored') this.#open(); });
  }

  #end(state) {
    this.#world.server.sessions.delete(this.#session);
    this.#session = null;
    for (const reject of [...this.#pending]) reject(disconnected());
    this.#enter(state);
  }

  #open() {
    this.#end('joining');
    const asked = this.#params();
    const session = new Session(this.#world, (event, payload) => this.emit('event', { event, payload }));
    this.#session = session;
    this.#world.after(1, 50, () => {
      if (this.#session !== session) return;
      const reply = session.begin(asked);
      this.#enter('joined');
      this.emit('joined', reply);
    });
  }

  #later(answer, leastMs = 1) {
    return new Promise((resolve, reject) => {
      const settle = (how) => (value) => {
        this.#pending.delete(lost);
        how(value);
      };
      const lost = (refusal) => settle(reject)(refusal);
      this.#pending.add(lost);
      this.#world.after(leastMs, leastMs + 30, () => {
        if (!this.#pending.has(lost)) return;
        try {
          settle(resolve)(answer());
        } catch (refusal) {
          lost(refusal);
        }
      });
    });
  }

  #enter(state) {
    if (this.state === state) return;
    this.state = state;
    this.emit('state', state);
  }
}

/** What one join is sent, in order, one thing after another. */
class Session {
  #world;
  #tell;
  #queue = [];

  constructor(world, tell) {
    this.#world = world;
    this.#tell = tell;
  }

  begin({ after, log }) {
    const { server } = this.#world;
    server.sessions.add(this);
    const isVoid = after !== undefined && ((log !== undefined && log !== server.log) || after > server.head);
    if (isVoid) this.#queue.push(['resync', { log: server.log, head_seq: server.head }]);
    else for (const record of server.records.filter(({ seq }) => seq > (after ?? server.head))) this.record(record);
    this.#queue.push(['caught_up', { seq: server.head }]);
    this.#deliver();
    return { head_seq: server.head, log: server.log, epoch: 1, catchup: isVoid ? 'resync' : 'streaming', reconnect_jitter_ms: 0 };
  }

  record(record) {
    const { random, server } = this.#world;
    this.#queue.push([record.kind, record]);
    const known = server.records.filter(({ seq }) => seq <= record.seq);
    if (random() < 0.05) this.#queue.push([record.kind, known[between(random, 0, known.length - 1)]]);
  }

  #deliver() {
    this.#world.after(0, 5, () => {
      if (!this.#world.server.sessions.has(this)) return;
      const next = this.#queue.shift();
      if (next) this.#tell(...next);
      this.#deliver();
    });
  }
}

/** One run. Resolves with what is wrong, as sentences; an empty list is a good run. `mutate(world)` breaks the client before it. */
export async function run(seed, mutate = () => {}) {
  const random = randomFrom(seed);
  const clock = new FakeClock();
  const server = new ModelServer(random);
  const world = { random, clock, server, isCalm: false };
  world.after = (leastMs, mostMs, callback) => clock.setTimeout(callback, between(random, leastMs, mostMs));
  const connection = {
    channel: (topic, params) => {
      world.params = params;
      world.channel = new ModelChannel(world, () => world.params());
      return world.channel;
    },
    on: () => () => {},
  };
  const api = {
    history: async (id, { limit }) => {
      await new Promise((resolve) => { world.after(1, 40, resolve); });
      if (!world.isCalm && random() < 0.1) throw disconnected();
      if (!world.isCalm && random() < 0.1) throw new Refusal(BUSY);
      return server.page(limit);
    },
  };
  // A client that does not know whose it is settles by answers alone.
  const sub = random() < 0.5 ? 'alice' : null;
  const conversation = new Conversation({ id: 'c', me: () => sub, api, socket: connection, clock, random, newId: counter('k'), start: { latest: PAGE } });
  world.conversation = conversation;
  mutate(world);
  return judge(world, await drive(world));
}

/** Twenty messages, with everything that can happen in between; then calm, until all is settled. */
async function drive(world) {
  const { clock, random, server, conversation, channel } = world;
  const told = { written: [], shown: [], delivered: [], failed: [] };
  conversation.on('records', (change) => {
    if (change.reason === 'page') told.shown = [...change.page.messages];
    else told.shown.push(change.record);
  });
  conversation.outbox.on('delivered', ({ entry }) => told.delivered.push(entry.body.text));
  conversation.outbox.on('failed', (entry) => told.failed.push(`${entry.body.text} (${entry.error.code})`));
  conversation.start();
  for (let count = 0; count < MESSAGES; count += 1) {
    await clock.advance(between(random, 0, 300));
    told.written.push(`m${count}`);
    conversation.outbox.add({ text: `m${count}` });
    if (random() < 0.3) server.append('bob', `b${count}`, { text: 'by the way' });
    if (random() < 0.15) channel.drop();
    if (random() < 0.05) {
      server.restore(`l.${count + 2}`);
      channel.drop();
    }
  }
  world.isCalm = true;
  for (let waitedMs = 0; waitedMs < LIMIT_MS && !isSettled({ conversation, server }); waitedMs += 1_000) await clock.advance(1_000);
  conversation.stop();
  return told;
}

const isSettled = ({ conversation, server }) =>
  conversation.status === 'live' && conversation.outbox.entries.length === 0 && conversation.timeline.position >= server.head;

function judge({ server, conversation }, { written, shown, delivered, failed }) {
  const wrong = [];
  const kept = server.records.filter(({ sender }) => sender === 'alice').map(({ body }) => body.text);
  if (kept.join() !== written.join()) wrong.push(`the log has ${kept}`);
  if ([...delivered].sort().join() !== [...written].sort().join()) wrong.push(`told as delivered: ${delivered}`);
  if (failed.length > 0) wrong.push(`told as failed: ${failed}`);
  const seqs = shown.map(({ seq }) => seq);
  const expected = server.records.map(({ seq }) => seq).slice(-Math.max(seqs.length, 1));
  if (seqs.join() !== expected.join()) wrong.push(`shown ${seqs}, not ${expected}`);
  if (conversation.outbox.entries.length > 0) wrong.push(`${conversation.outbox.entries.length} are still on their way`);
  return wrong;
}
