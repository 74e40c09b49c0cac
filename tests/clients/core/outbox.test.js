import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Outbox } from '../../../clients/typescript/core/outbox.js';
import { Refusal, disconnected, timedOut } from '../../../clients/typescript/core/errors.js';
import { FakeClock, counter, fakeStorage, message, never, settle } from './fakes.js';

/** `answers`: what each send does in turn; the last one repeats. */
function outboxWith(answers, more = {}) {
  const clock = new FakeClock();
  const sent = [];
  const send = async (id, body) => {
    sent.push([id, body.text]);
    const answer = answers[Math.min(sent.length, answers.length) - 1];
    if (answer instanceof Error) throw answer;
    return answer;
  };
  const outbox = new Outbox({ send, clock, random: never, newId: counter('k'), ...more });
  return { outbox, clock, sent, states: () => outbox.entries.map(({ state }) => state) };
}
const recordOf = (clientMsgId) => message(1, 'x', { client_msg_id: clientMsgId });
const refusal = (code, retry) => new Refusal({ code, detail: `because ${code}`, retry });

test('sends once online, in order, one at a time', async () => {
  const { outbox, sent, states } = outboxWith([{ seq: 1 }, { seq: 2 }]);
  outbox.add({ text: 'a' });
  outbox.add({ text: 'b' });
  await settle();
  assert.deepEqual(sent, []);
  outbox.online();
  assert.deepEqual(sent, [['k1', 'a']]);
  await settle();
  assert.deepEqual(sent, [['k1', 'a'], ['k2', 'b']]);
  assert.deepEqual(states(), ['acked', 'acked']);
  outbox.settle(recordOf('k1'));
  outbox.settleThrough(2);
  assert.deepEqual(outbox.entries, []);
});

test('an unknown outcome is repeated under the same key', async () => {
  for (const [name, lost] of [['lost', disconnected()], ['timed out', timedOut()]]) {
    const { outbox, sent } = outboxWith([lost, { seq: 7, duplicate: true }]);
    outbox.online();
    outbox.add({ text: 'a' });
    await settle();
    outbox.online();
    await settle();
    assert.deepEqual(sent, [['k1', 'a'], ['k1', 'a']], name);
  }
});

test('a loss does not spin: nothing leaves before the next join', async () => {
  const { outbox, sent, clock } = outboxWith([disconnected()]);
  outbox.online();
  outbox.add({ text: 'a' });
  await clock.advance(60_000);
  assert.equal(sent.length, 1);
});

test('a directive is obeyed inside its budget, then it is said and can be tried again', async () => {
  const { outbox, sent, clock, states } = outboxWith([refusal('rate_limited', { after_ms: 400, budget_ms: 1_000 })]);
  outbox.online();
  outbox.add({ text: 'a' });
  await settle();
  assert.deepEqual(states(), ['waiting']);
  await clock.advance(399);
  assert.equal(sent.length, 1);
  await clock.advance(1);
  assert.equal(sent.length, 2);
  await clock.advance(10_000);
  assert.equal(sent.length, 3);
  assert.deepEqual(states(), ['failed']);
  assert.equal(outbox.entries[0].error.detail, 'because rate_limited');
  outbox.retry('k1');
  await settle();
  assert.equal(sent.length, 4);
  assert.deepEqual(new Set(sent.map(([id]) => id)), new Set(['k1']));
});

test('others wait behind a delayed entry, and pass a failed one', async () => {
  const { outbox, sent, clock } = outboxWith([refusal('overloaded', { after_ms: 100, budget_ms: 5_000 }), refusal('too_large'), { seq: 3 }]);
  outbox.online();
  outbox.add({ text: 'a' });
  outbox.add({ text: 'b' });
  await settle();
  assert.deepEqual(sent.map(([id]) => id), ['k1']);
  await clock.advance(100);
  assert.deepEqual(sent.map(([id]) => id), ['k1', 'k1', 'k2']);
  assert.equal(outbox.entries[0].state, 'failed');
});

test('without a directive there is no retry, only discard', async () => {
  const { outbox, sent, clock } = outboxWith([refusal('forbidden')]);
  outbox.online();
  outbox.add({ text: 'a' });
  await clock.advance(60_000);
  outbox.retry('k1');
  await settle();
  assert.equal(sent.length, 1);
  assert.deepEqual(outbox.discard('k1'), { text: 'a' });
  assert.deepEqual(outbox.entries, []);
});

test('a budget counts only the time in which there was a connection', async () => {
  const busy = refusal('conversation_unavailable', { after_ms: 400, budget_ms: 1_000 });
  const { outbox, sent, clock, states } = outboxWith([busy, busy, { seq: 1 }]);
  outbox.online();
  outbox.add({ text: 'a' });
  await clock.advance(400);
  outbox.offline();
  await clock.advance(60_000);
  assert.deepEqual([sent.length, states()], [2, ['queued']]);
  outbox.online();
  await clock.advance(400);
  assert.deepEqual([sent.length, states()], [3, ['acked']]);
});

