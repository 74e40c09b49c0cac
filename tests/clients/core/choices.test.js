/** Which questions get a button for each answer. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { choicesOf } from '../../../console/core/choices.js';

const shown = (schema) => choicesOf(schema)?.map(({ label, payload }) => [label, payload]) ?? null;

test('a yes or no, and each value of an enum, is a button; alone or as an object\'s only property', () => {
  const decision = { type: 'object', required: ['decision'], properties: { decision: { enum: ['retry', 'fail'] } } };
  const cases = [
    [{ type: 'boolean' }, [['Approve', true], ['Decline', false]]],
    [{ type: 'object', properties: { approve: { type: 'boolean' } } }, [['Approve', { approve: true }], ['Decline', { approve: false }]]],
    [decision, [['retry', { decision: 'retry' }], ['fail', { decision: 'fail' }]]],
    [{ type: 'string', enum: ['S', 'M'] }, [['S', 'S'], ['M', 'M']]],
    [{ enum: [1, null, ['a']] }, [['1', 1], ['null', null], ['["a"]', ['a']]]],
  ];
  for (const [schema, expected] of cases) assert.deepEqual(shown(schema), expected, JSON.stringify(schema));
});

test('whatever wants more is written', () => {
  const cases = [
    undefined, {}, { type: 'string' }, { type: 'object' }, { enum: [] }, { enum: [1, 2, 3, 4, 5, 6, 7, 8, 9] },
    { properties: { a: { type: 'boolean' }, b: { type: 'boolean' } } }, { properties: { a: { type: 'string' } } },
  ];
  for (const schema of cases) assert.equal(shown(schema), null, JSON.stringify(schema));
});
