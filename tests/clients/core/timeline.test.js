import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Timeline, isRecord } from '../../../clients/typescript/core/timeline.js';
import { message } from './fakes.js';

const page = (records, more = {}) => ({ messages: records, head_seq: records.at(-1)?.seq ?? 0, log: 'l.1', more: false, ...more });

test('records apply once and in order; holes are normal', () => {
  const timeline = new Timeline();
  timeline.replace(page([message(3, 'a'), message(7, 'b')]));
  assert.equal(timeline.apply(message(7, 'b again')), false);
  assert.equal(timeline.apply(message(1000, 'c')), true);
  assert.equal(timeline.apply(message(5, 'late')), false);
  assert.deepEqual(timeline.records.map(({ seq }) => seq), [3, 7, 1000]);
  assert.deepEqual(timeline.joinParams(), { after: 1000, log: 'l.1' });
});

test('the position covers what carries no record, and never moves back', () => {
  const timeline = new Timeline();
  timeline.replace(page([message(3, 'a')], { head_seq: 9 }));
  assert.equal(timeline.position, 9);
  timeline.advance(12);
  timeline.advance(4);
  timeline.advance(undefined);
  assert.equal(timeline.position, 12);
});

test('an empty conversation joins from zero, an unknown one says nothing', () => {
  const timeline = new Timeline();
  assert.deepEqual(timeline.joinParams(), {});
  timeline.replace(page([]));
  assert.deepEqual(timeline.joinParams(), { after: 0, log: 'l.1' });
});

test('an older page goes in front without doubling, another log is refused', () => {
  const timeline = new Timeline();
  timeline.replace(page([message(10, 'b')], { more: true }));
  assert.equal(timeline.prepend(page([message(1, 'x')], { log: 'l.2' })), false);
  assert.equal(timeline.prepend(page([message(4, 'a'), message(10, 'b')])), true);
  assert.deepEqual(timeline.records.map(({ seq }) => seq), [4, 10]);
  assert.equal(timeline.hasOlder, false);
});

test('trimming forgets the oldest and knows that the server still has them', () => {
  const timeline = new Timeline();
  timeline.replace(page([message(1, 'a'), message(2, 'b'), message(3, 'c')]));
  assert.equal(timeline.trim(3), false);
  assert.equal(timeline.trim(2), true);
  assert.equal(timeline.hasOlder, true);
  assert.deepEqual(timeline.records.map(({ seq }) => seq), [2, 3]);
});

test('a record is told from a live event', () => {
  assert.equal(isRecord(message(1, 'a')), true);
  assert.equal(isRecord({ seq: 4 }), false);
  assert.equal(isRecord({ turn: 1, step: 'm1', epoch: 1, attempt: 1, offset: 0, text: 'x' }), false);
});
