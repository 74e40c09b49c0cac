import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Turns, turnOf } from '../../../clients/typescript/core/turns.js';
import { message } from './fakes.js';

const record = (seq, kind, body, more = {}) => ({ seq, kind, conversation: 'c', sender: '@x', at: '2026-11-30T10:00:00.000Z', epoch: 1, turn: 5, body, ...more });
const delta = (offset, text, more = {}) => ({ turn: 5, step: 'm1', epoch: 1, attempt: 1, offset, text, ...more });
const streamed = (turns, step = 'm1') => turns.get(5).steps.find((known) => known.step === step)?.text;

test('deltas apply only where they fit', () => {
  const cases = [
    ['in order', [delta(0, 'Hel'), delta(3, 'lo')], 'Hello'],
    ['twice the same', [delta(0, 'Hel'), delta(0, 'Hel'), delta(3, 'lo')], 'Hello'],
    ['a gap waits', [delta(0, 'Hel'), delta(5, '!!')], 'Hel'],
    ['beginning missed', [delta(3, 'lo')], undefined],
    ['offsets count UTF-16 units', [delta(0, 'a🐚'), delta(3, 'b')], 'a🐚b'],
    ['offsets are not code points', [delta(0, 'a🐚'), delta(2, 'b')], 'a🐚'],
    ['a later attempt starts over', [delta(0, 'old'), delta(0, 'new', { attempt: 2 })], 'new'],
    ['a later attempt in its middle waits', [delta(0, 'old'), delta(2, 'w', { attempt: 2 })], 'old'],
    ['an earlier attempt is ignored', [delta(0, 'new', { attempt: 2 }), delta(3, 'old')], 'new'],
    ['an earlier epoch is ignored, whatever its attempt', [delta(0, 'new', { epoch: 2 }), delta(3, 'x', { attempt: 9 })], 'new'],
  ];
  for (const [name, deltas, expected] of cases) {
    const turns = new Turns();
    turns.record(record(6, 'turn.started', { agent: 'demo' }));
    for (const payload of deltas) turns.live('delta', payload);
    assert.equal(streamed(turns), expected, name);
  }
});

test('live() says whether anything has changed', () => {
  const turns = new Turns();
  assert.equal(turns.live('delta', delta(0, 'a')), 5);
  assert.equal(turns.live('delta', delta(0, 'a')), null);
  assert.equal(turns.live('unknown', delta(1, 'b')), null);
});

test('a snapshot replaces, also after a gap; a stale one does not', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.live('delta', delta(0, 'Hel'));
  turns.live('turn.snapshot', delta(9, 'Hello wor', { attempt: 2 }));
  turns.live('delta', delta(9, 'ld', { attempt: 2 }));
  assert.equal(streamed(turns), 'Hello world');
  turns.live('turn.snapshot', delta(3, 'old', { attempt: 1 }));
  assert.equal(streamed(turns), 'Hello world');
});

test('a reset retracts the text; the old attempt cannot come back', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.live('delta', delta(0, 'half a'));
  turns.live('turn.resumed', { turn: 5, epoch: 2 });
  assert.equal(streamed(turns), 'half a');
  turns.live('step.reset', { turn: 5, step: 'm1', epoch: 2, attempt: 2 });
  assert.equal(streamed(turns), '');
  turns.live('delta', delta(6, 'n answer'));
  assert.equal(streamed(turns), '');
  turns.live('delta', delta(0, 'whole', { epoch: 2, attempt: 2 }));
  assert.equal(streamed(turns), 'whole');
});

test('a completed step and an end win over what streams', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.live('delta', delta(0, 'Let me'));
  turns.record(record(7, 'step.completed', { step: 'm1', type: 'model', output: { text: 'Let me look.' } }));
  assert.equal(turns.live('delta', delta(6, ' look')), null);
  assert.deepEqual(turns.get(5).steps.map(({ step, text, done }) => [step, text, done]), [['m1', 'Let me look.', true]]);
  turns.record(record(8, 'step.completed', { step: 'm1.t0', type: 'tool', name: 'lookup', input: { q: 1 }, output: 2 }));
  turns.live('delta', delta(0, 'It is', { step: 'm2' }));
  assert.deepEqual(turns.get(5).steps.map(({ step }) => step), ['m1', 'm1.t0', 'm2']);
  turns.record(message(9, 'It is 2.', { sender: '@agent:demo', turn: 5 }));
  turns.record(record(10, 'turn.completed', {}));
  const turn = turns.get(5);
  assert.equal(turn.state, 'completed');
  assert.equal(turn.answer.body.text, 'It is 2.');
  assert.deepEqual(turn.steps.map(({ step }) => step), ['m1', 'm1.t0']);
  assert.equal(turns.live('delta', delta(5, ' late', { step: 'm2' })), null);
});

