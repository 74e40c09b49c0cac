import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Refusal } from '../../../clients/typescript/core/errors.js';
import { Cluster, groupsOf, sentence } from '../../../console/core/cluster.js';
import { FakeClock, settle } from './fakes.js';

const KINDS = [
  'claim_won', 'claim_lost', 'fenced', 'released', 'handed_off', 'received', 'node_came', 'node_drains', 'node_gone', 'death_declared', 'lifeline_lost', 'lease_lost',
];
const at = (second) => `2026-11-30T12:00:${String(second).padStart(2, '0')}.000Z`;

/** Nodes `a` and `b` whose answers the test sets. A cursor is the number of each one's events that were told. */
function world() {
  const clock = new FakeClock();
  const server = { events: { a: [], b: [] }, owned: [], unanswered: [], refusal: null, asked: [], pages: [], hold: null };
  const answer = async (value) => {
    if (server.refusal) throw server.refusal;
    const now = value();
    await server.hold;
    return now;
  };
  const api = {
    nodes: () => answer(() => ({ answered_by: 'i-a', age_ms: 10, stale: false, nodes: [{ name: 'b', incarnation: 'i-b' }, { name: 'a', incarnation: 'i-a' }] })),
    nodeEvents: ({ after }) => answer(() => {
      server.asked.push(after);
      const had = after === '' ? {} : Object.fromEntries(after.split(',').map((place) => place.split('.')));
      const nodes = Object.entries(server.events).map(([name, events]) => ({
        name, incarnation: `i-${name}`, missed: false, events: events.map((event, index) => ({ id: index + 1, ...event })).slice(Number(had[name] ?? 0)),
      }));
      return { nodes, unanswered: server.unanswered, after: Object.entries(server.events).map(([name, { length }]) => `${name}.${length}`).join() };
    }),
    owned: ({ after, limit, contains }) => answer(() => {
      server.pages.push({ after, contains });
      const all = server.owned.filter(({ conversation }) => conversation.includes(contains ?? ''));
      const from = Number(after ?? 0);
      const more = from + limit < all.length;
      return { owned: all.slice(from, from + limit), more, after: more ? String(from + limit) : null, unanswered: [] };
    }),
  };
  return { clock, server, cluster: new Cluster({ api, clock }) };
}

const rooms = (count) => Array.from({ length: count }, (_, index) => ({ conversation: `c${index}`, epoch: 1, state: 'active', node: 'a', incarnation: 'i-a' }));

test('events of all nodes come once each, newest first, and polling ends with the page', async () => {
  const { clock, server, cluster } = world();
  server.events.a = [{ kind: 'claim_won', why: 'unowned', at: at(1) }, { kind: 'fenced', at: at(4) }];
  server.events.b = [{ kind: 'claim_lost', at: at(2) }];
  await cluster.start();
  assert.deepEqual(cluster.events.map(({ kind }) => kind), ['fenced', 'claim_lost', 'claim_won']);
  assert.deepEqual(cluster.view.nodes.map(({ name }) => name), ['a', 'b']);
  server.events.b.push({ kind: 'released', at: at(3) });
  await clock.advance(1_000);
  assert.deepEqual(cluster.events.map(({ kind }) => kind), ['fenced', 'released', 'claim_lost', 'claim_won']);
  assert.deepEqual(server.asked, ['', 'a.2,b.1']);
  cluster.stop();
  assert.equal(clock.pending, 0);
});

test('what two nodes tell of one thing is shown once', async () => {
  const { server, cluster } = world();
  server.events.a = [
    { kind: 'node_drains', incarnation: 'i-c', node: 'c', at: at(1) },
    { kind: 'handed_off', conversation: 'room', epoch: 3, to: 'i-b', at: at(2) },
  ];
  server.events.b = [
    { kind: 'received', conversation: 'room', epoch: 3, from: 'i-a', at: at(2) },
    { kind: 'node_drains', incarnation: 'i-c', node: 'c', at: at(3) },
    { kind: 'node_drains', incarnation: 'i-d', node: 'c', at: at(4) },
  ];
  await cluster.start();
  const said = cluster.events.map((told) => [sentence(told, (incarnation) => cluster.nameOf(incarnation)), told.seenBy.join()]);
  assert.deepEqual(said, [['c drains', 'b'], ['a handed room to b in epoch 3', 'a,b'], ['c drains', 'a,b']]);
  cluster.stop();
});

