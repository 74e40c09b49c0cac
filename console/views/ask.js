/**
 * What a turn asks a person: a question with buttons, or a field where it wants more than a yes or no; then what came of it.
 *
 * Invariant: an answer is sent once; while it is on its way nothing can be pressed; a refusal is shown where it was given.
 * Deliberately does not: check the answer against the schema, which the server does.
 */
import { h } from './dom.js';
import { icon } from './icons.js';
import { clockTime, dayOf, fullTime, sentence } from './format.js';

/** `resolve(await, payload)`: a promise of the server's answer. */
export function askView({ resolve }) {
  const element = h('div.ask');
  let shown = null;
  const update = (ask) => {
    const next = JSON.stringify(ask);
    if (next === shown) return;
    shown = next;
    element.dataset.state = ask.answer === null ? 'open' : ask.answer.expired ? 'expired' : 'answered';
    const question = h('p.ask-question', {}, icon('hand'), h('span', {}, ask.prompt ?? 'The agent needs an answer.'));
    element.replaceChildren(question, ...(ask.answer === null ? openAsk(ask, resolve) : [h('p.ask-answer', {}, answered(ask))]));
  };
  return { element, update };
}

function openAsk(ask, resolve) {
  const error = h('p.form-error', { role: 'alert' });
  const until = h('p.ask-until', {}, `Waits until ${dayOf(ask.expiresAt) === dayOf(Date.now()) ? clockTime(ask.expiresAt) : fullTime(ask.expiresAt)}.`);
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
  const approval = approvalOf(ask.schema);
  controls.replaceChildren(...(approval ? verdicts(approval, answer) : field(ask.schema, answer, error)));
  return [controls, until, error];
}

/** How yes and no are said, where the schema asks for no more than that: a boolean, or an object with one. */
function approvalOf(schema) {
  if (schema?.type === 'boolean') return (verdict) => verdict;
  const [[name, property] = [], ...others] = Object.entries(schema?.properties ?? {});
  if (others.length > 0 || property?.type !== 'boolean') return null;
  return (verdict) => ({ [name]: verdict });
}

function verdicts(said, answer) {
  return [
    h('button.primary', { type: 'button', onclick: () => answer(said(true)) }, 'Approve'),
    h('button.secondary', { type: 'button', onclick: () => answer(said(false)) }, 'Decline'),
  ];
}

/** Words where words are wanted; else JSON, with the schema to look at. */
function field(schema, answer, error) {
  const isText = schema?.type === 'string';
  const input = h('textarea.ask-field', { rows: isText ? '2' : '4', 'aria-label': isText ? 'Your answer' : 'Your answer, as JSON' });
  if (!isText) input.placeholder = JSON.stringify(schema);
  const send = () => {
    try {
      answer(isText ? input.value : JSON.parse(input.value));
    } catch {
      error.textContent = 'This is not JSON.';
    }
  };
  return [input, h('button.primary', { type: 'button', onclick: send }, 'Answer')];
}

function answered({ schema, answer: { payload, expired, by } }) {
  if (expired) return 'Nobody answered in time.';
  const yes = approvalOf(schema)?.(true);
  const verdict = yes === undefined ? null : JSON.stringify(payload) === JSON.stringify(yes) ? 'Approved' : 'Declined';
  const words = verdict ?? (typeof payload === 'string' ? payload : JSON.stringify(payload));
  return verdict && by ? `${words} by ${by}.` : by ? `${by}: ${words}` : verdict ? `${words}.` : words;
}
