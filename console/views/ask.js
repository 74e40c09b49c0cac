/**
 * What a turn asks a person: a question with a button for each answer that its schema names, or else a field; then what came of it.
 *
 * Invariant: an answer is sent once; while it is on its way nothing can be pressed; a refusal is shown where it was given.
 * Deliberately does not: check the answer against the schema, which the server does.
 */
import { choicesOf, said } from '../core/choices.js';
import { h } from './dom.js';
import { icon } from './icons.js';
import { clockTime, dayOf, fullTime, sentence } from './format.js';

/** `resolve(await, payload)`: a promise of the server's answer; null for who may not answer. */
export function askView(resolve) {
  const element = h('div.ask');
  let shown = null;
  const update = (ask) => {
    const next = JSON.stringify(ask);
    if (next === shown) return;
    shown = next;
    element.dataset.state = stateOf(ask);
    const question = h('p.ask-question', {}, icon('hand'), h('span', {}, ask.prompt ?? 'The agent needs an answer.'));
    element.replaceChildren(question, ...(ask.answer === null ? openAsk(ask, resolve) : [h('p.ask-answer', {}, answered(ask))]));
  };
  return { element, update };
}

function stateOf({ answer }) {
  if (answer === null) return 'open';
  return answer.closed ? 'closed' : answer.expired ? 'expired' : 'answered';
}

function openAsk(ask, resolve) {
  const until = h('p.ask-until', {}, `Waits until ${dayOf(ask.expiresAt) === dayOf(Date.now()) ? clockTime(ask.expiresAt) : fullTime(ask.expiresAt)}.`);
  if (resolve === null) return [h('p.ask-answer', {}, 'Whoever may run turns here can answer.'), until];
  const error = h('p.form-error', { role: 'alert' });
  const controls = h('div.ask-controls');
  const answer = async (payload) => {
    error.textContent = '';
    for (const control of controls.children) control.disabled = true;
    try {
      await resolve(ask.id, payload);
    } catch (refusal) {
      error.textContent = sentence(refusal.detail ?? 'The answer did not arrive');
      for (const control of controls.children) control.disabled = false;
    }
  };
  const choices = choicesOf(ask.schema);
  controls.replaceChildren(...(choices ? buttons(choices, answer) : field(ask.schema, answer, error)));
  const hint = choices ? null : hintView(ask.schema);
  if (hint) controls.querySelector('textarea').setAttribute('aria-describedby', hint.id);
  return [...(hint ? [hint] : []), controls, until, error];
}

const buttons = (choices, answer) => choices.map(({ label, payload }, index) =>
  h(index === 0 ? 'button.primary' : 'button.secondary', { type: 'button', onclick: () => answer(payload) }, label));

/** Words where words are wanted; else JSON. */
function field(schema, answer, error) {
  const isText = schema?.type === 'string';
  const input = h('textarea.ask-field', { rows: isText ? '2' : '4', 'aria-label': isText ? 'Your answer' : 'Your answer, as JSON' });
  const send = () => {
    let payload;
    try {
      payload = isText ? input.value : JSON.parse(input.value);
    } catch {
      error.textContent = 'This is not JSON.';
      return;
    }
    answer(payload);
  };
  return [input, h('button.primary', { type: 'button', onclick: send }, 'Answer')];
}

let hints = 0;

/** What an answer must look like, which stays in sight while one writes; null: any text will do. */
function hintView(schema) {
  const isAnyText = schema?.type === 'string' && Object.keys(schema).every((key) => key === 'type');
  if (isAnyText) return null;
  hints += 1;
  const shape = Object.keys(schema ?? {}).length === 0 ? 'Any JSON will do.' : h('code', {}, JSON.stringify(schema));
  return h('p.ask-hint', { id: `ask-hint-${hints}` }, schema?.description ? `${schema.description} ` : '', shape);
}

function answered({ schema, answer: { payload, expired, closed, by } }) {
  if (closed) return 'Closed: the turn ended before anybody answered.';
  if (expired) return 'Nobody answered in time.';
  const choice = choicesOf(schema)?.find((known) => JSON.stringify(known.payload) === JSON.stringify(payload));
  if (choice?.past) return by ? `${choice.past} by ${by}.` : `${choice.past}.`;
  const words = choice?.label ?? said(payload);
  return by ? `${by}: ${words}` : words;
}