test('a message that the server never answers has failed in the end', async () => {
  const { outbox, sent, clock, states } = outboxWith([timedOut()]);
  outbox.online();
  outbox.add({ text: 'a' });
  await clock.advance(60_000);
  assert.deepEqual([sent.length, states()], [30, ['failed']]);
  assert.equal(new Set(sent.map(([id]) => id)).size, 1);
});

test('what happened to each message is told once: by its answer or its record', async () => {
  const { outbox } = outboxWith([{ seq: 4, epoch: 2, at: 't', duplicate: true }, new Promise(() => {}), refusal('forbidden'), { seq: 9 }]);
  const told = [];
  outbox.on('delivered', ({ entry, receipt }) => told.push([entry.client_msg_id, receipt.seq, receipt.duplicate]));
  outbox.on('failed', (entry) => told.push([entry.client_msg_id, entry.error.code]));
  outbox.online();
  for (const text of ['a', 'b', 'c']) outbox.add({ text });
  await settle();
  outbox.settle(message(4, 'a', { client_msg_id: 'k1' }));
  outbox.settle(message(5, 'b', { client_msg_id: 'k2' }));
  await settle();
  outbox.add({ text: 'd' });
  outbox.refuse(refusal('closed'));
  await settle();
  assert.deepEqual(told, [['k1', 4, true], ['k2', 5, false], ['k3', 'forbidden'], ['k4', 'closed']]);
});

test('a key that is on its way is the same message, and no other', async () => {
  const { outbox, sent } = outboxWith([refusal('forbidden'), { seq: 1 }]);
  const entry = outbox.add({ text: 'a' }, 'mine');
  assert.equal(outbox.add({ text: 'a' }, 'mine'), entry);
  assert.throws(() => outbox.add({ text: 'b' }, 'mine'), { code: 'idempotency_key_reused' });
  outbox.online();
  await settle();
  assert.equal(entry.state, 'failed');
  outbox.add({ text: 'a' }, 'mine');
  await settle();
  assert.deepEqual([entry.state, sent], ['acked', [['mine', 'a'], ['mine', 'a']]]);
});

test('a storage that is full loses the reload, not the message', async () => {
  const storage = { ...fakeStorage(), setItem: () => { throw new Error('quota'); } };
  const { outbox, sent } = outboxWith([{ seq: 1 }], { storage });
  outbox.online();
  outbox.add({ text: 'a' });
  await settle();
  assert.equal(sent.length, 1);
});

test('is slow after three seconds without an answer', async () => {
  const { outbox, clock } = outboxWith([{ seq: 1 }]);
  outbox.add({ text: 'a' });
  await clock.advance(2_999);
  assert.equal(outbox.entries[0].slow, false);
  await clock.advance(1);
  assert.equal(outbox.entries[0].slow, true);
});

test('entries survive a reload with their keys', async () => {
  const storage = fakeStorage();
  const first = outboxWith([disconnected()], { storage });
  first.outbox.online();
  first.outbox.add({ text: 'a' });
  await settle();
  const second = outboxWith([{ seq: 1 }], { storage });
  second.outbox.online();
  await settle();
  assert.deepEqual(second.sent, [['k1', 'a']]);
  second.outbox.settle(recordOf('k1'));
  assert.equal(storage.items.size, 0);
});

test('a damaged storage is an empty outbox', () => {
  const storage = fakeStorage();
  storage.setItem('outbox', '{');
  assert.deepEqual(outboxWith([], { storage }).outbox.entries, []);
});

test('holds a hundred at most', () => {
  const { outbox } = outboxWith([]);
  for (let count = 0; count < 100; count += 1) assert.equal(outbox.add({ text: 'x' }).state, 'queued');
  assert.equal(outbox.add({ text: 'x' }), null);
});

test('a refused message is placed behind what was there, until it is tried again; a reload keeps the place', async () => {
  const storage = fakeStorage();
  let position = 3;
  const more = { storage, position: () => position };
  const { outbox, clock } = outboxWith([{ seq: 8 }, refusal('rate_limited', { after_ms: 10, budget_ms: 15 })], more);
  const places = (box) => box.entries.map(({ state, after }) => [state, after]);
  outbox.add({ text: 'a' });
  outbox.add({ text: 'b' });
  outbox.online();
  await clock.advance(20);
  // The first one's record has not come yet, but it precedes the refusal.
  assert.deepEqual(places(outbox), [['acked', null], ['failed', 8]]);
  outbox.settle(recordOf('k1'));
  position = 20;
  assert.deepEqual(places(outboxWith([{ seq: 30 }], more).outbox), [['failed', 8]]);
  outbox.retry('k2');
  assert.deepEqual(places(outbox), [['sending', null]]);
});
