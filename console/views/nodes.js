/**
 * The page of the cluster: its nodes, what happens to ownership, and who owns what, over all nodes.
 *
 * Invariant: says whose view it is and how old, and names the nodes that do not answer; nothing here is authority.
 * Deliberately does not: act on ownership, but for asking a node to drain, after a second press.
 */
import { groupsOf, sentence } from '../core/cluster.js';
import { h, keyed, setText } from './dom.js';
import { clockSeconds, fullTime, names } from './format.js';
import { icon } from './icons.js';

const COLUMNS = ['Node', 'Region', 'State', 'Lease', 'Owns', 'Link', 'Incarnation', ''];
const GROUPS = [['', 'All'], ['takeovers', 'Takeovers'], ['handovers', 'Hand-overs'], ['refusals', 'Refusals'], ['nodes', 'Nodes']];
const LINKS = {
  here: 'this one', up: 'up', no_link: 'none', unreachable: 'unreachable', other_process: 'another process', no_answer: 'no answer', not_asked: 'not asked',
};
const SEARCH_AFTER_MS = 250;

export function nodesView({ cluster, clock, onDrain }) {
  const summary = h('p.nodes-summary', { role: 'status' }, 'Asking…');
  const silent = h('p.nodes-silent', { role: 'status', hidden: true });
  const table = nodesTable({ onDrain });
  const feed = feedView({ cluster });
  const owned = ownedView({ cluster, clock });
  const details = h('div.nodes-details', { hidden: true }, table.element, h('div.nodes-columns', {}, feed.element, owned.element));
  const element = h('section.nodes', { 'aria-label': 'Nodes' },
    h('header.nodes-head', {}, h('a.icon-button.back', { href: '#/', 'aria-label': 'All conversations' }, icon('back')), h('div', {}, h('h1', {}, 'Nodes'), summary)),
    silent, details);

  const update = () => {
    setText(summary, summaryOf(cluster));
    details.hidden = cluster.view === null;
    if (cluster.view === null) return;
    silent.hidden = cluster.unanswered.length === 0;
    setText(silent, silentOf(cluster.unanswered));
    table.update(cluster.view);
    feed.update();
    owned.update();
  };
  const unsubscribe = cluster.on('change', update);
  const start = () => { cluster.start(); };
  const stop = () => {
    unsubscribe();
    owned.stop();
    cluster.stop();
  };
  return { element, start, stop };
}

function summaryOf({ view, refusal }) {
  if (refusal?.code === 'forbidden') return 'Only who has admin on every conversation (*) sees the nodes.';
  if (refusal) return `No answer: ${refusal.detail ?? refusal.message}`;
  const name = view.nodes.find(({ incarnation }) => incarnation === view.answered_by)?.name ?? view.answered_by.slice(0, 8);
  const age = view.age_ms === null ? 'it has not read the rows yet' : `read ${seconds(view.age_ms)} ago`;
  return `As ${name} sees it, ${age}${view.stale ? '; older than a lease: who is alive is not known' : ''}.`;
}

function silentOf(unanswered) {
  if (unanswered.length === 0) return '';
  const who = names(unanswered.map(({ name }) => name));
  const why = unanswered.length === 1 ? ` (${unanswered[0].link_error})` : '';
  return `${who} ${unanswered.length === 1 ? 'does' : 'do'} not answer${why}: what is owned and what happens there is not shown.`;
}

const seconds = (ms) => `${(ms / 1_000).toFixed(1)} s`;

function stateOf({ draining, expires_in_ms: left }) {
  if (left <= 0) return 'expired';
  return draining ? 'draining' : 'alive';
}

function nodesTable({ onDrain }) {
  const rows = h('tbody');
  const heads = COLUMNS.map((head) => h('th', { scope: 'col' }, head));
  const element = h('table.nodes-table', { 'aria-label': 'Nodes' }, h('thead', {}, h('tr', {}, heads)), rows);
  let shown = new Map();
  const update = ({ nodes, answered_by: me, lease_ms: lease }) => {
    shown = keyed(rows, nodes.map((node) => ({ key: node.incarnation, type: 'node', node, lease, isMe: node.incarnation === me })), shown, () => nodeRow({ onDrain }));
  };
  return { element, update };
}

function nodeRow({ onDrain }) {
  const cells = COLUMNS.map((head) => h('td', { data: { label: head } }));
  const [name, region, state, lease, owns, link, incarnation, action] = cells;
  const element = h('tr', {}, cells);
  const title = h('strong');
  const badge = h('span.nodes-state');
  const bar = h('span.nodes-lease-bar', { 'aria-hidden': 'true' });
  const left = h('span');
  const code = h('code');
  name.append(title);
  state.append(badge);
  lease.append(h('span.nodes-lease', {}, left, bar));
  incarnation.append(code);
  let current = null;
  let isSure = false;
  const button = h('button.secondary', { type: 'button', onclick: press, onblur: relent }, 'Drain');
  action.append(button);

  async function press() {
    if (!isSure) {
      isSure = true;
      setText(button, `Really drain ${current.name}?`);
      return;
    }
    button.disabled = true;
    setText(button, await onDrain(current.name).then(() => 'Asked', (refusal) => refusal.detail ?? 'Refused'));
  }

  function relent() {
    if (button.disabled) return;
    isSure = false;
    setText(button, 'Drain');
  }

  const update = ({ node, lease: whole, isMe }) => {
    current = node;
    const leftMs = Math.max(0, node.expires_in_ms);
    element.dataset.state = stateOf(node);
    element.dataset.link = node.link;
    setText(title, node.name);
    name.title = isMe ? 'The node that answers' : node.addr;
    setText(region, node.region);
    setText(badge, stateOf(node));
    setText(left, leftMs > 0 ? `renewed ${seconds(Math.max(0, whole - leftMs))} ago` : 'ran out');
    lease.title = leftMs > 0 ? `${seconds(leftMs)} left of ${seconds(whole)}` : '';
    bar.style.setProperty('--left', Math.min(1, leftMs / whole).toFixed(2));
    setText(owns, node.owned === undefined ? '?' : node.owned.toLocaleString());
    setText(link, LINKS[node.link] ?? node.link);
    link.title = node.link_error ?? node.addr;
    setText(code, node.incarnation.slice(0, 8));
    code.title = node.incarnation;
    button.hidden = stateOf(node) !== 'alive' && !button.disabled;
  };
  return { element, update };
}

