/**
 * phoenix.js 1.8 in Node against a real server: what a stock client gets, also when the server dies under it.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { Presence } from 'phoenix';
import WebSocket from 'ws';
import { connect, follow, recording, reply } from '../harness/phoenix.js';
import { Server } from '../harness/server.js';
import { until } from '../harness/until.js';

const texts = (records) => records.filter(({ kind }) => kind === 'message').map(({ body }) => body.text);
const ascends = (seqs) => seqs.every((seq, index) => index === 0 || seq > seqs[index - 1]);

describe('phoenix.js', { timeout: 300_000 }, () => {
  let server;
  let alice;
  let bob;
  const sockets = [];
  const open = (token) => {
    const socket = connect(server, token);
    sockets.push(socket);
    return socket;
  };

  before(async () => {
    server = await Server.start();
    alice = await server.token('alice', { name: 'Alice' });
    bob = await server.token('bob', { name: 'Bob' });
  });
  after(async () => {
    for (const socket of sockets) socket.disconnect();
    await server?.stop();
  });

  test('join, push, reply, broadcast', async () => {
    await server.channel(alice, 'hello');
    const mine = await follow(open(alice), 'conversation:hello');
    const theirs = await follow(open(bob), 'conversation:hello');
    const [joined] = mine.joins;
    assert.equal(typeof joined.log, 'string');
    assert.equal(joined.catchup, 'streaming');
    assert.ok(Number.isInteger(joined.head_seq) && Number.isInteger(joined.epoch) && Number.isInteger(joined.reconnect_jitter_ms));

    const acked = await reply(mine.channel.push('message', { client_msg_id: 'hello-1', body: { text: 'Good morning', mood: 'mild' } }));
    assert.equal(acked.duplicate, false);
    assert.match(acked.at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    for (const seen of [mine, theirs]) {
      const record = await until(() => seen.records.find(({ seq }) => seq === acked.seq), 'the broadcast');
      assert.deepEqual(record, {
        seq: acked.seq, kind: 'message', conversation: 'hello', sender: 'alice', name: 'Alice', client_msg_id: 'hello-1',
        at: acked.at, epoch: acked.epoch, body: { text: 'Good morning', mood: 'mild' },
      });
    }
  });

  test('the same key again is the same message; with another body it is refused', async () => {
    await server.channel(alice, 'keys');
    const { channel } = await follow(open(alice), 'conversation:keys');
    const first = await reply(channel.push('message', { client_msg_id: 'k', body: { text: 'once' } }));
    const second = await reply(channel.push('message', { client_msg_id: 'k', body: { text: 'once' } }));
    assert.deepEqual({ ...second, duplicate: false }, first);
    assert.equal(second.duplicate, true);
    await assert.rejects(reply(channel.push('message', { client_msg_id: 'k', body: { text: 'other' } })), ({ response }) => {
      assert.equal(response.code, 'idempotency_key_reused');
      assert.equal(response.retry, undefined);
      return true;
    });
    assert.deepEqual(await server.texts(alice, 'keys'), ['once']);
  });

  test('errors are replies, and the channel stays', async () => {
    await server.channel(alice, 'errors');
    const { channel } = await follow(open(alice), 'conversation:errors');
    const cases = [
      ['no body', 'message', { client_msg_id: 'x' }, 'invalid_request'],
      ['no text', 'message', { client_msg_id: 'x', body: {} }, 'invalid_request'],
      ['an unknown field', 'message', { client_msg_id: 'x', body: { text: 'a' }, extra: 1 }, 'invalid_request'],
      ['an empty key', 'message', { client_msg_id: '', body: { text: 'a' } }, 'invalid_request'],
      ['a body over the limit', 'message', { client_msg_id: 'x', body: { text: 'a'.repeat(70_000) } }, 'too_large'],
      ['a cursor beyond the head', 'cursor', { seq: 1_000_000 }, 'invalid_request'],
      ['an unknown event', 'no.such.event', {}, 'not_found'],
    ];
    for (const [name, event, payload, code] of cases) {
      await assert.rejects(reply(channel.push(event, payload)), ({ response }) => {
        assert.equal(response?.code, code, name);
        return true;
      }, name);
    }
    const acked = await reply(channel.push('message', { client_msg_id: 'x', body: { text: 'a refused send did not use its key' } }));
    assert.equal(acked.duplicate, false);
  });

  test('a join that cannot succeed says why', async () => {
    await server.channel(alice, 'closed');
    const stranger = await server.token('stranger', { conversations: 'elsewhere-*', can: 'read' });
    const cases = [[alice, 'conversation:nowhere', 'not_found'], [stranger, 'conversation:closed', 'forbidden'], [alice, 'conversation:no spaces', 'invalid_request']];
    for (const [token, topic, code] of cases) {
      const channel = open(token).channel(topic, {});
      await assert.rejects(reply(channel.join()), ({ response }) => {
        assert.equal(response?.code, code, topic);
        return true;
      });
      channel.leave();
    }
  });

  test('a bad token is refused before the upgrade', async () => {
    for (const protocols of [['phoenix', `base64url.bearer.phx.${btoa('not.a.token').replaceAll('=', '')}`], ['phoenix']]) {
      const status = await new Promise((resolve, reject) => {
        const socket = new WebSocket(`${server.socketUrl}/websocket?vsn=2.0.0`, protocols);
        socket.on('unexpected-response', (request, response) => {
          resolve(response.statusCode);
          request.destroy();
        });
        socket.on('open', () => reject(new Error('it opened')));
        socket.on('error', () => {});
      });
      assert.equal(status, 403);
    }
  });

  test("presence with phoenix.js's own class: people, their tabs, their leaving", async () => {
    await server.channel(alice, 'presence');
    const socket = open(alice);
    const channel = socket.channel('conversation:presence', {});
    const presence = new Presence(channel);
    const joins = [];
    const leaves = [];
    presence.onJoin((sub, current) => { if (!current) joins.push(sub); });
    presence.onLeave((sub, current) => { if (current.metas.length === 0) leaves.push(sub); });
    await reply(channel.join());
    const here = () => presence.list((sub, { metas }) => `${sub}:${metas.length}`).sort().join(' ');
    await until(() => here() === 'alice:1', 'alice to see herself');

    const [first, second] = [open(bob), open(bob)];
    await reply(first.channel('conversation:presence', {}).join());
    await reply(second.channel('conversation:presence', {}).join());
    await until(() => here() === 'alice:1 bob:2', 'both tabs of bob');
    const metas = presence.list((sub, entry) => entry.metas).flat();
    assert.equal(new Set(metas.map(({ phx_ref: ref }) => ref)).size, 3);
    assert.equal(metas.every(({ name }) => ['Alice', 'Bob'].includes(name)), true);

    first.disconnect();
    await until(() => here() === 'alice:1 bob:1', 'one tab of bob to go');
    assert.deepEqual(leaves, []);
    second.disconnect();
    await until(() => here() === 'alice:1', 'bob to go');
    assert.deepEqual(leaves, ['bob']);
    assert.deepEqual(joins, ['alice', 'bob']);
  });

  test('typing reaches the others; a cursor moves the unread count of the personal stream', async () => {
    await server.channel(alice, 'unread', { members: ['bob'] });
    const mine = await follow(open(alice), 'conversation:unread');
    const bobs = open(bob);
    const theirs = await follow(bobs, 'conversation:unread');
    mine.channel.push('typing', {});
    const typing = await until(() => theirs.events.find(({ event }) => event === 'typing'), 'the typing hint');
    assert.deepEqual(typing.payload, { sender: 'alice', name: 'Alice' });

    const personal = bobs.channel('user:me', {});
    const events = recording(personal);
    assert.deepEqual(await reply(personal.join()), {});
    await until(() => events.some(({ event }) => event === 'caught_up'), 'the personal stream to catch up');
    const latest = () => events.filter(({ event, payload }) => event === 'conversation' && payload.id === 'unread').at(-1)?.payload;
    assert.equal(latest().unread, 0);
    await reply(mine.channel.push('message', { client_msg_id: 'u1', body: { text: 'one' } }));
    const last = await reply(mine.channel.push('message', { client_msg_id: 'u2', body: { text: 'two' } }));
    await until(() => latest().unread === 2, 'two unread');
    assert.equal(latest().last_message.body.text, 'two');
    assert.equal(latest().unread_capped, false);
    await reply(theirs.channel.push('cursor', { seq: last.seq }));
    await until(() => latest().unread === 0, 'nothing unread');
    assert.equal(latest().cursor, last.seq);

    await server.channel(alice, 'unread-later');
    await server.must(alice, 'PUT', '/v1/conversations/unread-later/members/bob');
    await until(() => events.some(({ event, payload }) => event === 'membership' && payload.conversation === 'unread-later' && payload.change === 'added'), 'the invitation');
    await server.must(alice, 'DELETE', '/v1/conversations/unread-later/members/bob');
    await until(() => events.some(({ event, payload }) => event === 'membership' && payload.conversation === 'unread-later' && payload.change === 'removed'), 'the removal');
  });

  test('killed and restarted: it reconnects, rejoins with the last seq, without a gap or a duplicate', async () => {
    await server.channel(alice, 'phoenix-kill');
    const reader = await follow(open(bob), 'conversation:phoenix-kill');
    const writer = await follow(open(alice), 'conversation:phoenix-kill');
    const expected = [];
    for (let round = 0; round < 3; round += 1) {
      for (let count = 0; count < 10; count += 1) {
        const text = `${round}.${count}`;
        await reply(writer.channel.push('message', { client_msg_id: `k-${text}`, body: { text } }));
        expected.push(text);
      }
      // One more is on its way when the power goes: its outcome is unknown, so it is sent again under its key.
      const lastKey = `k-${round}.last`;
      writer.channel.push('message', { client_msg_id: lastKey, body: { text: `${round}.last` } });
      const joinsBefore = [reader.joins.length, writer.joins.length];
      await server.kill();
      await server.run();
      await until(() => reader.joins.length > joinsBefore[0] && writer.joins.length > joinsBefore[1], 'both to rejoin', 30_000);
      await reply(writer.channel.push('message', { client_msg_id: lastKey, body: { text: `${round}.last` } }));
      expected.push(`${round}.last`);
    }
    await until(() => texts(reader.records).length >= expected.length, 'everything to arrive');
    assert.deepEqual(texts(reader.records), expected);
    assert.deepEqual(texts(writer.records), expected);
    assert.ok(ascends(reader.records.map(({ seq }) => seq)));
    assert.deepEqual(reader.records, await server.history(bob, 'phoenix-kill'));
    const epochs = reader.joins.map(({ epoch }) => epoch);
    assert.ok(ascends(epochs), `the epoch rises at each restart: ${epochs}`);
  });

  test('away while much is written: everything comes, in order, then caught_up', async () => {
    await server.channel(alice, 'away');
    const socket = open(bob);
    const reader = await follow(socket, 'conversation:away');
    await server.say(alice, 'away', 'before');
    await until(() => reader.records.length === 1, 'the first record');
    socket.disconnect();
    await until(() => !socket.isConnected(), 'the disconnection');
    for (let count = 0; count < 60; count += 1) await server.say(alice, 'away', `while away ${count}`);
    const caughtUpBefore = reader.events.filter(({ event }) => event === 'caught_up').length;
    socket.connect();
    await until(() => reader.events.filter(({ event }) => event === 'caught_up').length > caughtUpBefore, 'caught_up');
    assert.deepEqual(reader.records, await server.history(bob, 'away'));
    const last = reader.events.filter(({ event }) => event === 'caught_up').at(-1).payload;
    assert.ok(last.seq >= reader.records.at(-1).seq);
  });

  test('a position of another log, or beyond the head, is one resync', async () => {
    await server.channel(alice, 'resync');
    await server.say(alice, 'resync', 'one');
    const { log } = await server.must(alice, 'GET', '/v1/conversations/resync/messages');
    for (const params of [{ after: 1, log: 'another.1' }, { after: 4_000_000, log }]) {
      const channel = open(alice).channel('conversation:resync', params);
      const events = recording(channel);
      const joined = await reply(channel.join());
      assert.equal(joined.catchup, 'resync', JSON.stringify(params));
      const { payload } = await until(() => events.find(({ event }) => event === 'resync'), 'the resync');
      assert.equal(payload.log, log);
      channel.leave();
    }
  });

  test('history over the channel is the same as over HTTP', async () => {
    await server.channel(alice, 'paging');
    for (let count = 0; count < 7; count += 1) await server.say(alice, 'paging', `n${count}`);
    const { channel } = await follow(open(alice), 'conversation:paging');
    const all = await server.history(alice, 'paging');
    const page = await reply(channel.push('history', { before: all[5].seq, limit: 3 }));
    assert.deepEqual(page, await server.must(alice, 'GET', `/v1/conversations/paging/messages?before=${all[5].seq}&limit=3`));
    assert.deepEqual(texts(page.messages), ['n2', 'n3', 'n4']);
    assert.equal(page.more, true);
  });

  test('a demo session: records in order, deltas that add up to the answer', async () => {
    await server.must(alice, 'PUT', '/v1/conversations/phoenix-session', { kind: 'session', agent: 'demo' });
    const watcher = await follow(open(alice), 'conversation:phoenix-session');
    const { seq } = await reply(watcher.channel.push('message', { client_msg_id: 'ask', body: { text: 'What can you do?' } }));
    await until(() => watcher.records.some(({ kind }) => kind === 'turn.completed'), 'the turn to complete', 60_000);
    const kinds = watcher.records.map(({ kind }) => kind);
    assert.equal(kinds[0], 'message');
    assert.equal(kinds[1], 'turn.started');
    assert.ok(kinds.filter((kind) => kind === 'step.completed').length >= 2, kinds.join());
    const answer = watcher.records.find(({ sender }) => sender === '@agent:demo');
    assert.equal(answer.turn, seq);
    const streamed = new Map();
    for (const { event, payload } of watcher.events) {
      if (event !== 'delta') continue;
      const text = streamed.get(payload.step) ?? '';
      assert.equal(payload.offset, text.length, 'a delta fits behind the one before');
      streamed.set(payload.step, text + payload.text);
    }
    assert.ok([...streamed.values()].some((text) => text === answer.body.text), JSON.stringify([...streamed]));
  });
});
