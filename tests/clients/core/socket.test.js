import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Socket } from '../../../console/core/socket.js';
import { Refusal } from '../../../clients/typescript/core/errors.js';
import { reconnectDelay } from '../../../clients/typescript/core/reconnection.js';
import { FakeClock, fakeWebSockets, settle } from './fakes.js';

function world({ authorize = async () => ['phoenix'], random = () => 0 } = {}) {
  const clock = new FakeClock();
  const sockets = fakeWebSockets();
  const socket = new Socket({ url: () => 'ws://x', authorize, WebSocket: sockets.FakeWebSocket, clock, random });
  return { clock, sockets, socket };
}
async function opened(options) {
  const made = world(options);
  made.socket.connect();
  await settle();
  made.sockets.latest.open();
  return made;
}

test('joins, pushes and gets the reply of the right frame', async () => {
  const { socket, sockets } = await opened();
  const channel = socket.channel('conversation:c', () => ({ after: 4 }));
  channel.join();
  assert.deepEqual(sockets.latest.sent, [['1', '1', 'conversation:c', 'phx_join', { after: 4 }]]);
  sockets.latest.reply('phx_join', { reconnect_jitter_ms: 900 });
  await settle();
  assert.equal(channel.state, 'joined');
  assert.equal(socket.reconnection.jitterMs, 900);
  const answers = [channel.push('message', { n: 1 }), channel.push('message', { n: 2 })];
  const [first, second] = sockets.latest.sent.slice(-2);
  sockets.latest.push('1', second[1], 'conversation:c', 'phx_reply', { status: 'error', response: { code: 'rate_limited', retry: { after_ms: 5, budget_ms: 50 } } });
  sockets.latest.push('1', first[1], 'conversation:c', 'phx_reply', { status: 'ok', response: { seq: 9 } });
  assert.deepEqual(await answers[0], { seq: 9 });
  await assert.rejects(answers[1], (error) => error.code === 'rate_limited' && error.retry.budget_ms === 50);
});

test('ghosts of an earlier join are ignored, broadcasts after the reply are not', async () => {
  const { socket, sockets } = await opened();
  const channel = socket.channel('t', () => ({}));
  const seen = [];
  channel.on('event', ({ event }) => seen.push(event));
  channel.join();
  sockets.latest.reply('phx_join', {});
  await settle();
  channel.rejoin();
  sockets.latest.push('1', '1', 't', 'phx_close', {});
  sockets.latest.push('1', null, 't', 'ghost', {});
  sockets.latest.push(null, null, 't', 'early', {});
  assert.equal(channel.state, 'joining');
  sockets.latest.reply('phx_join', {});
  await settle();
  sockets.latest.push(null, null, 't', 'broadcast', {});
  sockets.latest.push('2', null, 't', 'mine', {});
  assert.deepEqual(seen, ['broadcast', 'mine']);
});

test('a loss rejects what is open, waits, and rejoins with the parameters of then', async () => {
  const { socket, sockets, clock } = await opened({ random: () => 0.5 });
  let after = 1;
  const channel = socket.channel('t', () => ({ after }));
  channel.join();
  sockets.latest.reply('phx_join', { reconnect_jitter_ms: 4_000 });
  await settle();
  const open = channel.push('message', {});
  after = 7;
  sockets.latest.lose();
  await assert.rejects(open, (error) => error.code === 'disconnected');
  assert.equal(socket.state, 'waiting');
  assert.equal(socket.retryAt, clock.now() + 2_000);
  await clock.advance(1_999);
  assert.equal(sockets.opened.length, 1);
  await clock.advance(1);
  sockets.latest.open();
  assert.deepEqual(sockets.latest.sent.at(-1)[4], { after: 7 });
});

test('a person can try at once', async () => {
  const { socket, sockets } = await opened({ random: () => 1 });
  sockets.latest.lose();
  socket.retryNow();
  await settle();
  assert.equal(sockets.opened.length, 2);
  assert.equal(socket.state, 'connecting');
});

test('the wait grows while nothing answers, and an open socket alone does not reset it', async () => {
  const { socket, sockets, clock } = await opened({ random: () => 1 });
  const waits = [];
  for (let attempt = 0; attempt < 4; attempt += 1) {
    sockets.latest.lose();
    waits.push(socket.retryAt - clock.now());
    await clock.advance(socket.retryAt - clock.now());
    sockets.latest.open();
  }
  assert.deepEqual(waits, [400, 800, 1_600, 3_200]);
  socket.channel('t', () => ({})).join();
  sockets.latest.reply('phx_join', {});
  await settle();
  sockets.latest.lose();
  assert.equal(socket.retryAt - clock.now(), 400);
});

