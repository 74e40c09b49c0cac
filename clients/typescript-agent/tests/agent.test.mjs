/** The helper against an owner that plays its part: real sockets, signatures, durable steps, another run after a crash. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { connect } from 'node:net';
import { test } from 'node:test';
import { InvalidSignature, JournalMismatch, StepRefused, handler, sign, verify } from '../src/index.js';
import { TOLERANCE_S } from '../src/signature.js';
import { STEP_ATTEMPTS, Stale, Turn } from '../src/turn.js';

const SECRET = `whsec_${Buffer.from('0123456789abcdef0123456789abcdef').toString('base64')}`;

async function listen(t, onRequest) {
  const server = createServer(onRequest);
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => { server.closeAllConnections(); server.close(); });
  return `http://127.0.0.1:${server.address().port}`;
}

/** Keeps steps as the owner does. `answers`: `[status, body]` to be given first, before any step is taken. */
async function owner(t) {
  const self = { steps: new Map(), answers: [], arrived: [], slept: [] };
  const base = await listen(t, async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    const key = decodeURIComponent(request.url.replace('/cb/steps/', ''));
    self.arrived.push(key);
    const [status, answer] = self.answers.shift() ?? [200, null];
    if (answer === null) self.steps.set(key, JSON.parse(body));
    response.writeHead(status, status === 307 ? { location: 'http://127.0.0.1:1/' } : {});
    response.end(JSON.stringify(answer ?? { seq: self.steps.size }));
  });
  self.request = (journal = [...self.steps].map(([key, step]) => ({ key, ...step }))) => ({
    conversation: 'room', turn: 7, epoch: 3, attempt: 1, deadline: null, state: null, journal, callback: `${base}/cb`,
    messages: [{ role: 'user', text: 'one' }, { role: 'assistant', text: 'two' }, { role: 'user', text: 'hi' }],
  });
  self.turn = (lines = [], request = self.request()) =>
    new Turn(request, (line) => lines.push(line), { fetch, sleep: async (ms) => void self.slept.push(ms) });
  return self;
}

test('whoever hangs up in the middle of a request ends nothing but that', async (t) => {
  const base = await listen(t, handler({ secret: SECRET, run: () => {}, onError: () => assert.fail('nothing was run') }));
  const { hostname, port } = new URL(base);
  const socket = connect(Number(port), hostname);
  await once(socket, 'connect');
  socket.write('POST / HTTP/1.1\r\nhost: worker\r\ncontent-length: 10\r\n\r\n1');
  socket.destroy();
  await once(socket, 'close');
  const answer = await fetch(base, { method: 'POST', body: '{}' });
  assert.equal(answer.status, 401, 'it goes on, and looks at signatures');
});

test('a completed step is not run again', async (t) => {
  const at = await owner(t);
  const calls = [];
  for (const run of ['first', 'after a crash']) {
    const lines = [];
    const turn = at.turn(lines);
    const one = await turn.step('pay', () => { calls.push(1); return { when: new Date(0), b: 1 }; }, { b: 1, a: 2 });
    const two = await turn.step('pay', async () => { calls.push(2); });
    turn.message(`${one.when} ${two} ${turn.text}`);
    assert.deepEqual(lines, [{ type: 'message', body: { text: '1970-01-01T00:00:00.000Z null hi' } }], run);
  }
  assert.deepEqual([calls, at.arrived], [[1, 2], ['pay', 'pay#2']]);
  assert.deepEqual(at.steps.get('pay#2'), { input: null, output: null });
  const journal = [{ key: 'pay', input: { a: 2, b: 1 }, output: 5 }];
  assert.equal(await at.turn([], at.request(journal)).step('pay', () => 6, { b: 1, a: 2 }), 5, 'the order of keys is nothing');
  await assert.rejects(at.turn([], at.request(journal)).step('pay', () => 6, { b: 2 }), JournalMismatch);
});

test('a busy owner is asked again, a stale run stops, refusals are told', async (t) => {
  const at = await owner(t);
  at.answers = [[503, { code: 'overloaded', retry: { after_ms: 250, budget_ms: 1 } }]];
  assert.equal(await at.turn().step('a', () => 1), 1);
  assert.deepEqual(at.slept, [250]);
  at.answers = [[409, { code: 'stale_attempt', detail: 'epoch 4 runs it' }]];
  await assert.rejects(at.turn().step('b', () => 1), Stale);
  at.answers = [[413, { code: 'too_large', detail: 'output: too large' }], [307, { detail: 'elsewhere' }], [500, 'x']];
  await assert.rejects(at.turn().step('b', () => 1), /output: too large/);
  await assert.rejects(at.turn().step('b', () => 1), /elsewhere/);
  await assert.rejects(at.turn().step('b', () => 1), /HTTP 500/);
  at.slept.length = 0;
  const gone = at.turn([], { ...at.request(), callback: 'http://127.0.0.1:1/cb' });
  await assert.rejects(gone.step('b', () => 1), StepRefused);
  assert.equal(at.slept.length, STEP_ATTEMPTS);
});