test('a bounded number of events is kept, the newest', async () => {
  const { server, cluster } = world();
  server.events.a = Array.from({ length: 500 }, (_, index) => ({ kind: 'released', conversation: `c${index}`, epoch: 1, at: at(Math.floor(index / 10)) }));
  await cluster.start();
  assert.equal(cluster.events.length, 300);
  assert.equal(cluster.events[0].event.conversation, 'c499');
  cluster.stop();
});

test('what is owned is one page at a time, there and back, and stays as it is looked at', async () => {
  const { clock, server, cluster } = world();
  server.owned = rooms(60);
  await cluster.start();
  const first = () => cluster.owned[0].conversation;
  assert.deepEqual([first(), cluster.owned.length, cluster.hasNext, cluster.hasPrevious], ['c0', 25, true, false]);
  await cluster.next();
  await cluster.next();
  assert.deepEqual([first(), cluster.owned.length, cluster.hasNext, cluster.hasPrevious], ['c50', 10, false, true]);
  await clock.advance(1_000);
  assert.equal(first(), 'c50');
  await cluster.next();
  assert.equal(first(), 'c50', 'there is no next one');
  await cluster.previous();
  assert.equal(first(), 'c25');
  await cluster.search(' c4 ');
  assert.deepEqual([first(), cluster.owned.length, cluster.hasPrevious], ['c4', 11, false]);
  assert.deepEqual(server.pages.at(-1), { after: undefined, contains: 'c4' });
  cluster.stop();
});

test('an answer that a later question has overtaken changes nothing', async () => {
  const { server, cluster } = world();
  server.owned = rooms(60);
  let release;
  server.hold = new Promise((resolve) => { release = resolve; });
  const slow = cluster.start();
  server.hold = null;
  await cluster.search('c59');
  release();
  await slow;
  assert.deepEqual(cluster.owned.map(({ conversation }) => conversation), ['c59']);
  cluster.stop();
});

test('who may not see the nodes asks once; who is not answered asks again', async () => {
  const { clock, server, cluster } = world();
  server.refusal = new Refusal({ code: 'store_unavailable', detail: 'away' });
  await cluster.start();
  assert.equal(cluster.refusal.code, 'store_unavailable');
  server.refusal = new Refusal({ code: 'forbidden', detail: 'no' });
  await clock.advance(1_000);
  await settle();
  assert.equal(cluster.refusal.code, 'forbidden');
  assert.equal(clock.pending, 0);
});

test('a node that does not answer is named', async () => {
  const { server, cluster } = world();
  server.unanswered = [{ name: 'b', incarnation: 'i-b', link: 'no_answer', link_error: 'no answer within 1000 ms' }];
  await cluster.start();
  assert.deepEqual(cluster.unanswered.map(({ name }) => name), ['b']);
  cluster.stop();
});

test('every kind of event has a sentence of its own, and one that is not known has one, too', () => {
  const sentences = [...KINDS, 'moon_rose'].map((kind) => sentence({
    kind, node: 'a', incarnation: 'i-a', event: { kind, conversation: 'room', epoch: 3, why: 'idle', to: 'i-b', from: 'i-b', node: 'b' },
  }, () => 'another'));
  assert.equal(new Set(sentences).size, KINDS.length + 1);
  assert.ok(sentences.every((text) => !text.includes('undefined') && !text.includes('_')), sentences.join('\n'));
});

test('takeovers, hand-overs and refusals are told apart', () => {
  const groups = (kind, event = {}) => groupsOf({ kind, event: { kind, ...event } });
  assert.deepEqual(groups('claim_won', { why: 'unowned' }), []);
  assert.deepEqual(groups('claim_won', { why: 'owner_died' }), ['takeovers']);
  assert.deepEqual(groups('moon_rose'), []);
  for (const kind of KINDS.slice(1)) assert.notDeepEqual(groups(kind), [], kind);
});
