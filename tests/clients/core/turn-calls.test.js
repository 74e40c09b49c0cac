/** What a room asks of turns: the calls that leave it, and what becomes of their answers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Emitter } from '../../../clients/typescript/core/emitter.js';
import { Http } from '../../../clients/typescript/core/http.js';
import { Room } from '../../../clients/typescript/src/room.js';
import { FakeClock, settle } from './fakes.js';

/** A connection on which nothing happens. */
class NoSocket extends Emitter {
  channel() { return Object.assign(new Emitter(), { state: 'closed', join() {}, rejoin() {}, leave() {} }); }
}

const done = { turn: 7, seq: 9, epoch: 1, at: '2026-01-01T00:00:00.000Z', duplicate: false };

/** A room whose calls are answered from a list: `[status, document]` each, or nothing for a lost connection. */
function room(answers) {
  const clock = new FakeClock();
  const calls = [];
  const fetch = async (url, { method, body }) => {
    calls.push([method, url, body === undefined ? undefined : JSON.parse(body)]);
    const answer = answers.shift();
    if (answer === undefined) throw new TypeError('fetch failed');
    const [status, document] = answer;
    return { ok: status < 300, status, json: async () => document };
  };
  const api = new Http({ fetch, token: () => 'a token', clock });
  const asking = new Room({
    id: 'a desk', me: () => 'alice', api, socket: new NoSocket(), clock, random: () => 0, newId: () => 'fresh',
  }, { onLeft: () => {} });
  return { asking, calls, clock };
}

test('each call has its path and its body', async () => {
  const { asking, calls } = room([[200, done], [200, done], [200, done], [202, done], [202, done], [200, { turn: 7, state: 'running' }]]);
  assert.deepEqual(await asking.cancel(7), done);
  await asking.cancel(7, 'rollback');
  await asking.resolve('7-pay #2?', { approve: true });
  await asking.regenerate(7);
  await asking.regenerate(7, { clientMsgId: 'mine' });
  assert.equal((await asking.turn(7)).state, 'running');
  const path = '/v1/conversations/a%20desk';
  assert.deepEqual(calls, [
    ['POST', `${path}/turns/7/cancel`, { mode: 'keep' }],
    ['POST', `${path}/turns/7/cancel`, { mode: 'rollback' }],
    ['POST', `${path}/awaits/7-pay%20%232%3F`, { payload: { approve: true } }],
    ['POST', `${path}/turns`, { client_msg_id: 'fresh', regenerate: 7 }],
    ['POST', `${path}/turns`, { client_msg_id: 'mine', regenerate: 7 }],
    ['GET', `${path}/turns/7`, undefined],
  ]);
});

test('a payload may be any JSON', async () => {
  for (const payload of [null, false, 0, '', [1], { text: 'x' }]) {
    const { asking, calls } = room([[200, done]]);
    await asking.resolve('7-m1', payload);
    assert.deepEqual(calls[0][2], { payload });
  }
});

test('a directive is obeyed with the same call; what has none is surfaced', async () => {
  const retry = { after_ms: 100, budget_ms: 5_000 };
  const { asking, calls, clock } = room([
    [503, { code: 'conversation_unavailable', retry }],
    [409, { code: 'conflict', detail: 'turn: 7 has ended by turn.completed, seq 9' }],
  ]);
  const cancelled = asking.cancel(7);
  const refused = assert.rejects(cancelled, { code: 'conflict', status: 409, retry: null, detail: /seq 9$/ });
  await settle();
  assert.equal(calls.length, 1);
  await clock.advance(99);
  assert.equal(calls.length, 1, 'not before its time');
  await clock.advance(1);
  await refused;
  assert.deepEqual(calls[1], calls[0]);
});

test('a lost answer is said, for the caller may ask again', async () => {
  const { asking, calls } = room([]);
  await assert.rejects(asking.resolve('7-m1', true), { code: 'disconnected', retry: null });
  assert.equal(calls.length, 1);
});
