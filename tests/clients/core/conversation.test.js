import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Conversation } from '../../../clients/typescript/core/conversation.js';
import { Socket } from '../../../console/core/socket.js';
import { Refusal } from '../../../clients/typescript/core/errors.js';
import { FakeClock, counter, fakeStorage, fakeWebSockets, message, never, settle } from './fakes.js';

const TOPIC = 'conversation:c';

function world(more = {}) {
  const clock = new FakeClock();
  const sockets = fakeWebSockets();
  const socket = new Socket({ url: () => 'ws://x', authorize: async () => [], WebSocket: sockets.FakeWebSocket, clock, random: never });
  const pages = [];
  const asked = [];
  const api = {
    history: async (id, query) => {
      asked.push(query);
      const page = pages.shift();
      if (page instanceof Error) throw page;
      return { messages: [], head_seq: 0, log: 'l.1', more: false, ...page };
    },
  };
  const conversation = new Conversation({ id: 'c', me: () => 'alice', api, socket, clock, random: never, newId: counter('k'), storage: fakeStorage(), ...more });
  const push = (event, payload) => sockets.latest.push(null, null, TOPIC, event, payload);
  return { clock, sockets, socket, pages, asked, conversation, push, seqs: () => conversation.timeline.records.map(({ seq }) => seq) };
}

/** Connected, first page loaded, joined and caught up at `page.head_seq`. */
async function live(page, more) {
  const made = world(more);
  made.pages.push(page);
  made.socket.connect();
  await settle();
  made.sockets.latest.open();
  await settle();
  made.sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await settle();
  made.push('caught_up', { seq: page.head_seq });
  return made;
}

test('loads the latest page, joins behind its head, and is live when caught up', async () => {
  const { conversation, sockets, seqs } = await live({ messages: [message(3, 'a')], head_seq: 4 });
  assert.deepEqual(sockets.latest.last('phx_join')[4], { after: 4, log: 'l.1' });
  assert.equal(conversation.status, 'live');
  assert.deepEqual(seqs(), [3]);
});

test('after a loss it rejoins behind the last record; what comes twice is shown once', async () => {
  const { conversation, sockets, clock, push, seqs } = await live({ messages: [message(3, 'a')], head_seq: 3 });
  push('message', message(5, 'b'));
  sockets.latest.lose();
  assert.equal(conversation.status, 'offline');
  await clock.advance(1_000);
  sockets.latest.open();
  assert.deepEqual(sockets.latest.last('phx_join')[4], { after: 5, log: 'l.1' });
  sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await settle();
  assert.equal(conversation.status, 'catching_up');
  push('message', message(5, 'b'));
  push('message', message(1_000, 'c'));
  push('caught_up', { seq: 1_000 });
  assert.equal(conversation.status, 'live');
  assert.deepEqual(seqs(), [3, 5, 1_000]);
});

test('a resync starts over from the latest page, ignores what overtakes it, and rejoins behind that page', async () => {
  const { conversation, sockets, pages, push, seqs } = await live({ messages: [message(3, 'a')], head_seq: 3 });
  pages.push({ messages: [message(90, 'y'), message(91, 'z')], head_seq: 91, log: 'l.2', more: true });
  push('resync', { log: 'l.2', head_seq: 91 });
  push('message', message(92, 'overtakes'));
  push('caught_up', { seq: 92 });
  await settle();
  assert.deepEqual(seqs(), [90, 91]);
  assert.deepEqual(sockets.latest.last('phx_join')[4], { after: 91, log: 'l.2' });
  sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await settle();
  push('message', message(92, 'again'));
  push('caught_up', { seq: 92 });
  assert.deepEqual(seqs(), [90, 91, 92]);
  assert.equal(conversation.status, 'live');
});

