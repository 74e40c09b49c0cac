/**
 * The client package, packed and installed, with each phoenix.js that it supports, against the real server: what it promises
 * when the server dies under it, is told to stop, refuses, or cannot be reached for moments.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';
import WebSocket, { WebSocketServer } from 'ws';
import { install } from '../harness/package.js';
import { Proxy } from '../harness/proxy.js';
import { between, randomFrom, seed } from '../harness/random.js';
import { Server } from '../harness/server.js';
import { until } from '../harness/until.js';

const numbered = (count, prefix) => Array.from({ length: count }, (_, index) => `${prefix} ${index}`);

for (const phoenix of ['phoenix', 'phoenix-1.7']) {
  describe(`the client package with ${phoenix}`, { timeout: 400_000 }, () => {
    let installed;
    let Conch;
    let ConchRefusal;
    let server;
    let alice;
    let bob;
    const opened = [];

    /** How each of its sockets was closed. */
    const closeCodes = [];
    class Observed extends WebSocket {
      constructor(...given) {
        super(...given);
        this.on('close', (code) => closeCodes.push(code));
      }
    }

    const client = (token, url = server.url) => {
      const conch = new Conch({ url, token: async () => token, WebSocket: Observed });
      opened.push(conch);
      return conch;
    };

    /** A room, and everything it was told: the texts shown, and each record once it is live. */
    const enter = (conch, id, options) => {
      const room = conch.conversation(id, options);
      const seen = { room, records: [], pages: [], states: [] };
      room.onResync((page) => {
        seen.pages.push(page);
        seen.records = [...page.messages];
      });
      room.onRecord((record) => seen.records.push(record));
      room.onState((state) => seen.states.push(state));
      seen.live = () => until(() => room.state === 'live', `${id} to be live`, 30_000);
      return seen;
    };

    before(async () => {
      installed = await install(phoenix, ['ws']);
      ({ Conch, ConchRefusal } = await installed.load());
      server = await Server.start();
      alice = await server.token('alice', { name: 'Alice' });
      bob = await server.token('bob', { name: 'Bob' });
    });
    after(async () => {
      for (const conch of opened) conch.close();
      await server?.stop();
      await installed?.remove();
    });

    test('sends, with a receipt; others see it; what becomes of it is told', async () => {
      await server.channel(alice, 'hello');
      await server.say(bob, 'hello', 'before');
      const mine = enter(client(alice), 'hello');
      const theirs = enter(client(bob), 'hello');
      await Promise.all([mine.live(), theirs.live()]);
      const states = [];
      const receipt = await mine.room.send({ text: 'Good morning' }, { clientMsgId: 'm-1', onStatus: ({ state }) => states.push(state) });
      assert.deepEqual(Object.keys(receipt).sort(), ['at', 'duplicate', 'epoch', 'seq']);
      assert.equal(receipt.duplicate, false);
      assert.deepEqual(states, ['sending', 'delivered']);
      await until(() => theirs.records.at(-1)?.seq === receipt.seq, 'the record');
      assert.deepEqual(theirs.records, await server.history(bob, 'hello'));
      assert.equal(theirs.pages[0].cause, 'start');
      const again = await mine.room.send({ text: 'Good morning' }, { clientMsgId: 'm-1' });
      assert.deepEqual(again, { ...receipt, duplicate: true });
      await until(() => mine.room.outgoing.length === 0, 'nothing to be on its way');
      assert.deepEqual(mine.room.records, await server.history(bob, 'hello'));
    });

    test('a refusal without a directive is surfaced; the next message goes out', async () => {
      await server.channel(alice, 'refusals');
      const { room } = enter(client(alice), 'refusals');
      const cases = [[{}, 'invalid_request'], [{ text: 'a'.repeat(70_000) }, 'too_large']];
      for (const [body, code] of cases) {
        await assert.rejects(room.send(body, { clientMsgId: `bad-${code}` }), (refusal) => {
          assert.ok(refusal instanceof ConchRefusal);
          assert.deepEqual([refusal.code, refusal.retry, refusal.clientMsgId], [code, null, `bad-${code}`]);
          return true;
        });
      }
      await room.send({ text: 'good' }, { clientMsgId: 'taken' });
      await assert.rejects(room.send({ text: 'other' }, { clientMsgId: 'taken' }), { code: 'idempotency_key_reused' });
      assert.deepEqual(await server.texts(alice, 'refusals'), ['good']);
    });

    test('a conversation that is not there refuses what waits', async () => {
      const { room } = enter(client(alice), 'nowhere', { latest: 0 });
      await assert.rejects(room.send({ text: 'anybody?' }), { code: 'not_found' });
      assert.equal(room.state, 'refused');
      await assert.rejects(room.send({ text: 'again?' }), { code: 'not_found' });
    });

    test('more than the rate allows is sent all the same, as the directives say', async (t) => {
      const strict = await Server.start({ environment: { CONCH_RATE_BURST: '3', CONCH_RATE_PER_SECOND: '4' } });
      t.after(() => strict.stop());
      const talker = await strict.token('talker');
      await strict.channel(talker, 'many');
      const conch = client(talker, strict.url);
      const { room } = enter(conch, 'many');
      const texts = numbered(12, 'many');
      const waited = new Set();
      const onStatus = ({ state, error }) => { if (state === 'waiting') waited.add(error.code); };
      await Promise.all(texts.map((text) => room.send({ text }, { onStatus })));
      assert.deepEqual(await strict.texts(talker, 'many'), texts);
      assert.deepEqual([...waited], ['rate_limited']);
      conch.close();
    });

    test('no more than a hundred wait; the next is refused at once', async () => {
      const { room } = enter(client(alice, 'http://127.0.0.1:9'), 'full');
      const sent = numbered(100, 'full').map((text) => room.send({ text }));
      await assert.rejects(room.send({ text: 'one more' }), { code: 'outbox_full' });
      room.leave();
      for (const { reason } of await Promise.allSettled(sent)) assert.equal(reason.code, 'left');
    });

    for (const [name, end, code] of [['kill -9', 'kill', 1006], ['a stop, which closes with 1012', 'terminate', 1012]]) {
      test(`sends during ${name} and a new start: each once, in order, no error`, async () => {
        const id = `during-${end}`;
        await server.channel(alice, id);
        const mine = enter(client(alice), id);
        const theirs = enter(client(bob), id);
        await Promise.all([mine.live(), theirs.live()]);
        closeCodes.length = 0;
        const texts = numbered(30, end);
        const sent = [];
        const say = (from, to) => { for (const text of texts.slice(from, to)) sent.push(mine.room.send({ text })); };
        say(0, 10);
        await sent[2];
        say(10, 20);
        const ended = server[end]();
        say(20, 30);
        await ended;
        await until(() => mine.room.state === 'offline', 'the loss to be noticed');
        await server.run();
        const receipts = await Promise.all(sent);
        assert.deepEqual(await server.texts(alice, id), texts);
        assert.ok(receipts.every(({ seq }, index) => index === 0 || seq > receipts[index - 1].seq));
        const history = await server.history(alice, id);
        await until(() => theirs.records.length === history.length && mine.records.length === history.length, 'everything to be seen');
        for (const { records, pages } of [mine, theirs]) {
          assert.deepEqual(records, history);
          assert.equal(pages.length, 1, 'it resumed, and did not start over');
        }
        assert.ok(closeCodes.includes(code), `closed with ${closeCodes}`);
      });
    }

    test('a position of another log is one resync: the latest page, and on from there', async () => {
      await server.channel(alice, 'resync');
      for (const text of ['one', 'two', 'three']) await server.say(alice, 'resync', text);
      const joins = [];
      const seen = enter(client(bob), 'resync', { after: 1, log: 'another.1' });
      seen.room.onState((state) => { if (state === 'joining') joins.push(state); });
      await seen.live();
      assert.deepEqual(seen.pages.map(({ cause }) => cause), ['resync']);
      await server.say(alice, 'resync', 'four');
      await until(() => seen.records.length === 4, 'the next record');
      const history = await server.history(alice, 'resync');
      assert.deepEqual(seen.records, history);
      const { log } = await server.must(alice, 'GET', '/v1/conversations/resync/messages');
      assert.deepEqual(seen.room.position, { after: history.at(-1).seq, log });
      assert.equal(joins.length, 2, 'one join that failed to resume, and one behind the page');
    });

    test('goes on behind a position that is known, and back through history', async () => {
      await server.channel(alice, 'resume');
      for (const text of ['one', 'two', 'three']) await server.say(alice, 'resume', text);
      const history = await server.history(alice, 'resume');
      const seen = enter(client(bob), 'resume', { after: history[1].seq });
      await seen.live();
      assert.deepEqual([seen.records, seen.pages], [history.slice(2), []]);
      assert.equal(await seen.room.loadOlder(), true);
      assert.deepEqual(seen.room.records, history);
      assert.deepEqual((await seen.room.history({ limit: 1 })).messages, history.slice(2));
      const head = enter(client(bob), 'resume', { latest: 0 });
      await head.live();
      await server.say(alice, 'resume', 'four');
      await until(() => head.records.length === 1, 'the next record');
      assert.equal(head.records[0].body.text, 'four');
    });

    test('a hundred sends over a line that is cut again and again: each once, in order', async (t) => {
      t.diagnostic(`CONCH_SEED=${seed}`);
      const random = randomFrom(seed);
      await server.channel(alice, 'cuts');
      const watcher = enter(client(bob), 'cuts');
      await watcher.live();
      const proxy = await Proxy.before(server, { answers: () => between(random, 8, 24) });
      t.after(() => proxy.stop());
      const { room } = enter(client(await server.token('cut-off'), proxy.url), 'cuts');
      const texts = numbered(100, 'cuts');
      const sent = [];
      for (const text of texts) {
        await until(() => room.outgoing.length < between(random, 1, 20), 'room in the outbox', 120_000);
        sent.push(room.send({ text }));
        if (random() < 0.05) proxy.cut();
      }
      await Promise.all(sent);
      assert.deepEqual(await server.texts(alice, 'cuts'), texts);
      const history = await server.history(alice, 'cuts');
      await until(() => watcher.records.length === history.length && room.position.after === history.at(-1).seq, 'everything to be seen');
      assert.deepEqual(watcher.records, history);
      assert.deepEqual(room.records.map(({ seq }) => seq), history.map(({ seq }) => seq).slice(-room.records.length));
      // Each send needs an answer, and no connection carries more than 24.
      assert.ok(proxy.cuts >= 4, `only ${proxy.cuts} cuts`);
    });

    test('an answer that is lost is not a second message; under a new key for each attempt it would be', async (t) => {
      await server.channel(alice, 'lost-answer');
      class NewKeys extends Observed {
        send(frame) {
          const parts = JSON.parse(frame);
          if (parts[3] === 'message') parts[4].client_msg_id = crypto.randomUUID();
          super.send(JSON.stringify(parts));
        }
      }
      for (const [WebSocketClass, expected] of [[Observed, ['sound']], [NewKeys, ['mutant', 'mutant']]]) {
        const [text] = expected;
        const proxy = await Proxy.before(server, {
          // The answer, or the record where that comes first.
          loses: (answer) => proxy.cuts === 0 && (answer.includes('"duplicate":false') || answer.includes(`"text":"${text}"`)),
        });
        t.after(() => proxy.stop());
        const conch = new Conch({ url: proxy.url, token: () => alice, WebSocket: WebSocketClass });
        opened.push(conch);
        const { room, live } = enter(conch, 'lost-answer');
        await live();
        const { seq } = await room.send({ text });
        assert.equal(proxy.cuts, 1);
        assert.ok(Number.isInteger(seq));
        assert.deepEqual((await server.texts(alice, 'lost-answer')).filter((sent) => sent === text), expected);
      }
    });

    test('who is told to try at once in the moment of the loss does, and is live again', async (t) => {
      await server.channel(alice, 'at-once');
      const proxy = await Proxy.before(server);
      t.after(() => proxy.stop());
      const conch = client(alice, proxy.url);
      const states = [];
      conch.onState((state) => {
        states.push(state);
        if (state === 'waiting') conch.retryNow();
      });
      const { room, live } = enter(conch, 'at-once');
      await live();
      for (let round = 0; round < 3; round += 1) {
        proxy.cut();
        await room.send({ text: `round ${round}` });
      }
      assert.deepEqual(await server.texts(alice, 'at-once'), ['round 0', 'round 1', 'round 2']);
      assert.deepEqual(states.slice(0, 5), ['connecting', 'open', 'waiting', 'connecting', 'open']);
    });

    test('comes back when it is asked to leave, refused with a directive, in error, or closed with 1000', async (t) => {
      const AFTER_MS = 300;
      const far = new WebSocketServer({ port: 0, host: '127.0.0.1' });
      t.after(() => far.close());
      await once(far, 'listening');
      const joins = [];
      const push = (socket, ...frame) => socket.send(JSON.stringify(frame));
      /** What happens at each join in turn: each ends it, but for the last. */
      const script = [
        (socket, joinRef, ref, topic, ok) => {
          ok();
          push(socket, null, null, topic, 'reconnect', { after_ms: AFTER_MS });
        },
        (socket, joinRef, ref, topic) => {
          const response = { code: 'conversation_unavailable', detail: '', retry: { after_ms: AFTER_MS, budget_ms: 10_000 } };
          push(socket, joinRef, ref, topic, 'phx_reply', { status: 'error', response });
        },
        (socket, joinRef, ref, topic, ok) => {
          ok();
          push(socket, null, null, topic, 'message', { seq: 8, kind: 'message', sender: 'x', epoch: 1, at: '', body: { text: 'eight' } });
          push(socket, joinRef, null, topic, 'phx_error', {});
        },
        (socket, joinRef, ref, topic, ok) => {
          ok();
          socket.close(1000);
        },
        (socket, joinRef, ref, topic, ok) => {
          ok();
          push(socket, null, null, topic, 'caught_up', { seq: 8 });
        },
      ];
      far.on('connection', (socket) => socket.on('message', (data) => {
        const [joinRef, ref, topic, event, payload] = JSON.parse(data);
        if (event !== 'phx_join') return;
        joins.push({ payload, at: Date.now() });
        const response = { head_seq: 5, log: 'l.1', epoch: 1, catchup: 'streaming', reconnect_jitter_ms: 1 };
        script[joins.length - 1](socket, joinRef, ref, topic, () => push(socket, joinRef, ref, topic, 'phx_reply', { status: 'ok', response }));
      }));
      const seen = enter(client(alice, `http://127.0.0.1:${far.address().port}`), 'scripted', { latest: 0 });
      await seen.live();
      const behind = (after) => ({ after, log: 'l.1' });
      assert.deepEqual(joins.map(({ payload }) => payload), [{}, behind(5), behind(5), behind(8), behind(8)]);
      assert.deepEqual(seen.records.map(({ seq }) => seq), [8]);
      for (const [earlier, later] of [[0, 1], [1, 2]]) {
        // A timer may be a millisecond early.
        assert.ok(joins[later].at - joins[earlier].at >= AFTER_MS - 2, `${joins[later].at - joins[earlier].at} ms between the joins`);
      }
    });

    test('a turn streams into one answer', async () => {
      await server.must(alice, 'PUT', '/v1/conversations/package-session', { kind: 'session', agent: 'demo' });
      const { room } = enter(client(alice), 'package-session');
      let longest = '';
      room.onTurn((turn) => {
        const text = turn.steps.find(({ done }) => !done)?.text ?? '';
        if (text.length > longest.length) longest = text;
      });
      const { seq } = await room.send({ text: 'What can you do?' });
      await until(() => room.turns.get(seq)?.state === 'completed', 'the turn to complete', 60_000);
      const { answer } = room.turns.get(seq);
      assert.ok(longest.length > 0 && answer.body.text.startsWith(longest), `streamed "${longest}", answered "${answer.body.text}"`);
    });

    test('a turn is approved, run again and cancelled', async () => {
      await server.must(alice, 'PUT', '/v1/conversations/package-turns', { kind: 'session', agent: 'demo' });
      const { room } = enter(client(alice), 'package-turns', { latest: 0 });
      const waits = (seq) => until(async () => {
        const { state, awaits } = await room.turn(seq);
        return state === 'waiting' ? awaits[0] : undefined;
      }, `turn ${seq} to wait`, 60_000);
      const { seq } = await room.send({ text: '1 + 1, with my approval' });
      const { await: name, schema } = await waits(seq);
      assert.deepEqual(schema.required, ['approve']);
      await assert.rejects(room.resolve(name, { approve: 'yes' }), { code: 'invalid_request', detail: /^payload\/approve: / });
      const first = await room.resolve(name, { approve: true });
      assert.deepEqual(await room.resolve(name, { approve: true }), { ...first, duplicate: true });
      await assert.rejects(room.resolve(name, { approve: false }), { code: 'conflict', retry: null });
      await until(() => room.turns.get(seq)?.state === 'completed', 'the turn to complete', 60_000);
      await assert.rejects(room.cancel(seq), { code: 'conflict' });
      const again = await room.regenerate(seq, { clientMsgId: 'again' });
      assert.deepEqual(await room.regenerate(seq, { clientMsgId: 'again' }), { ...again, duplicate: true });
      await waits(again.turn);
      await room.cancel(again.turn, 'rollback');
      const { state, cancelled } = await room.turn(again.turn);
      assert.deepEqual([state, cancelled], ['cancelled', { mode: 'rollback', by: 'alice' }]);
    });

    test('a token that is not accepted is said, after another was asked for', async () => {
      const asked = [];
      const conch = new Conch({
        url: server.url, WebSocket: Observed,
        token: ({ isRefused }) => {
          asked.push(isRefused);
          return 'not.a.token';
        },
      });
      opened.push(conch);
      const { room } = enter(conch, 'hello', { latest: 0 });
      await assert.rejects(room.send({ text: 'hello?' }), { code: 'unauthenticated' });
      assert.equal(conch.state, 'refused');
      assert.equal(asked.at(-1), true);
    });

    test('leaving and closing settle what waits', async () => {
      const conch = client(alice, 'http://127.0.0.1:9');
      const { room } = enter(conch, 'hello');
      assert.throws(() => conch.conversation('hello'), /open already/);
      const sent = room.send({ text: 'never' });
      conch.close();
      await assert.rejects(sent, { code: 'left' });
      await assert.rejects(room.send({ text: 'late' }), { code: 'left' });
      assert.equal(conch.state, 'closed');
    });
  });
}
