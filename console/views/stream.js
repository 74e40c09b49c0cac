/**
 * The scrolling stream of a conversation: items in order, older history above, the newest below.
 *
 * Invariant: what a person is reading does not move under them: at the end it stays at the end, elsewhere the first
 * visible item keeps its place, whatever is added above or below.
 * Deliberately does not: keep everything for ever; back at the end, old records beyond a limit are let go.
 */
import { h, keyed, setText } from './dom.js';
import { icon } from './icons.js';
import { dayOf, dayTitle } from './format.js';
import { flow } from '../core/flow.js';
import { messageView } from './message.js';
import { turnView } from './turn.js';

const END_SLACK_PX = 48;
const LOAD_AHEAD_PX = 400;
const KEEP_RECORDS = 400;

/**
 * `unreadAfter`: my cursor when it was opened, if something is unread; `onRead(seq)`: the end is in sight, or (null) no more.
 * `turns`: what a turn's view is given.
 */
export function streamView({ conversation, me, unreadAfter, onRead, onEdit, intro, turns: turnTools }) {
  const list = h('ol.items');
  const older = h('p.older', { role: 'status' });
  const scroller = h('div.stream', { tabindex: '0', role: 'region', 'aria-label': 'Messages' }, older, list);
  const jumpLabel = h('span', {}, 'Latest');
  const jump = h('button.jump', { type: 'button', hidden: true, onclick: () => toEnd() }, icon('down'), jumpLabel);
  const element = h('div.stream-frame', {}, scroller, jump);
  let components = new Map();
  let isAtEnd = true;
  let missed = 0;
  let frame = 0;

  const create = (item) => {
    if (item.type === 'message' || item.type === 'pending') return messageView({ me, outbox: conversation.outbox, onEdit });
    if (item.type === 'turn') return turnView(turnTools);
    return lineView(item.type);
  };

  const draw = () => {
    frame = 0;
    const { timeline, turns, outbox } = conversation;
    if (isAtEnd) conversation.trim(KEEP_RECORDS);
    const items = flow({ records: timeline.records, turns, entries: outbox.entries, me: me.sub, unreadAfter, dayOf });
    // A pending message and its record share a key and must share an element.
    for (const item of items) {
      if (item.type === 'pending') item.type = 'message';
      if (item.type === 'turn') item.isInterrupted = conversation.status === 'offline';
    }
    const anchor = isAtEnd ? null : firstVisible();
    components = keyed(list, items, components, create);
    const isStart = timeline.position !== null && !timeline.hasOlder;
    if (isStart) older.replaceChildren(...intro());
    else setText(older, timeline.position === null ? 'Loading…' : '');
    older.classList.toggle('is-start', isStart);
    if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
    else if (anchor?.element.isConnected) scroller.scrollTop += anchor.element.getBoundingClientRect().top - anchor.top;
    settle();
  };
  const schedule = () => { frame ||= requestAnimationFrame(draw); };

  function firstVisible() {
    const top = scroller.getBoundingClientRect().top;
    for (const child of list.children) {
      const box = child.getBoundingClientRect();
      if (box.bottom > top) return { element: child, top: box.top };
    }
    return null;
  }

  function toEnd() {
    isAtEnd = true;
    draw();
  }

  /** After drawing, scrolling or coming back to the tab: what has been read, and is more history needed? */
  function settle() {
    if (isAtEnd) missed = 0;
    const isWatched = isAtEnd && document.visibilityState === 'visible' && document.hasFocus();
    onRead(isWatched ? conversation.timeline.records.at(-1)?.seq ?? null : null);
    jump.hidden = isAtEnd;
    setText(jumpLabel, missed > 0 ? `${missed} new` : 'Latest');
    if (scroller.scrollTop < LOAD_AHEAD_PX && !conversation.isLoadingOlder && conversation.timeline.hasOlder && conversation.status !== 'offline') {
      conversation.loadOlder().then((isLoaded) => { if (!isLoaded) setText(older, ''); });
      setText(older, 'Loading earlier messages…');
    }
  }

  scroller.addEventListener('scroll', () => {
    isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < END_SLACK_PX;
    settle();
  }, { passive: true });
  const onAttention = () => settle();
  window.addEventListener('focus', onAttention);
  window.addEventListener('blur', onAttention);
  document.addEventListener('visibilitychange', onAttention);
  const resized = new ResizeObserver(() => { if (isAtEnd) scroller.scrollTop = scroller.scrollHeight; });
  resized.observe(scroller);

  const stops = [
    conversation.on('records', ({ reason, record }) => {
      if (reason === 'live' && !isAtEnd && record.kind === 'message' && record.sender !== me.sub) missed += 1;
      schedule();
    }),
    conversation.on('turn', schedule),
    conversation.on('status', schedule),
    conversation.on('outbox', () => {
      if (conversation.outbox.entries.at(-1)?.state === 'queued') isAtEnd = true;
      schedule();
    }),
  ];

  const stop = () => {
    for (const unsubscribe of stops) unsubscribe();
    cancelAnimationFrame(frame);
    resized.disconnect();
    window.removeEventListener('focus', onAttention);
    window.removeEventListener('blur', onAttention);
    document.removeEventListener('visibilitychange', onAttention);
  };
  return { element, draw, schedule, stop, focus: () => scroller.focus({ preventScroll: true }) };
}

/** Day separators, the "new" line and events: one line each. */
function lineView(type) {
  const label = h('span');
  const element = h(`li.${{ day: 'day', unread: 'unread-line', event: 'event' }[type]}`, {}, label);
  const update = (item) => {
    if (type === 'day') setText(label, dayTitle(item.at));
    if (type === 'unread') setText(label, 'New');
    if (type === 'event') setText(label, item.record.body?.text ?? `${item.record.name || item.record.sender}: event`);
  };
  return { element, update };
}
