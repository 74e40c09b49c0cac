/**
 * The page of the cluster: the nodes, what the answering one owns, and what happens to ownership.
 *
 * Invariant: says whose view it is and how old; nothing here is authority.
 * Deliberately does not: act on ownership, but for asking a node to drain, after a second press.
 */
import { sentence } from '../core/cluster.js';
import { h, keyed, setText } from './dom.js';
import { fullTime } from './format.js';

const columns = ['Node', 'Region', 'State', 'Lease left', 'Owns', 'Incarnation', ''];

export function nodesView({ cluster, onDrain }) {
  const summary = h('p.nodes-summary', { role: 'status' }, 'Asking…');
  const rows = h('tbody');
  const ownedRows = h('tbody');
  const more = h('button.secondary', { type: 'button', hidden: true, onclick: () => cluster.more().catch(() => {}) }, 'More');
  const events = h('ol.nodes-events', { 'aria-label': 'Events, newest first' });
  const missed = h('p.nodes-missed', { hidden: true }, 'Earlier events are no longer kept.');
  const details = h('div', {},
    table('Nodes', columns, rows),
    h('h2', {}, 'What happened'), events, missed,
    h('h2', {}, 'Owned by the node that answers'), table('Owned', ['Conversation', 'Epoch', 'State'], ownedRows), more);
  const element = h('section.nodes', { 'aria-label': 'Nodes' }, h('h1', {}, 'Nodes'), summary, details);

  let nodes = new Map();
  let owned = new Map();
  let shown = new Map();
  const update = () => {
    setText(summary, summaryOf(cluster));
    details.hidden = cluster.view === null;
    if (cluster.view === null) return;
    const { answered_by: me, nodes: list } = cluster.view;
    nodes = keyed(rows, list.map((node) => ({ key: node.incarnation, type: 'node', node, isMe: node.incarnation === me })), nodes, () => nodeRow({ onDrain }));
    owned = keyed(ownedRows, cluster.owned.map((one) => ({ key: one.conversation, type: 'owned', one })), owned, ownedRow);
    shown = keyed(events, cluster.events.map((event) => ({ key: event.id, type: event.kind, event })), shown, eventRow);
    more.hidden = !cluster.hasMoreOwned;
    missed.hidden = !cluster.missed;
  };
  const unsubscribe = cluster.on('change', update);
  const start = () => { cluster.start(); };
  const stop = () => { unsubscribe(); cluster.stop(); };
  return { element, start, stop };
}

function table(label, heads, body) {
  return h('div.nodes-scroll', {}, h('table', { 'aria-label': label }, h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))), body));
}

function summaryOf({ view, refusal }) {
  if (refusal?.code === 'forbidden') return 'Only who has admin on every conversation (*) sees the nodes.';
  if (refusal) return `No answer: ${refusal.detail ?? refusal.message}`;
  const name = view.nodes.find(({ incarnation }) => incarnation === view.answered_by)?.name ?? view.answered_by;
  const age = view.age_ms === null ? 'it has not read the rows yet' : `read ${seconds(view.age_ms)} ago`;
  return `As ${name} sees it, ${age}${view.stale ? '; older than a lease: who is alive is not known' : ''}.`;
}

const seconds = (ms) => `${(ms / 1_000).toFixed(1)} s`;

function stateOf({ draining, expires_in_ms: left }) {
  if (left <= 0) return 'expired';
  return draining ? 'draining' : 'alive';
}

function nodeRow({ onDrain }) {
  const cells = columns.map(() => h('td'));
  const [name, region, state, lease, owns, incarnation, action] = cells;
  const element = h('tr', {}, cells);
  let current = null;
  let sure = false;
  const button = h('button.secondary', { type: 'button', onclick: press }, 'Drain');
  action.append(button);

  async function press() {
    if (!sure) {
      sure = true;
      setText(button, `Really drain ${current.name}?`);
      return;
    }
    button.disabled = true;
    setText(button, await onDrain(current.name).then(() => 'Asked', (refusal) => refusal.detail ?? 'Refused'));
  }

  const update = ({ node, isMe }) => {
    current = node;
    element.dataset.state = stateOf(node);
    setText(name, isMe ? `${node.name} (answers)` : node.name);
    setText(region, node.region);
    setText(state, stateOf(node));
    setText(lease, node.expires_in_ms > 0 ? seconds(node.expires_in_ms) : '–');
    setText(owns, node.owned === undefined ? '' : String(node.owned));
    setText(incarnation, node.incarnation);
    button.hidden = stateOf(node) !== 'alive' && !button.disabled;
  };
  return { element, update };
}

function ownedRow() {
  const cells = [h('td'), h('td'), h('td')];
  const update = ({ one }) => [one.conversation, String(one.epoch), one.state].forEach((text, index) => setText(cells[index], text));
  return { element: h('tr', {}, cells), update };
}

function eventRow() {
  const time = h('time');
  const text = h('span');
  const element = h('li', {}, time, text);
  const update = ({ event }) => {
    element.dataset.kind = event.kind;
    time.dateTime = event.at;
    setText(time, fullTime(event.at));
    setText(text, sentence(event));
  };
  return { element, update };
}