test('reconnection delays stay in their bounds', () => {
  for (const chance of [0, 0.5, 0.999]) {
    const random = () => chance;
    assert.ok(reconnectDelay(0, 30_000, random) <= 30_000);
    for (let attempt = 1; attempt < 60; attempt += 1) {
      const delay = reconnectDelay(attempt, 30_000, random);
      assert.ok(delay >= 400 && delay <= 15_000, `${attempt}: ${delay}`);
    }
  }
});

test('a token that has run out is no storm: no jitter before the next attempt', async () => {
  const { socket, sockets, clock } = await opened({ random: () => 1 });
  socket.reconnection.jitterMs = 30_000;
  sockets.latest.lose(1008);
  assert.equal(socket.retryAt - clock.now(), 400);
});

test('a reconnect event leaves now and comes back after its delay plus jitter', async () => {
  const { socket, sockets, clock } = await opened({ random: () => 0.5 });
  socket.reconnection.jitterMs = 1_000;
  socket.channel('t', () => ({})).join();
  sockets.latest.push(null, null, 't', 'reconnect', { after_ms: 5_000 });
  assert.equal(sockets.opened[0].readyState, 3);
  assert.equal(socket.retryAt - clock.now(), 5_500);
});

test('a silent connection is given up after an unanswered heartbeat', async () => {
  const { socket, sockets, clock } = await opened();
  await clock.advance(20_000);
  sockets.latest.reply('heartbeat', {});
  await clock.advance(20_000);
  assert.equal(sockets.latest.count('heartbeat'), 2);
  assert.equal(socket.state, 'open');
  await clock.advance(9_999);
  assert.equal(socket.state, 'open');
  await clock.advance(1);
  assert.notEqual(socket.state, 'open');
});

test('a refused token ends it; a directive sets the wait', async () => {
  let refusal = new Refusal({ code: 'overloaded', retry: { after_ms: 7_000, budget_ms: 9_000 } });
  const { socket, clock } = world({ authorize: async () => { throw refusal; } });
  socket.connect();
  await settle();
  assert.equal(socket.retryAt - clock.now(), 7_000);
  refusal = new Refusal({ code: 'unauthenticated' });
  await clock.advance(7_000);
  assert.equal(socket.state, 'closed');
  assert.equal(socket.reason, 'unauthenticated');
  assert.equal(clock.pending, 0);
});

test('only after a connection that never opened is the reason asked for', async () => {
  const asked = [];
  const { sockets, clock } = await opened({ authorize: async ({ failedToOpen }) => { asked.push(failedToOpen); return []; } });
  sockets.latest.lose();
  await clock.advance(15_000);
  sockets.latest.lose();
  await clock.advance(15_000);
  assert.deepEqual(asked, [false, false, true]);
});

test('a join that a retry cannot mend is not retried; one that it can is, after its delay', async () => {
  const { socket, sockets, clock } = await opened();
  const refused = socket.channel('a', () => ({}));
  const codes = [];
  refused.on('refused', ({ code }) => codes.push(code));
  refused.join();
  sockets.latest.reply('phx_join', { code: 'forbidden' }, 'error');
  await clock.advance(15_000);
  assert.deepEqual(codes, ['forbidden']);
  assert.equal(sockets.latest.count('phx_join'), 1);

  const delayed = socket.channel('b', () => ({}));
  delayed.join();
  sockets.latest.reply('phx_join', { code: 'conversation_unavailable', retry: { after_ms: 250, budget_ms: 20_000 } }, 'error');
  await clock.advance(249);
  assert.equal(sockets.latest.count('phx_join'), 2);
  await clock.advance(1);
  assert.equal(sockets.latest.count('phx_join'), 3);
});

test('phx_error rejoins, phx_close of the current join does not', async () => {
  const { socket, sockets, clock } = await opened();
  const channel = socket.channel('t', () => ({}));
  channel.join();
  sockets.latest.reply('phx_join', {});
  await settle();
  sockets.latest.push('1', null, 't', 'phx_error', {});
  await clock.advance(1_000);
  assert.equal(sockets.latest.count('phx_join'), 2);
  sockets.latest.reply('phx_join', {});
  await settle();
  const [joinRef] = sockets.latest.last('phx_join');
  sockets.latest.push(joinRef, null, 't', 'phx_close', {});
  await clock.advance(15_000);
  assert.equal(channel.state, 'refused');
  assert.equal(sockets.latest.count('phx_join'), 2);
});

test('frames that are no frames are ignored', async () => {
  const { socket, sockets } = await opened();
  for (const data of ['', '{', 'null', '[]', '[1,2,3]', '{"a":1}', '[null,null,"nobody","x",{}]']) sockets.latest.onmessage({ data });
  assert.equal(socket.state, 'open');
});
