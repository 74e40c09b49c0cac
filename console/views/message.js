/**
 * One message in the stream: delivered, or still on its way.
 *
 * Invariant: the element stays the same when its record replaces the pending entry; only its state changes.
 * Deliberately does not: offer a retry unless the server gave a directive that allows one.
 */
import { h, setText } from './dom.js';
import { icon } from './icons.js';
import { avatar, clockTime, fullTime, sentence } from './format.js';
import { rich } from './text.js';

/** Beyond either, a message is folded until someone asks for all of it. */
const LONG_CHARACTERS = 3_000;
const LONG_LINES = 40;
/** The same for what was refused: three lines are enough to know it by (stream.css shows as many). */
const REFUSED_CHARACTERS = 200;
const REFUSED_LINES = 3;

/** `outbox`: for retry and discard of what failed; `onEdit(body)`: takes a discarded text back into the composer. */
export function messageView({ me, outbox, onEdit }) {
  const sender = h('span.sender');
  const time = h('time');
  const head = h('div.message-head', {}, sender, time);
  const body = h('div.bubble');
  const unfold = h('button.text-button.unfold', {
    type: 'button', hidden: true, onclick: () => {
      isUnfolded = true;
      fold();
    },
  }, 'Show all of it');
  const tick = h('span.tick');
  const state = h('div.message-state');
  const picture = h('div.message-avatar');
  const element = h('li.message', {}, picture, h('div.message-main', {}, head, h('div.bubble-row', {}, tick, body), unfold, state));
  let shown = null;
  let isRefused = false;
  let isUnfolded = false;

  const showWords = (text) => {
    if (text === shown) return;
    shown = text;
    body.replaceChildren(...rich(text));
  };
  const fold = () => {
    const [characters, lines] = isRefused ? [REFUSED_CHARACTERS, REFUSED_LINES] : [LONG_CHARACTERS, LONG_LINES];
    const isFolded = !isUnfolded && (shown.length > characters || shown.split('\n', lines + 1).length > lines);
    element.classList.toggle('is-folded', isFolded);
    unfold.hidden = !isFolded;
  };

  const update = (item) => {
    const isPending = item.entry !== undefined;
    const record = item.record ?? { sender: me.sub, name: me.name, body: item.entry.body, at: new Date(item.entry.created_at).toISOString() };
    const isOwn = record.sender === me.sub;
    element.classList.toggle('is-own', isOwn);
    element.classList.toggle('is-continued', item.isContinued);
    element.classList.toggle('is-deleted', Boolean(record.deleted_at));
    if (record.seq !== undefined) element.dataset.seq = record.seq;
    setText(sender, isOwn ? 'You' : record.name || record.sender);
    setText(time, clockTime(record.at));
    time.dateTime = record.at;
    time.title = fullTime(record.at) + (record.edited_at ? ' · edited' : '');
    if (!isOwn && picture.firstChild === null) picture.append(avatar(record.sender, record.name || record.sender));
    showWords(record.deleted_at ? 'Message deleted' : record.body?.text ?? '');
    isRefused = item.entry?.state === 'failed';
    fold();
    updateState({ element, tick, state }, isPending ? item.entry : null, { outbox, onEdit });
  };
  return { element, update };
}

/** All being well a small tick beside the words says enough; what needs a person's eye is said below in words. */
function updateState({ element, tick, state }, entry, actions) {
  const name = entry === null ? (element.dataset.state ? 'sent' : '') : stateName(entry);
  const signature = `${name}:${entry?.error?.detail ?? ''}`;
  if (state.dataset.shows === signature) return;
  state.dataset.shows = signature;
  if (name) element.dataset.state = name;
  tick.replaceChildren(...tickOf(name));
  state.replaceChildren(...describe(name, entry, actions));
}

function stateName({ state, slow }) {
  if (state === 'failed' || state === 'acked') return state;
  return slow ? 'slow' : 'sending';
}

function tickOf(name) {
  if (name === 'sending') return [icon('clock'), h('span.sr-only', {}, 'Sending')];
  if (name === 'acked' || name === 'sent') return [icon('check'), h('span.sr-only', {}, 'Sent')];
  return [];
}

function describe(name, entry, { outbox, onEdit }) {
  if (name === 'slow') return [icon('clock'), h('span', {}, 'Not sent yet, still trying')];
  if (name !== 'failed') return [];
  const id = entry.client_msg_id;
  return [
    icon('alert'), h('span', {}, sentence(entry.error?.detail ?? 'Not sent')),
    entry.error?.retry && h('button.text-button', { type: 'button', onclick: () => outbox.retry(id) }, 'Try again'),
    h('button.text-button', { type: 'button', onclick: () => onEdit(outbox.discard(id)) }, 'Edit'),
    h('button.text-button', { type: 'button', onclick: () => outbox.discard(id) }, 'Discard'),
  ].filter(Boolean);
}