test('what the model asks for is shown before it is done, and a repeated call says so', () => {
  const turns = new Turns();
  const steps = () => turns.get(5).steps.map(({ step, name, done, attempt, status }) => [step, name, done, attempt, status]);
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.record(record(7, 'step.completed', { step: 'm1', type: 'model', output: '', calls: [{ name: 'pay', input: 1 }, { name: 'look', input: 2 }] }));
  assert.deepEqual(steps().slice(1), [['m1.t0', 'pay', false, undefined, undefined], ['m1.t1', 'look', false, undefined, undefined]]);
  turns.record(record(8, 'step.started', { step: 'm1.t0', attempt: 2, name: 'pay', input: 1 }));
  turns.record(record(9, 'step.completed', { step: 'm1.t0', type: 'tool', name: 'pay', input: 1, output: null, status: 'unknown' }));
  assert.deepEqual(steps().slice(1), [['m1.t0', 'pay', true, 2, 'unknown'], ['m1.t1', 'look', false, undefined, undefined]]);
});

test('a call that is tried again after a takeover keeps its name, and its place is after it', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.record(record(7, 'step.completed', { step: 'm1', type: 'model', output: '', calls: [{ name: 'pay', input: 1 }] }));
  turns.live('turn.resumed', { turn: 5, epoch: 2 });
  turns.live('step.reset', { turn: 5, step: 'm1.t0', epoch: 2, attempt: 2 });
  const shown = turns.get(5).steps.map(({ step, name, done, attempt }) => [step, name, done, attempt]);
  assert.deepEqual(shown.slice(1), [['epoch:2', undefined, true, undefined], ['m1.t0', 'pay', false, undefined]]);
});

test('a call is counted as it is written down, not as often as its turn is run', () => {
  const called = (records, live = []) => {
    const turns = new Turns();
    turns.record(record(6, 'turn.started', { agent: 'demo' }));
    turns.record(record(7, 'step.completed', { step: 'm1', type: 'model', output: '', calls: [{ name: 'pay', input: 1 }] }));
    for (const [event, payload] of live) turns.live(event, payload);
    for (const each of records) turns.record(each);
    const { attempt, calledAgain } = turns.get(5).steps.find(({ step }) => step === 'm1.t0');
    return { attempt, calledAgain };
  };
  const begun = (epoch, attempt) => record(8 + attempt, 'step.started', { step: 'm1.t0', attempt, name: 'pay', input: 1 }, { epoch });
  const over = (epoch, more = {}) => record(20, 'step.completed', { step: 'm1.t0', type: 'tool', name: 'pay', input: 1, output: 2, ...more }, { epoch });
  const approved = [['step.reset', { turn: 5, step: 'm1.t0', epoch: 1, attempt: 2 }]];
  assert.deepEqual(called([begun(1, 1)], approved), { attempt: 1, calledAgain: undefined }, 'once, by the second run of the turn');
  assert.deepEqual(called([begun(1, 1), over(1)], approved), { attempt: 1, calledAgain: undefined });
  assert.deepEqual(called([begun(1, 1), over(2)]), { attempt: 1, calledAgain: 2 }, 'the next owner made it again');
  assert.deepEqual(called([begun(1, 1), over(2, { status: 'unknown' })]), { attempt: 1, calledAgain: undefined }, 'it did not');
  assert.deepEqual(called([begun(1, 1), begun(2, 2), over(2)]), { attempt: 2, calledAgain: undefined }, 'that is written down');
});

test('a question is closed with its turn', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.record(record(7, 'await.opened', { await: '5-m1', step: 'm1', schema: {}, expires_at: 'later' }));
  turns.record(record(8, 'turn.cancelled', { mode: 'keep', by: 'alice' }));
  assert.deepEqual(turns.get(5).steps.at(-1).ask.answer, { closed: true, by: null });
});

