/**
 * One turn of an agent: its steps as they happen, then the answer.
 *
 * Invariant: shows exactly what core/turns.js says; when the answer is there, its record's words replace streamed ones.
 * Deliberately does not: announce every delta to screen readers; the answer is announced once, when it is whole.
 */
import { h, keyed, setText } from './dom.js';
import { icon } from './icons.js';
import { clockTime, fullTime } from './format.js';
import { rich } from './text.js';

const REASONS = {
  owner_lost: 'The server stopped in the middle of this answer. Ask again to have another.',
  agent_failed: 'The agent gave no answer.',
  agent_unknown: 'This server does not have that agent.',
  append_refused: 'The answer could not be written down.',
  step_too_large: 'A step of this answer was too large to keep.',
  too_many_steps: 'This answer took too many steps.',
  journal_too_large: 'The steps of this answer were too large to keep.',
  too_many_tokens: 'This answer used up the tokens that it may use.',
  deadline_passed: 'This answer took too long.',
  no_progress: 'Server after server stopped in the middle of this answer. Ask again to have another.',
  journal_mismatch: 'The agent did not go on as it began. Ask again to have another answer.',
};

export function turnView() {
  const agent = h('span.sender');
  const time = h('time');
  const status = h('span.turn-status');
  const steps = h('ol.steps');
  const words = h('div.answer');
  const end = h('p.turn-end', { hidden: true });
  const element = h('li.turn', {}, h('div.message-avatar', {}, h('span.avatar.avatar-agent', { 'aria-hidden': 'true' }, icon('spark'))),
    h('div.message-main', {}, h('div.message-head', {}, agent, time, status), steps, words, end));
  let components = new Map();
  let shown = null;

  const update = ({ turn, isInterrupted }) => {
    const streaming = turn.steps.findLast((step) => !step.done && step.type === 'model');
    const isRunning = turn.state === 'running' && !turn.answer;
    element.dataset.state = turn.answer ? 'completed' : turn.state;
    element.setAttribute('aria-busy', String(isRunning));
    setText(agent, turn.agent ?? 'agent');
    const at = turn.answer?.at ?? turn.startedAt;
    if (at) {
      setText(time, clockTime(at));
      time.dateTime = at;
      time.title = fullTime(at);
    }
    element.classList.toggle('is-interrupted', isRunning && isInterrupted);
    setText(status, isRunning ? activity(turn, streaming, isInterrupted) : '');
    components = keyed(steps, stepItems(turn, streaming), components, () => stepView());
    steps.hidden = components.size === 0;
    const text = turn.answer?.body?.text ?? streaming?.text ?? closing(turn)?.text ?? '';
    if (text !== shown) {
      shown = text;
      words.replaceChildren(...rich(text));
    }
    words.classList.toggle('is-streaming', isRunning);
    const ending = endOf(turn);
    end.hidden = ending === null;
    setText(end, ending ?? '');
  };
  return { element, update };
}

/** Without a connection nobody knows how far the agent is. */
function activity(turn, streaming, isInterrupted) {
  if (isInterrupted) return 'Interrupted: no connection';
  if (streaming?.text) return 'Writing…';
  return turn.steps.some((step) => step.type === 'tool' && step.done) ? 'Reading the result…' : 'Thinking…';
}

/** Tool calls, and what the model said on its way to them; its last words are the answer and shown there. */
function stepItems(turn, streaming) {
  const answer = turn.answer?.body?.text;
  const last = streaming ? null : closing(turn);
  return turn.steps
    .filter((step) => step.type !== 'model' || (step.done && step.text && step.text !== answer && step !== last))
    .map((step) => ({ key: step.step, type: step.type, step }));
}

/** The model's words that nothing has followed yet: they stay where they were streamed until the answer or a tool call comes. */
function closing(turn) {
  const last = turn.steps.at(-1);
  return !turn.answer && last?.type === 'model' && last.done ? last : null;
}

function endOf({ state, reason, answer }) {
  if (state === 'failed') return REASONS[reason] ?? `This answer failed${reason ? ` (${reason})` : ''}.`;
  if (state === 'cancelled') return answer ? null : 'This answer was cancelled.';
  if (state === 'superseded') return 'Replaced by a newer answer.';
  return null;
}

function stepView() {
  const element = h('li.step');
  let signature = null;
  const update = ({ step }) => {
    const next = JSON.stringify(step);
    if (next === signature) return;
    signature = next;
    const wasOpen = element.querySelector('details')?.open ?? false;
    element.dataset.step = step.step;
    element.dataset.kind = step.type;
    element.replaceChildren(step.type === 'tool' ? toolCall(step, wasOpen) : h('div.step-words', {}, ...rich(step.text)));
  };
  return { element, update };
}

function toolCall({ name, input, output, done }, isOpen) {
  return h('details', { open: isOpen },
    h('summary', {}, icon('tool'), h('span.tool-name', {}, name ?? 'tool'), h('span.tool-input', {}, brief(input)),
      h('span.tool-state', {}, done ? icon('check') : null, h('span.sr-only', {}, done ? 'done' : 'running'))),
    h('dl', {}, h('dt', {}, 'Input'), h('dd', {}, h('pre', { tabindex: '0' }, pretty(input))),
      h('dt', {}, 'Output'), h('dd', {}, h('pre', { tabindex: '0' }, pretty(output)))));
}

const pretty = (value) => (value === undefined ? '—' : typeof value === 'string' ? value : JSON.stringify(value, null, 2));

/** `place: Brest, day: today`, as far as one line shows it. */
function brief(input) {
  if (input === undefined || input === null) return '';
  const plain = (value) => (typeof value === 'object' ? JSON.stringify(value) : String(value));
  const isFields = typeof input === 'object' && !Array.isArray(input);
  const text = isFields ? Object.entries(input).map(([key, value]) => `${key}: ${plain(value)}`).join(', ') : plain(input);
  return text.slice(0, 80);
}
