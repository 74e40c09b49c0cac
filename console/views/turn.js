/**
 * One turn of an agent: who runs it, its steps as they happen, what it asks, then the answer.
 *
 * Invariant: shows exactly what core/turns.js says; when the answer is there, its record's words replace streamed ones.
 * Deliberately does not: announce every delta to screen readers; the answer is announced once, when it is whole.
 */
import { h, keyed, setText } from './dom.js';
import { icon } from './icons.js';
import { clockTime, fullTime, sentence } from './format.js';
import { rich } from './text.js';
import { askView } from './ask.js';

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

/**
 * `actions`: {cancel(turn, mode), resolve(await, payload), regenerate(turn)}, each a promise, or null for who may do none; `nodeOf(epoch)`: a node's name or null.
 * The item to draw: {turn, isInterrupted: without a connection, isLatest: nothing was said after it}.
 */
export function turnView({ actions, nodeOf }) {
  const agent = h('span.sender');
  const time = h('time');
  const runner = h('span.turn-runner');
  const status = h('span.turn-status');
  const steps = h('ol.steps');
  const words = h('div.answer');
  const end = h('p.turn-end', { hidden: true });
  const error = h('p.form-error', { role: 'alert' });
  let shownTurn = null;
  const act = (call) => async ({ currentTarget: button }) => {
    setText(error, '');
    button.disabled = true;
    await call(shownTurn.id).catch((refusal) => setText(error, sentence(refusal.detail ?? 'That did not arrive')));
    button.disabled = false;
  };
  const button = (name, label, title, call) => h(`button.turn-button.turn-${name}`, { type: 'button', title, onclick: act(call) }, icon(name), label);
  const stop = button('stop', 'Stop', 'Stop the agent and keep what it has said', (turn) => actions.cancel(turn, 'keep'));
  const discard = button('discard', 'Discard', 'Stop the agent and keep nothing of it', (turn) => actions.cancel(turn, 'rollback'));
  const again = button('again', 'Answer again', 'Replace this answer by another one', (turn) => actions.regenerate(turn));
  const foot = h('div.turn-foot', {}, stop, discard, again);
  const element = h('li.turn', {}, h('div.message-avatar', {}, h('span.avatar.avatar-agent', { 'aria-hidden': 'true' }, icon('spark'))),
    h('div.message-main', {}, h('div.message-head', {}, agent, time, runner, status), steps, words, end, foot, error));
  let components = new Map();
  let shown = null;

  const update = ({ turn, isInterrupted, isLatest }) => {
    shownTurn = turn;
    const streaming = turn.steps.findLast((step) => !step.done && step.type === 'model');
    const isWaiting = turn.state === 'waiting';
    const isRunning = (turn.state === 'running' || isWaiting) && !turn.answer;
    element.dataset.state = turn.answer && turn.state === 'running' ? 'completed' : turn.state;
    element.setAttribute('aria-busy', String(isRunning && !isWaiting));
    setText(agent, turn.agent ?? 'agent');
    const at = turn.answer?.at ?? turn.startedAt;
    if (at) {
      setText(time, clockTime(at));
      time.dateTime = at;
      time.title = fullTime(at);
    }
    element.classList.toggle('is-interrupted', isRunning && isInterrupted);
    setText(runner, isRunning ? place(turn.epoch, nodeOf) : '');
    setText(status, isRunning ? activity(turn, streaming, isInterrupted) : '');
    components = keyed(steps, stepItems(turn, streaming, nodeOf), components, (item) => stepView(item, actions));
    steps.hidden = components.size === 0;
    const text = turn.answer?.body?.text ?? streaming?.text ?? closing(turn)?.text ?? '';
    if (text !== shown) {
      shown = text;
      words.replaceChildren(...rich(text));
    }
    words.classList.toggle('is-streaming', isRunning && !isWaiting);
    const ending = endOf(turn);
    end.hidden = ending === null;
    setText(end, ending ?? '');
    stop.hidden = discard.hidden = actions === null || !isRunning || isInterrupted;
    again.hidden = actions === null || isRunning || isInterrupted || !isLatest || turn.state === 'superseded' || turn.mode === 'rollback';
  };
  return { element, update };
}

/** `on b · epoch 4` */
function place(epoch, nodeOf) {
  if (epoch === null) return '';
  const node = nodeOf(epoch);
  return node === null ? `epoch ${epoch}` : `on ${node} · epoch ${epoch}`;
}