function feedView({ cluster }) {
  const list = h('ol.nodes-events', { 'aria-label': 'What happened, newest first', tabindex: '0' });
  const empty = h('p.nodes-empty', {}, 'Nothing of the kind has happened lately.');
  const missed = h('p.nodes-empty', { hidden: true }, 'Earlier events are no longer kept.');
  let group = '';
  const choices = GROUPS.map(([id, label]) => h('button.nodes-choice', { type: 'button', 'aria-pressed': String(id === group), onclick: () => choose(id) }, label));
  const element = h('section.nodes-feed', { 'aria-labelledby': 'nodes-feed-title' },
    h('h2', { id: 'nodes-feed-title' }, 'What happens'), h('div.nodes-choices', { role: 'group', 'aria-label': 'Show' }, choices), list, empty, missed);

  let shown = new Map();
  const update = () => {
    const events = cluster.events.filter((told) => group === '' || groupsOf(told).includes(group));
    shown = keyed(list, events.map((told) => ({ key: told.key, type: told.kind, told })), shown, () => eventRow(cluster));
    list.hidden = events.length === 0;
    empty.hidden = events.length > 0;
    missed.hidden = !cluster.missed || events.length === 0;
  };
  function choose(id) {
    group = id;
    choices.forEach((choice, index) => choice.setAttribute('aria-pressed', String(GROUPS[index][0] === id)));
    update();
  }
  return { element, update };
}

function eventRow(cluster) {
  const time = h('time');
  const text = h('span');
  const element = h('li', {}, time, text);
  const update = ({ told }) => {
    element.dataset.kind = told.kind;
    element.dataset.why = told.event.why ?? '';
    time.dateTime = told.at;
    setText(time, clockSeconds(told.at));
    time.title = fullTime(told.at);
    setText(text, sentence(told, (incarnation) => cluster.nameOf(incarnation)));
    element.title = `Told by ${names(told.seenBy)}`;
  };
  return { element, update };
}

function ownedView({ cluster, clock }) {
  const rows = h('tbody');
  const field = h('input', { type: 'search', 'aria-label': 'Part of an id', placeholder: 'Part of an id', maxlength: '128', autocomplete: 'off', spellcheck: 'false', oninput: typed });
  const empty = h('p.nodes-empty');
  const turn = (page) => h('button.secondary', { type: 'button', onclick: () => cluster[page]() }, { previous: 'Previous', next: 'Next' }[page]);
  const [previous, next] = [turn('previous'), turn('next')];
  const pages = h('div.nodes-pages', {}, previous, next);
  const table = h('table', { 'aria-label': 'Owned conversations' },
    h('thead', {}, h('tr', {}, ['Conversation', 'Owner', 'Epoch', 'State'].map((head) => h('th', { scope: 'col' }, head)))), rows);
  const element = h('section.nodes-owned', { 'aria-labelledby': 'nodes-owned-title' }, h('h2', { id: 'nodes-owned-title' }, 'Who owns what'), field, table, empty, pages);

  let timer = null;
  const stop = () => {
    if (timer !== null) clock.clearTimeout(timer);
    timer = null;
  };
  function typed() {
    stop();
    timer = clock.setTimeout(() => { cluster.search(field.value); }, SEARCH_AFTER_MS);
  }

  let shown = new Map();
  const update = () => {
    const items = cluster.owned.map((one) => ({ key: `${one.conversation} ${one.incarnation}`, type: 'owned', one }));
    shown = keyed(rows, items, shown, ownedRow);
    table.hidden = items.length === 0;
    empty.hidden = items.length > 0;
    setText(empty, cluster.hasNext ? 'None among those that were looked at: go on.' : cluster.contains === '' ? 'Nobody owns a conversation.' : 'No conversation of this kind is owned.');
    previous.disabled = !cluster.hasPrevious;
    next.disabled = !cluster.hasNext;
    pages.hidden = !cluster.hasPrevious && !cluster.hasNext;
  };
  return { element, update, stop };
}

function ownedRow() {
  const link = h('a');
  const [owner, epoch, state] = [h('td'), h('td'), h('td')];
  const element = h('tr', {}, h('td', {}, link), owner, epoch, state);
  const update = ({ one }) => {
    link.href = `#/c/${encodeURIComponent(one.conversation)}`;
    setText(link, one.conversation);
    link.title = one.conversation;
    setText(owner, one.node);
    owner.title = one.incarnation;
    setText(epoch, String(one.epoch));
    setText(state, one.state === 'active' ? 'active' : 'asleep');
    element.dataset.state = one.state;
  };
  return { element, update };
}