test('a resync whose page cannot be had tries again later', async () => {
  const { conversation, pages, push, clock, seqs } = await live({ messages: [message(3, 'a')], head_seq: 3 });
  pages.push(new Refusal({ code: 'disconnected' }), { messages: [message(9, 'z')], head_seq: 9 });
  push('resync', { log: 'l.1', head_seq: 9 });
  await settle();
  assert.equal(conversation.status, 'offline');
  await clock.advance(2_000);
  assert.deepEqual(seqs(), [9]);
});

test('a message written while away leaves once caught up, and its record replaces it', async () => {
  const { conversation, sockets, clock, push, seqs } = await live({ messages: [], head_seq: 0 });
  sockets.latest.lose();
  conversation.say('hello');
  await clock.advance(1_000);
  sockets.latest.open();
  sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await settle();
  assert.equal(sockets.latest.count('message'), 0);
  push('caught_up', { seq: 0 });
  assert.deepEqual(sockets.latest.last('message')[4], { client_msg_id: 'k1', body: { text: 'hello' } });
  push('message', message(2, 'hello', { sender: 'alice', client_msg_id: 'k1' }));
  sockets.latest.reply('message', { seq: 2, epoch: 1 });
  await settle();
  assert.deepEqual(conversation.outbox.entries, []);
  assert.deepEqual(seqs(), [2]);
});

test('an answer lost on the way: the record that catch-up brings settles it, nothing is sent again', async () => {
  const { conversation, sockets, clock, push } = await live({ messages: [], head_seq: 0 });
  conversation.say('hello');
  sockets.latest.lose();
  await clock.advance(1_000);
  sockets.latest.open();
  sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await settle();
  push('message', message(2, 'hello', { sender: 'alice', client_msg_id: 'k1' }));
  push('caught_up', { seq: 2 });
  await settle();
  assert.equal(sockets.latest.count('message'), 0);
  assert.deepEqual(conversation.outbox.entries, []);
});

test('history goes back page by page', async () => {
  const { conversation, pages, asked, seqs } = await live({ messages: [message(60, 'b')], head_seq: 60, more: true });
  pages.push({ messages: [message(10, 'a')], head_seq: 60 });
  assert.equal(await conversation.loadOlder(), true);
  assert.deepEqual(asked.at(-1), { before: 60, limit: 50 });
  assert.deepEqual(seqs(), [10, 60]);
  assert.equal(await conversation.loadOlder(), false);
});

test('a directive on the first page is obeyed; a refusal is shown', async () => {
  const { conversation, pages, socket, sockets, clock, asked } = world();
  pages.push(new Refusal({ code: 'overloaded', retry: { after_ms: 300, budget_ms: 5_000 } }), new Refusal({ code: 'forbidden', status: 403 }));
  socket.connect();
  await settle();
  sockets.latest.open();
  await clock.advance(300);
  assert.equal(asked.length, 2);
  assert.equal(conversation.status, 'refused');
  assert.equal(conversation.refusal.code, 'forbidden');
});

test('typing is told at most every three seconds, and a message ends the hint of its sender', async () => {
  const { conversation, sockets, clock, push } = await live({ messages: [], head_seq: 0 });
  conversation.isTyping();
  conversation.isTyping();
  assert.equal(sockets.latest.count('typing'), 1);
  await clock.advance(3_000);
  conversation.isTyping();
  assert.equal(sockets.latest.count('typing'), 2);
  push('typing', { sender: 'alice', name: 'Alice' });
  push('typing', { sender: 'bob', name: 'Bob' });
  assert.deepEqual(conversation.typing.names, ['Bob']);
  push('message', message(1, 'done'));
  assert.deepEqual(conversation.typing.names, []);
  push('typing', { sender: 'bob', name: 'Bob' });
  await clock.advance(5_000);
  assert.deepEqual(conversation.typing.names, []);
});