test('a run that was rolled back has replaced nothing', () => {
  const superseded = record(11, 'turn.superseded', { reason: 'regenerate' });
  const rollback = record(14, 'turn.cancelled', { mode: 'rollback', by: 'alice' }, { turn: 12 });
  for (const order of [[superseded, rollback], [rollback, superseded]]) {
    const turns = new Turns();
    turns.record(record(6, 'turn.started', { agent: 'demo' }));
    turns.record(record(10, 'turn.completed', {}));
    turns.record(superseded);
    assert.equal(turns.get(5).state, 'superseded');
    for (const each of order) turns.record(each);
    assert.deepEqual([turns.get(5).state, turns.get(12).mode], ['completed', 'rollback']);
    turns.record(record(16, 'turn.superseded', { reason: 'regenerate' }));
    assert.equal(turns.get(5).state, 'superseded', 'by another run');
  }
});

test('an open question makes a turn wait, its answer makes it go on', () => {
  const turns = new Turns();
  const ask = () => turns.get(5).steps.find((step) => step.ask)?.ask;
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.record(record(7, 'await.opened', { await: '5-m1', step: 'm1', prompt: 'May I?', schema: {}, expires_at: 'later' }));
  assert.deepEqual([turns.get(5).state, ask()], ['waiting', { id: '5-m1', prompt: 'May I?', schema: {}, expiresAt: 'later', answer: null }]);
  turns.record(record(8, 'await.resolved', { await: '5-m1', payload: { approve: true } }, { name: 'alice' }));
  assert.deepEqual([turns.get(5).state, ask().answer], ['running', { payload: { approve: true }, by: 'alice' }]);
  const expired = new Turns();
  expired.record(record(7, 'await.opened', { await: '5-m1', step: 'm1', schema: {}, expires_at: 'later' }));
  expired.record(record(8, 'await.resolved', { await: '5-m1', expired: true }));
  assert.deepEqual(expired.get(5).steps.at(-1).ask.answer, { expired: true, by: null });
});

test('another owner is shown where it went on, from what it says and from its records alike', () => {
  const turns = new Turns();
  const shown = () => turns.get(5).steps.map(({ step }) => step);
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  turns.record(record(7, 'step.completed', { step: 'm1', type: 'model', output: 'a' }));
  assert.deepEqual([turns.get(5).epoch, shown()], [1, ['m1']]);
  turns.live('turn.resumed', { turn: 5, epoch: 3 });
  turns.live('delta', delta(0, 'b', { step: 'm2', epoch: 3 }));
  assert.deepEqual([turns.get(5).epoch, shown()], [3, ['m1', 'epoch:3', 'm2']]);
  turns.record(record(8, 'step.completed', { step: 'm2', type: 'model', output: 'b' }, { epoch: 3 }));
  turns.record(record(9, 'turn.completed', {}, { epoch: 3 }));
  assert.deepEqual([turns.get(5).epoch, shown()], [3, ['m1', 'epoch:3', 'm2']]);
});

test('an input that joined another turn says which', () => {
  const turns = new Turns();
  turns.record(record(6, 'turn.superseded', { into: 3 }));
  assert.deepEqual([turns.get(5).state, turns.get(5).into, turns.get(5).startedAt], ['superseded', 3, null]);
});

test('records of one turn may come in any order', () => {
  const turns = new Turns();
  turns.record(record(10, 'turn.failed', { reason: 'owner_lost' }));
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  const { state, reason, agent } = turns.get(5);
  assert.deepEqual({ state, reason, agent }, { state: 'failed', reason: 'owner_lost', agent: 'demo' });
});

test('the input of a turn is a message like any other', () => {
  assert.equal(turnOf(message(5, 'question')), null);
  assert.equal(turnOf(message(5, 'question', { turn: 5 })), null);
  assert.equal(turnOf(message(9, 'answer', { sender: '@agent:demo', turn: 5 })), 5);
  assert.equal(turnOf(record(6, 'turn.started', {})), 5);
});

test('a turn whose start is not loaded is listed while it streams', () => {
  const turns = new Turns();
  turns.live('turn.snapshot', delta(3, 'abc'));
  assert.deepEqual(turns.liveOnly(new Set()).map(({ id }) => id), [5]);
  turns.record(record(6, 'turn.started', { agent: 'demo' }));
  assert.deepEqual(turns.liveOnly(new Set()), []);
});
