/**
 * Random runs of a conversation over a bad line to a model server, and the mutants that they must catch.
 * A run that fails names its seed: CONCH_SEED=… runs it first.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Turns } from '../../../clients/typescript/core/turns.js';
import { between, randomFrom, seed } from '../harness/random.js';
import { run } from './model.js';

const RUNS = 150;
const MUTANT_RUNS = 40;

test('whatever happens, each message is in the log once, in order, and everything is shown once, in order', async (t) => {
  t.diagnostic(`CONCH_SEED=${seed}`);
  for (let number = seed; number < seed + RUNS; number += 1) assert.deepEqual(await run(number), [], `CONCH_SEED=${number}`);
});

/** Each breaks one rule of the client. */
const MUTANTS = {
  'a new key for each attempt': ({ channel }) => {
    const push = channel.push.bind(channel);
    let count = 0;
    channel.push = (event, payload) => push(event, { ...payload, client_msg_id: `new-${++count}` });
  },
  'sent counts as delivered': ({ channel }) => {
    const push = channel.push.bind(channel);
    channel.push = async (event, payload) => {
      push(event, payload).catch(() => {});
      return { seq: 0, epoch: 1, at: '', duplicate: false };
    };
  },
  'a directive is not obeyed': ({ channel }) => {
    const push = channel.push.bind(channel);
    channel.push = (event, payload) => push(event, payload).catch((refusal) => {
      refusal.retry = null;
      throw refusal;
    });
  },
  'a record is applied whatever its seq': ({ conversation: { timeline } }) => {
    timeline.apply = (record) => {
      timeline.records.push(record);
      timeline.position = record.seq;
      return true;
    };
  },
  'a rejoin does not say where it was': (world) => { world.params = () => ({}); },
  'a rejoin says where the first one was': (world) => {
    const params = world.params;
    let first = null;
    world.params = () => { first ??= params(); return first; };
  },
  'waits for a missing number': ({ conversation: { timeline } }) => {
    const apply = timeline.apply.bind(timeline);
    timeline.apply = (record) => record.seq === (timeline.position ?? 0) + 1 && apply(record);
  },
  'a position is good in every log': (world) => {
    const params = world.params;
    world.params = () => ({ ...params(), log: world.server.log });
  },
};

for (const [name, mutate] of Object.entries(MUTANTS)) {
  test(`mutant caught: ${name}`, async () => {
    for (let number = 1; number <= MUTANT_RUNS; number += 1) {
      if ((await run(number, mutate)).length > 0) return;
    }
    assert.fail(`${MUTANT_RUNS} runs saw nothing`);
  });
}

test('what is shown of a step is always the beginning of one attempt, and never of an older one', (t) => {
  t.diagnostic(`CONCH_SEED=${seed}`);
  for (let number = seed; number < seed + RUNS; number += 1) {
    const random = randomFrom(number);
    const turns = new Turns();
    const attempts = Array.from({ length: 3 }, (_, index) => ({ epoch: 1 + (index >> 1), attempt: 1 + index, text: `${index}: 🐚 wörds ${'x🐚'.repeat(between(random, 0, 9))}` }));
    let reached = 0;
    for (let step = 0; step < 200; step += 1) {
      reached = Math.min(attempts.length - 1, reached + (random() < 0.02 ? 1 : 0));
      const of = attempts[between(random, 0, reached)];
      const from = between(random, 0, of.text.length);
      const to = between(random, from, of.text.length);
      const at = { turn: 5, step: 'm1', epoch: of.epoch, attempt: of.attempt };
      const before = turns.get(5)?.steps[0];
      const fate = random();
      if (fate < 0.1) turns.live('turn.snapshot', { ...at, offset: to, text: of.text.slice(0, to) });
      else if (fate < 0.15) turns.live('step.reset', at);
      else turns.live('delta', { ...at, offset: from, text: of.text.slice(from, to) });
      const shown = turns.get(5)?.steps[0];
      if (!shown) continue;
      const shownOf = attempts[shown.attempt - 1];
      assert.ok(shownOf.text.startsWith(shown.text), `CONCH_SEED=${number}: "${shown.text}" of "${shownOf.text}"`);
      assert.ok(!before || shown.attempt >= before.attempt, `CONCH_SEED=${number}: back to attempt ${shown.attempt}`);
    }
  }
});