test('the cursor only moves forward, and is told again after a loss', async () => {
  const { conversation, sockets, clock } = await live({ messages: [message(3, 'a')], head_seq: 3 });
  conversation.readThrough(2);
  conversation.readThrough(3);
  conversation.readThrough(1);
  await clock.advance(250);
  assert.deepEqual(sockets.latest.sent.filter(([, , , event]) => event === 'cursor').map((frame) => frame[4]), [{ seq: 3 }]);
  conversation.readThrough(4);
  sockets.latest.lose();
  await clock.advance(250);
  conversation.readThrough(4);
  await clock.advance(1_000);
  sockets.latest.open();
  sockets.latest.reply('phx_join', { catchup: 'streaming' });
  await clock.advance(250);
  conversation.readThrough(4);
  await clock.advance(250);
  assert.deepEqual(sockets.latest.last('cursor')[4], { seq: 4 });
});

test('stopping leaves the channel and sends nothing more', async () => {
  const { conversation, sockets, clock } = await live({ messages: [], head_seq: 0 });
  conversation.stop();
  assert.equal(sockets.latest.count('phx_leave'), 1);
  conversation.say('late');
  await clock.advance(60_000);
  assert.equal(sockets.latest.count('message'), 0);
});

test('a message waits for what must come before it, and no longer', async () => {
  let admit;
  const waits = [new Promise((resolve) => { admit = resolve; }), null];
  const { conversation, sockets, push } = await live({ messages: [], head_seq: 0 }, { beforeSending: () => waits.shift() });
  conversation.say('first');
  await settle();
  assert.equal(sockets.latest.count('message'), 0);
  admit();
  await settle();
  assert.equal(sockets.latest.count('message'), 1);
  push('message', message(1, 'first', { sender: 'alice', client_msg_id: 'k1' }));
  conversation.say('second');
  assert.equal(sockets.latest.count('message'), 2);
});

test('begins behind a position that is known, whose log the reply names', async () => {
  const { conversation, sockets, socket, asked, push, seqs } = world({ start: { after: 7 } });
  socket.connect();
  await settle();
  sockets.latest.open();
  assert.deepEqual(sockets.latest.last('phx_join')[4], { after: 7 });
  sockets.latest.reply('phx_join', { catchup: 'streaming', head_seq: 12, log: 'l.1' });
  await settle();
  push('message', message(7, 'known'));
  push('message', message(12, 'new'));
  push('caught_up', { seq: 12 });
  assert.deepEqual([seqs(), conversation.status, asked.length], [[12], 'live', 0]);
  assert.deepEqual(conversation.timeline.joinParams(), { after: 12, log: 'l.1' });
});

test('begins at the head, and resumes from there although nothing was said', async () => {
  const { sockets, socket, clock } = world({ start: 'head' });
  socket.connect();
  await settle();
  sockets.latest.open();
  assert.deepEqual(sockets.latest.last('phx_join')[4], {});
  sockets.latest.reply('phx_join', { catchup: 'streaming', head_seq: 12, log: 'l.1' });
  await settle();
  sockets.latest.lose();
  await clock.advance(1_000);
  sockets.latest.open();
  assert.deepEqual(sockets.latest.last('phx_join')[4], { after: 12, log: 'l.1' });
});

test('nothing is shown after a resync whose page is still to come', async () => {
  const { pages, push, clock, seqs } = await live({ messages: [message(3, 'a')], head_seq: 3 });
  pages.push(new Refusal({ code: 'disconnected' }), { messages: [message(9, 'z')], head_seq: 9 });
  push('resync', { log: 'l.1', head_seq: 9 });
  await settle();
  push('message', message(10, 'not yet'));
  assert.deepEqual(seqs(), [3]);
  await clock.advance(2_000);
  assert.deepEqual(seqs(), [9]);
});

test("another sender's record under my key does not settle my message", async () => {
  const { conversation, push } = await live({ messages: [], head_seq: 0 });
  conversation.say('hello');
  push('message', message(2, 'theirs', { sender: 'mallory', client_msg_id: 'k1' }));
  assert.equal(conversation.outbox.entries.length, 1);
});
