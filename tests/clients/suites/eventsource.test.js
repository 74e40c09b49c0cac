/**
 * A browser's own EventSource against a real server: it resumes by Last-Event-ID through a kill, nothing lost or doubled.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { launch } from '../harness/browser.js';
import { Server } from '../harness/server.js';
import { until } from '../harness/until.js';

describe('EventSource in Chromium', { timeout: 240_000 }, () => {
  let server;
  let browser;
  let page;
  let alice;
  let bob;

  before(async () => {
    server = await Server.start();
    browser = await launch();
    page = await browser.newPage();
    await page.goto(`${server.url}/index.html`);
    alice = await server.token('alice');
    bob = await server.token('bob');
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });

  /** Opens a stream in the page; `read()` returns what it has received so far. */
  const listen = async (route) => {
    const name = await page.evaluate((url) => {
      const name = `stream${Object.keys(window).filter((key) => key.startsWith('stream')).length}`;
      const source = new EventSource(url);
      const seen = { opened: 0, events: [], source };
      const kinds = ['message', 'event', 'caught_up', 'resync', 'conversation', 'membership', 'turn.started', 'step.completed', 'turn.completed',
        'delta', 'turn.snapshot', 'reconnect', 'typing', 'presence_state', 'presence_diff'];
      for (const kind of kinds) {
        source.addEventListener(kind, (event) => seen.events.push({ kind, id: event.lastEventId, data: JSON.parse(event.data) }));
      }
      source.onopen = () => { seen.opened += 1; };
      window[name] = seen;
      return name;
    }, route);
    return {
      read: () => page.evaluate((key) => ({ opened: window[key].opened, events: window[key].events, state: window[key].source.readyState }), name),
      close: () => page.evaluate((key) => window[key].source.close(), name),
    };
  };

  test('resumes by Last-Event-ID across a kill and a restart', async () => {
    await server.channel(alice, 'sse');
    // `after=0` stays in the address: had the browser's Last-Event-ID not won over it, all would come twice.
    const stream = await listen(`/v1/conversations/sse/stream?after=0&access_token=${bob}`);
    const texts = async () => (await stream.read()).events.filter(({ kind }) => kind === 'message').map(({ data }) => data.body.text);
    const expected = [];
    for (let round = 0; round < 3; round += 1) {
      for (let count = 0; count < 5; count += 1) {
        await server.say(alice, 'sse', `${round}.${count}`);
        expected.push(`${round}.${count}`);
      }
      await until(async () => (await texts()).length === expected.length, `round ${round} to arrive`);
      await server.kill();
      await server.run();
      // Written before the browser is back: only a resumption can bring it.
      await server.say(alice, 'sse', `${round}.away`);
      expected.push(`${round}.away`);
      await until(async () => (await texts()).length >= expected.length, 'the browser to resume', 30_000);
    }
    assert.deepEqual(await texts(), expected);
    const { events, opened } = await stream.read();
    assert.equal(opened, 4);
    const { log } = await server.must(bob, 'GET', '/v1/conversations/sse/messages');
    const history = await server.history(bob, 'sse');
    const records = events.filter(({ kind }) => kind === 'message');
    assert.deepEqual(records.map(({ data }) => data), history);
    assert.deepEqual(records.map(({ id }) => id), history.map(({ seq }) => `${log}:${seq}`));
    assert.equal(events.some(({ kind }) => kind === 'resync'), false);
    await stream.close();
  });

  test('live events carry no id, so the position stays a durable one', async () => {
    await server.must(alice, 'PUT', '/v1/conversations/sse-session', { kind: 'session', agent: 'demo' });
    const stream = await listen(`/v1/conversations/sse-session/stream?after=0&access_token=${alice}`);
    await server.say(alice, 'sse-session', 'Hello');
    await until(async () => (await stream.read()).events.some(({ kind }) => kind === 'turn.completed'), 'the turn', 60_000);
    const { events } = await stream.read();
    let position = '';
    for (const { kind, id, data } of events) {
      if (data.seq !== undefined && id !== position) position = id;
      assert.equal(id, position, `${kind} moved the position`);
    }
    assert.ok(events.some(({ kind }) => kind === 'delta'));
    await stream.close();
  });

  test('the personal stream: my conversations, caught_up, then changes', async () => {
    await server.channel(alice, 'sse-mine', { members: ['bob'] });
    const stream = await listen(`/v1/stream?access_token=${bob}`);
    const of = async (wanted) => (await stream.read()).events.filter(({ kind }) => kind === wanted);
    await until(async () => (await of('caught_up')).length === 1, 'caught_up');
    const ids = (await of('conversation')).map(({ data }) => data.id);
    assert.ok(ids.includes('sse-mine'), ids.join());
    await server.say(alice, 'sse-mine', 'psst');
    await until(async () => (await of('conversation')).some(({ data }) => data.id === 'sse-mine' && data.unread === 1 && data.last_message.body.text === 'psst'), 'the change');
    await stream.close();
  });

  test('what cannot work ends at once, with the status that says why', async () => {
    const statuses = await page.evaluate(async (token) => {
      const urls = ['/v1/conversations/sse/stream?access_token=bad', `/v1/conversations/nowhere/stream?access_token=${token}`];
      return Promise.all(urls.map(async (url) => (await fetch(url, { headers: { accept: 'text/event-stream' } })).status));
    }, alice);
    assert.deepEqual(statuses, [401, 404]);
  });
});
