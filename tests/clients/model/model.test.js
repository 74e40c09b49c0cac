/**
 * An agent of kind `openai` that is a real language model, a small one on the CPU: what it says is streamed and recorded as it says it.
 *
 * What it says is not looked at, only that it comes through; all comparisons are with what passed the tap before its endpoint.
 */
import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { events } from '../harness/events.js';
import { Endpoint, Tap } from '../harness/model.js';
import { Server } from '../harness/server.js';
import { until } from '../harness/until.js';

const ANSWER_MS = 90_000;
const SYSTEM = 'You are a story teller.';

const agent = (tap, name, maxTokens) => `
[agents.${name}]
kind = "openai"
base_url = "${tap.url}/v1"
model = "small"
system = "${SYSTEM}"
temperature = 0.8
max_tokens = ${maxTokens}
`;
/** `teller` has not ended by itself when it is cancelled: the model goes on while the tap holds. */
const configuration = (tap) => agent(tap, 'small', 48) + agent(tap, 'teller', 1500);

/** One who watches a conversation from its beginning, and shows text as docs/PROTOCOL.md says. */
class Viewer {
  #stream = new AbortController();
  #ended;
  records = [];
  deltas = 0;
  shown = '';

  static async open(server, token, id) {
    const viewer = new Viewer();
    const answer = await fetch(`${server.url}/v1/conversations/${id}/stream?after=0`, {
      headers: { authorization: `Bearer ${token}` }, signal: viewer.#stream.signal,
    });
    assert.equal(answer.status, 200);
    viewer.#ended = viewer.#watch(answer.body).catch(() => {});
    return viewer;
  }

  async #watch(body) {
    for await (const { event, data } of events(body)) {
      const payload = JSON.parse(data);
      if (event === 'delta') {
        assert.equal(payload.offset, this.shown.length);
        this.deltas += 1;
        this.shown += payload.text;
      } else if (event === 'turn.snapshot') this.shown = payload.text;
      else if (event === 'step.reset' || event === 'turn.started') this.shown = '';
      if (payload.seq !== undefined) this.records.push(payload);
    }
  }

  of(kind, turn) { return this.records.filter((record) => record.kind === kind && record.turn === turn); }

  ended(turn) { return until(() => this.of('turn.completed', turn)[0], `turn ${turn} to be completed`, ANSWER_MS); }

  async close() {
    this.#stream.abort();
    await this.#ended;
  }
}

