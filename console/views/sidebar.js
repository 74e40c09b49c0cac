/**
 * My conversations, newest activity first, with what was said last and how much is unread.
 *
 * Invariant: every entry is a plain link (`#/c/ID`), so that keyboard, middle click and history work by themselves.
 * Deliberately does not: load anything; the inbox is live.
 */
import { h, keyed, setText } from './dom.js';
import { plainLine } from '../core/preview.js';
import { icon, mark } from './icons.js';
import { avatar, briefTime, fullTime, unreadLabel } from './format.js';

/** `titleOf(summary)`: what to call it; `onNew()`, `onSignOut()`: buttons. */
export function sidebarView({ inbox, me, titleOf, partnerOf, onNew, onSignOut }) {
  const list = h('ul.inbox', { 'aria-label': 'Conversations' });
  const empty = h('div.inbox-empty', { hidden: true },
    h('p', {}, 'No conversations yet.'), h('button.secondary', { type: 'button', onclick: onNew }, 'Start one'));
  const presence = h('span.me-state', {}, '');
  const nodes = h('a.icon-button', { href: '#/nodes', title: 'Nodes', 'aria-label': 'Nodes', hidden: true }, icon('nodes'));
  const element = h('nav.sidebar', { 'aria-label': 'Conversations' },
    h('header.sidebar-head', {}, h('a.brand', { href: '#/' }, mark(), h('span', {}, 'Conch')),
      h('button.icon-button', { type: 'button', title: 'New conversation', 'aria-label': 'New conversation', onclick: onNew }, icon('plus'))),
    h('div.sidebar-scroll', {}, list, empty),
    h('footer.sidebar-foot', {}, avatar(me.sub, me.name), h('div.me', {}, h('strong', {}, me.name), presence), nodes,
      h('button.icon-button', { type: 'button', title: 'Sign out', 'aria-label': 'Sign out', onclick: onSignOut }, icon('leave'))));

  let components = new Map();
  const update = ({ selected, state }) => {
    element.toggleAttribute('data-loading', !inbox.isLoaded);
    empty.hidden = !inbox.isLoaded || inbox.list.length > 0;
    const items = inbox.list.map((summary) => ({ key: summary.id, type: summary.kind, summary, isSelected: summary.id === selected }));
    components = keyed(list, items, components, () => entry({ inbox, me, titleOf, partnerOf }));
    setText(presence, { live: 'Online', starting: 'Connecting…', resuming: 'Catching up…' }[state] ?? 'Offline');
    element.dataset.state = state;
  };
  const allowNodes = (allowed) => { nodes.hidden = !allowed; };
  return { element, update, allowNodes };
}

function entry({ inbox, me, titleOf, partnerOf }) {
  const glyph = h('span.glyph', { 'aria-hidden': 'true' });
  const title = h('span.entry-title');
  const time = h('time.entry-time');
  const preview = h('span.entry-preview');
  const badge = h('span.badge', { hidden: true });
  const link = h('a.entry', {}, glyph, title, time, preview, badge);
  const element = h('li', {}, link);

  const update = ({ summary, isSelected }) => {
    const unread = inbox.unread(summary);
    link.href = `#/c/${encodeURIComponent(summary.id)}`;
    if (isSelected) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
    link.classList.toggle('is-unread', unread > 0);
    link.dataset.id = summary.id;
    setText(title, titleOf(summary));
    setText(preview, previewOf(summary, me));
    updateGlyph(glyph, summary, partnerOf(summary));
    const at = summary.last_message?.at ?? summary.updated_at;
    if (at) {
      setText(time, briefTime(at));
      time.dateTime = at;
      time.title = fullTime(at);
    }
    badge.hidden = unread === 0;
    setText(badge, unreadLabel(summary, unread));
    badge.setAttribute('aria-label', `${unreadLabel(summary, unread)} unread`);
  };
  return { element, update };
}

function updateGlyph(glyph, { kind }, partner) {
  const wanted = kind === 'direct' && partner ? `person:${partner}` : kind;
  if (glyph.dataset.shows === wanted) return;
  glyph.dataset.shows = wanted;
  if (kind === 'direct') glyph.replaceChildren(partner ? avatar(partner, partner) : icon('people'));
  else glyph.replaceChildren(icon(kind === 'session' ? 'spark' : 'hash'));
}

/** "You: …" in every kind; the speaker's name only where there may be several. */
function previewOf({ kind, last_message: last }, me) {
  if (!last) return kind === 'session' ? 'Ask the agent something' : 'Nothing said yet';
  if (last.deleted_at) return 'Message deleted';
  const text = plainLine(last.body?.text ?? '');
  if (last.sender === me.sub) return `You: ${text}`;
  return kind === 'channel' ? `${last.name || last.sender}: ${text}` : text;
}
