import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Refusal } from '../../../clients/typescript/core/errors.js';
import { Cluster, sentence } from '../../../console/core/cluster.js';
import { FakeClock, settle } from './fakes.js';

/** A server whose answers the test sets. */
function world() {
  const clock = new FakeClock();
  const server = { me: 'i-1', events: [], missed: false, owned: [], refusal: null, asked: [] };
  const answer = (value) => (server.refusal ? Promise.reject(server.refusal) : Promise.resolve(value()));
  const api = {
    nodes: () => answer(() => ({ answered_by: server.me, age_ms: 10, stale: false, nodes: [] })),
    nodeEvents: ({ after }) => answer(() => {
      server.asked.push(after);
      const latest = server.events.at(-1)?.id ?? 0;
      return { events: server.events.filter(({ id }) => id > after), latest, missed: server.missed };
    }),
    owned: ({ after, limit }) => answer(() => {
      const from = after === undefined ? 0 : server.owned.findIndex(({ conversation }) => conversation === after) + 1;
      return { answered_by: server.me, owned: server.owned.slice(from, from + limit), more: from + limit < server.owned.length };
    }),
  };
  return { clock, server, cluster: new Cluster({ api, clock }) };
}

test('events come once each, newest first, and polling ends with the page', async () => {
  const { clock, server, cluster } = world();
  server.events = [{ id: 1, kind: 'claim_won' }, { id: 2, kind: 'fenced' }];
  await cluster.start();
  assert.deepEqual(cluster.events.map(({ id }) => id), [2, 1]);
  server.events.push({ id: 3, kind: 'released' });
  await clock.advance(1_000);
  assert.deepEqual(cluster.events.map(({ id }) => id), [3, 2, 1]);
  assert.deepEqual(server.asked, [0, 2]);
  cluster.stop();
  assert.equal(clock.pending, 0);
});

test('another node that answers begins anew', async () => {
  const { clock, server, cluster } = world();
  server.events = [{ id: 9, kind: 'claim_won' }];
  await cluster.start();
  server.me = 'i-2';
  server.events = [{ id: 1, kind: 'lifeline_lost' }];
  await clock.advance(1_000);
  assert.deepEqual(server.asked, [0, 0]);
  assert.deepEqual(cluster.events.map(({ id }) => id), [1]);
  cluster.stop();
});

test('what is owned comes page by page', async () => {
  const { server, cluster } = world();
  server.owned = Array.from({ length: 60 }, (_, index) => ({ conversation: `c${index}`, epoch: 1, state: 'active' }));
  await cluster.start();
  assert.deepEqual([cluster.owned.length, cluster.hasMoreOwned], [50, true]);
  await cluster.more();
  assert.deepEqual([cluster.owned.length, cluster.hasMoreOwned], [60, false]);
  assert.equal(new Set(cluster.owned.map(({ conversation }) => conversation)).size, 60);
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

test('every kind of event has a sentence of its own', () => {
  const kinds = ['claim_won', 'claim_lost', 'fenced', 'released', 'handed_off', 'death_declared', 'lifeline_lost', 'lease_lost'];
  const sentences = kinds.map((kind) => sentence({ kind, conversation: 'room', epoch: 3, why: 'idle', to: 'i-2', node: 'b' }));
  assert.equal(new Set(sentences).size, kinds.length);
  assert.ok(sentences.every((text) => !text.includes('undefined') && !text.includes('_')), sentences.join('\n'));
});