describe('a real small model', { timeout: 600_000 }, () => {
  let endpoint;
  let tap;
  let server;
  let folder;
  let token;

  before(async () => {
    const python = process.env.CONCH_MODEL_PYTHON ?? assert.fail('CONCH_MODEL_PYTHON is not set; run ./test model');
    endpoint = await Endpoint.start(python);
    tap = await Tap.before(endpoint);
    folder = await mkdtemp(path.join(tmpdir(), 'conch-model-'));
    const file = path.join(folder, 'conch.toml');
    await writeFile(file, configuration(tap));
    server = await Server.start({ more: ['--config', file] });
    token = await server.token('alice');
  });
  after(async () => {
    await server?.stop();
    await tap?.stop();
    await endpoint?.stop();
    if (folder) await rm(folder, { recursive: true, force: true });
  });

  const watch = async (t, id, name = 'small') => {
    await server.must(token, 'PUT', `/v1/conversations/${id}`, { kind: 'session', agent: name });
    const viewer = await Viewer.open(server, token, id);
    t.after(() => viewer.close());
    return viewer;
  };
  const say = async (id, text) => (await server.say(token, id, text)).seq;
  const answers = (records) => records.filter(({ kind, sender }) => kind === 'message' && sender.startsWith('@agent:'));
  /** Says it, and stops the model in the middle of its answer, when all that it said is shown. */
  const sayAndHold = async (viewer, id, text) => {
    tap.holdAfter(6);
    const turn = await say(id, text);
    await until(() => tap.last?.isHeld && viewer.shown !== '' && viewer.shown === tap.last.said, 'the middle of an answer', ANSWER_MS);
    return turn;
  };

  test('what it says is streamed, recorded and counted, and it is told what was said before', async (t) => {
    const viewer = await watch(t, 'talk');
    const first = await say('talk', 'My cat is called Minka. Tell me about a cat.');
    await viewer.ended(first);
    const { messages, said, usage, isOver } = tap.last;
    assert.deepEqual(messages.map(({ role, content }) => [role, content]), [['system', SYSTEM], ['user', 'My cat is called Minka. Tell me about a cat.']]);
    assert.ok(isOver && said.length > 0);
    assert.ok(viewer.deltas > 1, `${viewer.deltas} deltas`);
    assert.equal(viewer.shown, said);
    const [answer] = answers(viewer.of('message', first));
    assert.equal(answer.sender, '@agent:small');
    assert.equal(answer.body.text, said);
    const [step] = viewer.of('step.completed', first);
    const counted = usage && { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens };
    t.diagnostic(`${viewer.deltas} deltas, usage ${JSON.stringify(usage)}: ${JSON.stringify(said)}`);
    assert.deepEqual(step.body.usage ?? null, counted);

    const second = await say('talk', 'What is my cat called?');
    await viewer.ended(second);
    assert.deepEqual(tap.last.messages.map(({ role, content }) => [role, content]), [
      ['system', SYSTEM], ['user', 'My cat is called Minka. Tell me about a cat.'], ['assistant', said], ['user', 'What is my cat called?'],
    ]);
    assert.deepEqual(answers(viewer.records).map(({ body }) => body.text), [said, tap.last.said]);
  });

  test('cancelled in the middle of an answer, it is not read any further, and stops', async (t) => {
    const viewer = await watch(t, 'cancelled', 'teller');
    const turn = await sayAndHold(viewer, 'cancelled', 'Tell me a long story about a ship.');
    const exchange = tap.last;
    const disconnects = endpoint.output.split('Disconnected').length;
    await server.must(token, 'POST', `/v1/conversations/cancelled/turns/${turn}/cancel`, { mode: 'keep' });
    await until(() => exchange.isClosed, 'the connection to the model to be closed');
    await until(() => endpoint.output.split('Disconnected').length > disconnects, 'the endpoint to see it');
    await until(() => viewer.of('turn.cancelled', turn).length === 1, 'the turn to be cancelled');
    assert.equal(exchange.isOver, false);
    assert.deepEqual(answers(viewer.records).map(({ body }) => body.text), [exchange.said], 'what was said is kept, and no more');

    await server.must(token, 'PATCH', '/v1/conversations/cancelled', { agent: 'small' });
    const next = await say('cancelled', 'And what then?');
    await viewer.ended(next);
    assert.notEqual(tap.last, exchange);
    assert.ok(tap.last.messages.some(({ role, content }) => role === 'assistant' && content === exchange.said));
  });

  test('run again, it answers the same question anew', async (t) => {
    const viewer = await watch(t, 'again');
    const turn = await say('again', 'Name a colour.');
    await viewer.ended(turn);
    const before = tap.last;
    const { turn: anew } = await server.must(token, 'POST', '/v1/conversations/again/turns', { client_msg_id: 'anew', regenerate: turn });
    assert.notEqual(anew, turn);
    await viewer.ended(anew);
    assert.notEqual(tap.last, before);
    assert.deepEqual(tap.last.messages, before.messages, 'it is not told what it answered before');
    assert.deepEqual(viewer.of('turn.superseded', turn).map(({ body }) => body.reason), ['regenerate']);
    assert.deepEqual(answers(viewer.records).map((record) => [record.turn, record.body.text]), [[turn, before.said], [anew, tap.last.said]]);
    t.diagnostic(`${JSON.stringify(before.said)}, then ${JSON.stringify(tap.last.said)}`);
  });

  test('the node killed in the middle of an answer, there is one answer', async (t) => {
    const id = 'killed';
    const viewer = await watch(t, id);
    const turn = await sayAndHold(viewer, id, 'Tell me a long story about a lighthouse.');
    const lost = tap.last;
    await server.kill();
    await until(() => lost.isClosed, 'the connection to the model to be closed');
    await server.run();

    const later = await Viewer.open(server, token, id);
    t.after(() => later.close());
    await later.ended(turn);
    assert.notEqual(tap.last, lost);
    assert.deepEqual(tap.last.messages, lost.messages);
    const records = await server.history(token, id);
    assert.deepEqual(answers(records).map(({ body }) => body.text), [tap.last.said]);
    assert.deepEqual(answers(later.records), answers(records), 'the same, once, for who watches');
    assert.equal(records.filter(({ kind }) => kind === 'step.completed').length, 1);
    assert.equal(records.filter(({ kind }) => kind === 'turn.completed').length, 1);
  });
});