/** Without a connection nobody knows how far the agent is. */
function activity(turn, streaming, isInterrupted) {
  if (isInterrupted) return 'Interrupted: no connection';
  if (turn.state === 'waiting') return 'Waiting for an answer';
  if (streaming?.text) return 'Writing…';
  const last = turn.steps.findLast((step) => step.type !== 'takeover');
  if (turn.steps.some((step) => step.type === 'tool' && !step.done)) return 'Using a tool…';
  return last?.type === 'tool' ? 'Reading the result…' : 'Thinking…';
}

/** Tool calls, questions, changes of owner, and what the model said on its way to them; its last words are the answer and shown there. */
function stepItems(turn, streaming, nodeOf) {
  const answer = turn.answer?.body?.text;
  const last = streaming ? null : closing(turn);
  const isOver = turn.endedAt !== null;
  return turn.steps
    .filter((step) => step.type !== 'model' || (step.done && step.text && step.text !== answer && step !== last))
    .filter((step) => step.type !== 'own' || step.output !== undefined)
    .map((step) => ({ key: step.step, type: step.type, step, halted: isOver ? 'not finished' : turn.state === 'waiting' ? 'waiting' : null, takenOverBy: step.type === 'takeover' ? nodeOf(step.epoch) : null }));
}

/** The model's words that nothing has followed yet: they stay where they were streamed until the answer or a tool call comes. */
function closing(turn) {
  const last = turn.steps.at(-1);
  return !turn.answer && last?.type === 'model' && last.done ? last : null;
}

function endOf({ state, reason, detail, answer, into }) {
  if (state === 'failed') {
    const words = REASONS[reason] ?? `This answer failed${reason ? ` (${reason})` : ''}.`;
    return detail ? `${words} ${sentence(detail)}` : words;
  }
  if (state === 'cancelled') {
    const why = reason === 'interrupted' ? 'for the next message' : '';
    return [answer ? 'Stopped here' : 'Stopped; nothing of it was kept', why].filter(Boolean).join(' ').concat('.');
  }
  if (state === 'superseded') return into === null ? 'Replaced by a newer answer.' : 'This was answered together with an earlier message.';
  return null;
}

/** Draws a step anew when something of it has changed. */
function stepView({ type, step }, actions) {
  const element = h('li.step');
  element.dataset.step = step.step;
  element.dataset.kind = type;
  if (type === 'await') {
    const ask = askView(actions?.resolve ?? null);
    element.append(ask.element);
    return { element, update: (item) => ask.update(item.step.ask) };
  }
  let signature = null;
  const update = (item) => {
    const next = JSON.stringify(item);
    if (next === signature) return;
    signature = next;
    const wasOpen = element.querySelector('details')?.open ?? false;
    element.replaceChildren(stepBody(item, wasOpen));
  };
  return { element, update };
}

function stepBody({ type, step, halted, takenOverBy }, wasOpen) {
  if (type === 'model') return h('div.step-words', {}, ...rich(step.text));
  if (type === 'takeover') return h('p.step-takeover', {}, icon('hop'), `Went on ${takenOverBy ? `at ${takenOverBy} · ` : 'in '}epoch ${step.epoch}`);
  return toolCall(step, halted, wasOpen);
}

function toolCall(step, halted, isOpen) {
  const { name, input, output, attempt, calledAgain } = step;
  const title = calledAgain ? `Whoever began this call went away. The owner of epoch ${calledAgain} made it again, with the same key` : 'Called again with the same key';
  const words = calledAgain ? 'called again' : attempt > 1 ? `call ${attempt}` : null;
  const repeated = words && h('span.tool-attempt', { title }, words);
  return h('details', { open: isOpen },
    h('summary', {}, icon('tool'), h('span.tool-name', {}, name ?? step.step), h('span.tool-input', {}, brief(input)), repeated, toolState(step, halted)),
    h('dl', {}, h('dt', {}, 'Input'), h('dd', {}, h('pre', { tabindex: '0' }, pretty(input))),
      h('dt', {}, 'Output'), h('dd', {}, h('pre', { tabindex: '0' }, pretty(output)))));
}

/** `halted`: why a call that is not done is not running either, or null. */
function toolState({ done, status }, halted) {
  const [state, shape, words] = !done ? (halted ? ['halted', null, halted] : ['running', null, 'running'])
    : status === undefined ? ['done', 'check', 'done'] : [status, 'alert', status === 'unknown' ? 'outcome unknown' : status];
  return h('span.tool-state', { data: { state } }, shape ? icon(shape) : null, h(state === 'done' ? 'span.sr-only' : 'span', {}, words));
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
