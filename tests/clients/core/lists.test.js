/** The smaller pieces: inbox, presence, reading order, ids, session, connection state, directives. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Admission } from '../../../console/core/admission.js';
import { Api } from '../../../console/core/api.js';
import { connectionState } from '../../../console/core/connection.js';
import { obeyDirectives } from '../../../clients/typescript/core/directive.js';
import { Refusal, parseDirective } from '../../../clients/typescript/core/errors.js';
import { flow } from '../../../console/core/flow.js';
import { developmentSubject, directId, isChannelId, isConversationId, parseConversationId, slug } from '../../../console/core/identifiers.js';
import { Inbox } from '../../../console/core/inbox.js';
import { Presence } from '../../../clients/typescript/core/presence.js';
import { plainLine } from '../../../console/core/preview.js';
import { Session } from '../../../console/core/session.js';
import { claims, tokenProtocols } from '../../../clients/typescript/core/token.js';
import { Socket } from '../../../console/core/socket.js';
import { Turns } from '../../../clients/typescript/core/turns.js';
import { FakeClock, fakeStorage, fakeWebSockets, message, never, settle } from './fakes.js';

test('the inbox is what the server pushed since the last join, newest activity first', async () => {
  const clock = new FakeClock();
  const sockets = fakeWebSockets();
  const socket = new Socket({ url: () => 'ws://x', authorize: async () => [], WebSocket: sockets.FakeWebSocket, clock, random: never });
  const inbox = new Inbox({ socket });
  const removed = [];
  inbox.on('removed', (id) => removed.push(id));
  const push = (event, payload) => sockets.latest.push(null, null, 'user:me', event, payload);
  const summary = (id, updatedAt, unread = 0) => ({ id, kind: 'channel', unread, updated_at: updatedAt });
  inbox.start();
  socket.connect();
  await settle();
  sockets.latest.open();
  sockets.latest.reply('phx_join', {});
  await settle();
  push('conversation', summary('a', '2026-01-01T00:00:00.000Z', 2));
  push('conversation', summary('b', '2026-01-02T00:00:00.000Z', 1));
  assert.equal(inbox.isLoaded, false);
  push('caught_up', {});
  assert.deepEqual(inbox.list.map(({ id }) => id), ['b', 'a']);
  assert.equal(inbox.totalUnread, 3);
  inbox.reading('a');
  assert.equal(inbox.totalUnread, 1);
  push('conversation', summary('a', '2026-01-03T00:00:00.000Z'));
  assert.deepEqual(inbox.list.map(({ id }) => id), ['a', 'b']);
  push('membership', { conversation: 'b', change: 'removed' });
  assert.deepEqual(inbox.list.map(({ id }) => id), ['a']);

  sockets.latest.lose();
  await clock.advance(1_000);
  sockets.latest.open();
  sockets.latest.reply('phx_join', {});
  await settle();
  assert.equal(inbox.isResuming, true);
  push('conversation', summary('c', '2026-01-04T00:00:00.000Z'));
  push('caught_up', {});
  assert.deepEqual(inbox.list.map(({ id }) => id), ['c']);
  assert.deepEqual(removed, ['b', 'a']);
});

test('presence holds a person as long as one of their sessions is there', () => {
  const presence = new Presence();
  const metas = (...refs) => ({ metas: refs.map((ref) => ({ phx_ref: ref, name: 'N' })) });
  presence.apply('presence_state', { bob: metas('1'), alice: metas('2') });
  presence.apply('presence_diff', { joins: { bob: metas('3') }, leaves: {} });
  presence.apply('presence_diff', { joins: {}, leaves: { bob: metas('1') } });
  assert.equal(presence.has('bob'), true);
  presence.apply('presence_diff', { joins: {}, leaves: { bob: metas('3'), nobody: metas('9') } });
  assert.deepEqual(presence.people, [{ sub: 'alice', name: 'N' }]);
  presence.apply('presence_count', { count: 3_000 });
  presence.apply('presence_diff', { joins: { carol: metas('4') }, leaves: {} });
  assert.deepEqual([presence.count, presence.isCountOnly, presence.people], [3_000, true, []]);
  presence.apply('presence_state', { carol: metas('4') });
  assert.deepEqual([presence.count, presence.isCountOnly, presence.has('carol')], [1, false, true]);
});

test('reading order: days, the new line, grouping, turns where they began, what is on its way last', () => {
  const turns = new Turns();
  const at = (day, minute) => `2026-11-${day}T10:${String(minute).padStart(2, '0')}:00.000Z`;
  const records = [
    message(1, 'a', { at: at(28, 0) }),
    message(2, 'b', { at: at(28, 4) }),
    message(3, 'c', { at: at(28, 30) }),
    message(4, 'mine', { sender: 'alice', client_msg_id: 'k0', at: at(29, 0) }),
    { ...message(5, ''), kind: 'turn.started', sender: '@start', turn: 4, body: { agent: 'demo' }, at: at(29, 0) },
    message(6, 'meanwhile', { at: at(29, 1) }),
    message(7, 'answer', { sender: '@agent:demo', turn: 4, at: at(29, 2) }),
    { ...message(8, ''), kind: 'something.else', at: at(29, 3) },
  ];
  for (const record of records) turns.record(record);
  const entries = [{ client_msg_id: 'k1', body: { text: 'next' }, created_at: Date.parse(at(29, 3)) }];
  const items = flow({ records, turns, entries, me: 'alice', unreadAfter: 2, dayOf: (time) => time.slice(0, 10) });
  assert.deepEqual(items.map(({ key }) => key), ['day:2026-11-28', 'm:1', 'm:2', 'unread', 'm:3', 'day:2026-11-29', 'c:k0', 't:4', 'm:6', 'c:k1']);
  assert.deepEqual(items.filter(({ isContinued }) => isContinued).map(({ key }) => key), ['m:2']);
});

test('ids that people can live with', () => {
  assert.equal(slug('  Water & Tea! '), 'water-tea');
  assert.equal(slug('Café Ænima'), 'cafe-nima');
  assert.equal(slug('日本'), '');
  assert.equal(directId('bob', 'alice'), 'direct:alice:bob');
  assert.equal(directId('alice', 'bob'), directId('bob', 'alice'));
  for (const other of ['bob@example.org', '日本語', 'x'.repeat(256), 'a:b']) {
    assert.ok(isConversationId(directId('alice', other)), other);
    assert.notEqual(directId('alice', other), directId('alice', `${other}2`));
  }
  assert.equal(developmentSubject(' Alice Liddell '), 'alice-liddell');
  assert.equal(parseConversationId('https://x.example/#/c/tide-pool'), 'tide-pool');
  assert.equal(parseConversationId('#/c/a%3Ab'), 'a:b');
  assert.equal(parseConversationId(' #tide '), 'tide');
  assert.equal(parseConversationId('no spaces'), null);
  assert.equal(parseConversationId('#/c/%'), null);
  assert.deepEqual(['tide', 'session-notes', directId('a', 'b'), `session-${crypto.randomUUID()}`].map(isChannelId), [true, true, false, false]);
});

test('a token says what may be done where', () => {
  const session = new Session({ storage: fakeStorage(), clock: new FakeClock() });
  const token = (payload) => `x.${btoa(JSON.stringify(payload))}.y`;
  session.accept({ token: token({ sub: 'a', conch: [{ conversations: 'team:*', can: ['run'] }, { conversations: 'a?', can: ['read'] }] }), sub: 'a', expires_at: '' }, 'a');
  const asked = [['run', 'team:x'], ['run', 'other'], ['read', 'ab'], ['read', 'abc'], ['send', 'team:x']];
  assert.deepEqual(asked.map(([permission, id]) => session.may(permission, id)), [true, false, true, false, false]);
});

test('a session is kept per tab, knows when it is stale, and refuses what is no token', () => {
  const clock = new FakeClock();
  const storage = fakeStorage();
  const token = (payload) => `h.${Buffer.from(JSON.stringify(payload)).toString('base64url')}.s`;
  const session = new Session({ storage, clock });
  assert.equal(session.isSignedIn, false);
  session.accept({ token: token({ sub: 'alice', name: 'Älice' }), sub: 'alice', expires_at: new Date(clock.now() + 60_000).toISOString() }, 'Älice');
  const again = new Session({ storage, clock });
  assert.deepEqual([again.sub, again.name, again.loginName, again.isStale], ['alice', 'Älice', 'Älice', false]);
  const pasted = new Session({ storage: fakeStorage(), clock });
  assert.equal(pasted.paste('not a token'), false);
  assert.equal(pasted.paste(token({ sub: 'bob', exp: clock.now() / 1000 })), true);
  assert.deepEqual([pasted.name, pasted.loginName, pasted.isStale], ['bob', null, true]);
  storage.setItem('conch.session', '{"token":1');
  assert.equal(new Session({ storage, clock }).isSignedIn, false);
  assert.equal(claims('x.y'), null);
  assert.deepEqual(tokenProtocols('ab'), ['phoenix', 'base64url.bearer.phx.YWI']);
});

test('the connection in one word', () => {
  const inbox = { isLoaded: true, isResuming: false };
  const cases = [
    [{ socket: { state: 'connecting' }, inbox, hasBeenLive: false }, 'starting'],
    [{ socket: { state: 'connecting' }, inbox, hasBeenLive: true }, 'reconnecting'],
    [{ socket: { state: 'waiting' }, inbox, hasBeenLive: true }, 'disconnected'],
    [{ socket: { state: 'closed' }, inbox, hasBeenLive: true }, 'signed_out'],
    [{ socket: { state: 'open' }, inbox: { ...inbox, isLoaded: false }, hasBeenLive: false }, 'starting'],
    [{ socket: { state: 'open' }, inbox: { ...inbox, isResuming: true }, hasBeenLive: true }, 'resuming'],
    [{ socket: { state: 'open' }, inbox, conversation: { hasBeenLive: true, status: 'catching_up' }, hasBeenLive: true }, 'resuming'],
    [{ socket: { state: 'open' }, inbox, conversation: { hasBeenLive: false, status: 'joining' }, hasBeenLive: true }, 'live'],
    [{ socket: { state: 'open' }, inbox, conversation: { hasBeenLive: true, status: 'refused' }, hasBeenLive: true }, 'live'],
  ];
  for (const [given, expected] of cases) assert.equal(connectionState(given), expected, JSON.stringify(given));
});

test('directives: only whole ones, only inside the budget', async () => {
  assert.equal(parseDirective(undefined), null);
  assert.equal(parseDirective({ budget_ms: 5 }), null);
  assert.deepEqual(parseDirective({ after_ms: 10, budget_ms: 5 }), { after_ms: 10, budget_ms: 10 });
  const clock = new FakeClock();
  let calls = 0;
  const call = async () => { calls += 1; throw new Refusal({ code: 'overloaded', retry: { after_ms: 100, budget_ms: 250 } }); };
  const result = obeyDirectives(call, { clock, random: never }).catch((error) => error.code);
  await clock.advance(10_000);
  assert.equal(await result, 'overloaded');
  assert.equal(calls, 3);
});

test('what was refused stays where it was refused; what is on its way comes last', () => {
  const records = [message(1, 'a'), message(4, 'b'), message(6, 'c')];
  const entry = (id, state, after) => ({ client_msg_id: id, body: { text: id }, created_at: 0, state, after });
  const entries = [entry('again', 'queued', null), entry('early', 'failed', 0), entry('old', 'failed', null), entry('mid', 'failed', 4), entry('late', 'failed', 6)];
  const items = flow({ records, turns: new Turns(), entries, me: 'alice', dayOf: () => 'd' });
  assert.deepEqual(items.map(({ key }) => key), ['day:d', 'c:early', 'm:1', 'm:4', 'c:mid', 'm:6', 'c:late', 'c:again', 'c:old']);
});

test('the preview drops marks of emphasis and code, and nothing else', () => {
  const cases = [
    ['what is 12 * 34?', 'what is 12 * 34?'],
    ['2*3*4 and a_b_c', '2*3*4 and a_b_c'],
    ['a * b, c * d', 'a * b, c * d'],
    ['a _ b _ c, __init', 'a _ b _ c, __init'],
    ['the **tide table**, *now* and _then_!', 'the tide table, now and then!'],
    ['**both *at* once**', 'both at once'],
    ['`a * b * c` and `*x*`', 'a * b * c and *x*'],
    ['see\n```sh\nls *\n```\nthere', 'see ls * there'],
    ['* a point\n* another', '* a point * another'],
    ['a lone ` and *', 'a lone ` and *'],
    ['', ''],
  ];
  for (const [text, expected] of cases) assert.equal(plainLine(text), expected, JSON.stringify(text));
  assert.equal(plainLine('x'.repeat(10_000)).length, 120);
});

test('too large is said in kilobytes, as far as the server gave numbers', () => {
  const words = (detail) => new Refusal({ code: 'too_large', detail }).detail;
  assert.equal(words('body: is 70013 bytes long; at most 65536 are allowed'), 'Too long: 69 KB of at most 64 KB.');
  assert.equal(words('body: is 65537 bytes long; at most 65536 are allowed'), 'Too long: 65 KB of at most 64 KB.');
  assert.equal(words('a request has at most 65536 bytes'), 'a request has at most 65536 bytes');
  assert.equal(words(undefined), 'That is too large to send.');
});

test('writing makes a member: once, and not again where that was refused', async () => {
  const summaries = new Map();
  const inbox = { isLoaded: false, get: (id) => summaries.get(id) ?? null };
  const answers = [];
  let asked = 0;
  const join = async () => {
    asked += 1;
    const answer = answers.shift();
    if (answer) throw answer;
  };
  const admission = new Admission({ id: 'c', inbox, join });
  assert.deepEqual([admission.isMember, admission.joinsByWriting], [null, false]);
  inbox.isLoaded = true;
  assert.deepEqual([admission.isMember, admission.joinsByWriting], [false, true]);
  answers.push(new Refusal({ code: 'disconnected' }), new Refusal({ code: 'overloaded', retry: { after_ms: 1 } }), new Refusal({ code: 'forbidden' }));
  for (let count = 0; count < 3; count += 1) await admission.beforeSending();
  assert.equal(asked, 3);
  assert.deepEqual([admission.joinsByWriting, admission.beforeSending()], [false, null]);
  const other = new Admission({ id: 'c', inbox, join });
  await other.beforeSending();
  summaries.set('c', {});
  assert.deepEqual([other.isMember, other.joinsByWriting, other.beforeSending(), asked], [true, false, null, 4]);
});

test('creating says whether there was one already', async () => {
  const statuses = [201, 200];
  const api = new Api({ fetch: async () => new Response('{"id":"c"}', { status: statuses.shift() }), token: () => 't', clock: new FakeClock() });
  assert.deepEqual(await api.create('c', { kind: 'channel' }), { conversation: { id: 'c' }, isNew: true });
  assert.deepEqual(await api.create('c', { kind: 'channel' }), { conversation: { id: 'c' }, isNew: false });
});