test('only what was signed with the secret in time is accepted', () => {
  const body = Buffer.from('{}');
  const headers = (secret = SECRET) => ({
    'webhook-id': 'm1', 'webhook-timestamp': '1000', 'webhook-signature': sign(secret, 'm1', 1000, body),
  });
  verify(SECRET, headers(), body, 1000 + TOLERANCE_S);
  verify(SECRET, { ...headers(), 'webhook-signature': `v1,AAAA ${headers()['webhook-signature']}` }, body, 1000);
  const other = `whsec_${Buffer.from('another').toString('base64')}`;
  const bad = [
    [headers(), Buffer.from('{} '), 1000],
    [headers(other), body, 1000],
    [headers(), body, 1001 + TOLERANCE_S],
    [headers(), body, 999 - TOLERANCE_S],
    [{ ...headers(), 'webhook-id': 'm2' }, body, 1000],
    [{ ...headers(), 'webhook-timestamp': '+1000' }, body, 1000],
    [{}, body, 1000],
  ];
  for (const [given, sent, now] of bad) assert.throws(() => verify(SECRET, given, sent, now), InvalidSignature);
  for (const secret of ['', 'abc', 'whsec_', 'whsec_%%']) assert.throws(() => sign(secret, 'm', 1, body), TypeError);
  // The example of the Standard Webhooks specification.
  const known = sign('whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', 'msg_p5jXN8AQM9LWM0D4loKWxJek', 1614265330, Buffer.from('{"test": 2432232314}'));
  assert.equal(known, 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=');
});

/** A worker, and how to post a turn to it. */
async function worker(t, run) {
  const errors = [];
  const url = await listen(t, handler({ secret: SECRET, run, onError: (error) => errors.push(error) }));
  const post = (body, headers) => {
    const stamp = Math.floor(Date.now() / 1000);
    const bytes = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
    const signed = { 'webhook-id': 'm', 'webhook-timestamp': `${stamp}`, 'webhook-signature': sign(SECRET, 'm', stamp, bytes) };
    return fetch(url, { method: 'POST', body: bytes, headers: headers ?? signed });
  };
  return { post, errors };
}

const lines = async (answer) => (await answer.text()).trim().split('\n').filter(Boolean).map((line) => JSON.parse(line));

test('a turn is streamed, and a wait ends the run until there is an answer', async (t) => {
  const at = await owner(t);
  const { post } = await worker(t, async (turn) => {
    turn.delta('a');
    const { payload, expired } = turn.wait('ok', { prompt: 'Really?', expiresInMs: 2000, schema: { type: 'boolean' } });
    turn.message(`${payload} ${expired}`);
    turn.state = { n: 1 };
  });
  const opened = { type: 'await', id: 'ok', prompt: 'Really?', expires_in_ms: 2000, schema: { type: 'boolean' } };
  assert.deepEqual(await lines(await post(at.request())), [{ type: 'delta', text: 'a' }, opened]);
  assert.deepEqual(await lines(await post(at.request([{ await: 'ok', state: 'open' }]))), [{ type: 'delta', text: 'a' }]);
  for (const [state, payload, said] of [['resolved', true, 'true false'], ['expired', undefined, 'null true']]) {
    const told = await lines(await post(at.request([{ await: 'ok', state, payload }])));
    assert.deepEqual(told.slice(1), [{ type: 'message', body: { text: said } }, { type: 'done', state: { n: 1 } }]);
  }
});

test('a failure is no end, and strangers and nonsense are refused', async (t) => {
  const at = await owner(t);
  const { post, errors } = await worker(t, (turn) => {
    turn.delta('a');
    throw new Error('broken');
  });
  await assert.rejects(async () => (await post(at.request())).text());
  assert.match(String(errors[0]), /broken/);
  assert.equal((await post(at.request(), {})).status, 401);
  for (const body of ['{', '[]', '{}', '7']) assert.equal((await post(body)).status, 400, body);
});
