/**
 * The Vercel AI SDK's own chats, versions 5, 6 and 7, against real nodes: they start, stream, are loaded again in mid-answer, ask for
 * another answer, and show what is stored, also when the node that answers is killed; and the page of docs/AI-SDK.md in Chromium.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import path from 'node:path';
import { after, afterEach, before, describe, test } from 'node:test';
import { build } from 'esbuild';
import { launch, shoot } from '../harness/browser.js';
import { Chat, VERSIONS } from '../harness/chat.js';
import { Cluster } from '../harness/cluster.js';
import { repository, Server } from '../harness/server.js';
import { until } from '../harness/until.js';

const PACE = 'agents.demo.pace_ms=50';
const versions = Object.keys(VERSIONS);
const chats = [];
const open = async (...where) => {
  const chat = await Chat.open(...where);
  chats.push(chat);
  return chat;
};
afterEach(async () => { for (const chat of chats.splice(0)) await chat.close(); });

const kept = (server, token, id) => server.must(token, 'GET', `/ai/chat/${id}/messages`);

/** What the chat shows is what the server has, each message once, and the last one ends with the stored answer. */
const agrees = async (chat, server, token, id) => {
  const messages = await kept(server, token, id);
  // What a person says has no metadata in their own page.
  const told = (all) => all.map((message) => (message.role === 'user' ? { ...message, metadata: null } : message));
  assert.deepEqual(told(chat.shown.messages), told(messages));
  assert.equal(new Set(messages.map(({ id: name }) => name)).size, messages.length);
  const answer = (await server.history(token, id)).findLast(({ kind }) => kind === 'message');
  assert.equal(answer.sender, '@agent:demo');
  assert.equal(messages.at(-1).parts.findLast(({ type }) => type === 'text').text, answer.body.text);
  assert.equal(messages.at(-1).metadata.state, 'completed');
  return messages;
};

const count = async (server, token, id, wanted) => (await server.history(token, id)).filter(({ kind }) => kind === wanted).length;

describe('a chat of the AI SDK', { timeout: 420_000 }, () => {
  describe('on one node', () => {
    let server;
    let token;
    before(async () => {
      server = await Server.start({ more: ['--set', PACE] });
      token = await server.token('alice');
    });
    after(async () => { await server?.stop(); });

    for (const version of versions) {
      test(`version ${version} starts, is loaded again in mid-answer, and asks for another answer`, async () => {
        const id = `chat-${version}`;
        const first = await open(version, server.url, token, id);
        assert.deepEqual(first.shown.messages, [], 'a new page is empty');
        first.say('What is 2 + 2?');
        await first.saying('I am the demo agent');
        assert.equal(first.shown.status, 'streaming');
        await first.close();

        const second = await open(version, server.url, token, id);
        assert.deepEqual(second.shown.messages.map(({ role }) => role), ['user', 'assistant']);
        second.resume();
        await second.saying('2 + 2 is 4');
        await second.is('ready');
        const [, answer] = await agrees(second, server, token, id);
        assert.deepEqual(answer.parts.map(({ type }) => type), ['step-start', 'text', 'dynamic-tool', 'step-start', 'text']);
        assert.equal(answer.parts[2].state, 'output-available');
        assert.equal(await count(server, token, id, 'turn.started'), 1);

        second.say('What is 3 + 3?');
        await second.saying('3 + 3 is 6');
        await second.is('ready');
        const messages = await agrees(second, server, token, id);
        assert.equal(messages.length, 4);

        second.again();
        await second.saying('I am the demo agent');
        await second.saying('3 + 3 is 6');
        await second.is('ready');
        const others = await agrees(second, server, token, id);
        assert.deepEqual(others.slice(0, 3), messages.slice(0, 3));
        assert.equal(others.length, 4);
        assert.notEqual(others[3].id, messages[3].id, 'another answer in its place');
        assert.deepEqual([...first.errors, ...second.errors], []);
      });
    }

    test('stop() only stops watching: the turn goes on', async () => {
      const chat = await open(7, server.url, token, 'stopped');
      chat.say('What is 5 + 5?');
      await chat.saying('I am the demo agent');
      chat.tell({ do: 'stop' });
      await chat.is('ready');
      assert.ok(!chat.text.includes('5 + 5 is 10'));
      await until(() => count(server, token, 'stopped', 'turn.completed'), 'the turn to end');
      const messages = await kept(server, token, 'stopped');
      assert.match(messages[1].parts.at(-1).text, /5 \+ 5 is 10/);
    });
  });

  describe('on two nodes', () => {
    let cluster;
    let token;
    let a;
    let b;
    before(async () => {
      cluster = await Cluster.start(['a', 'b'], [PACE]);
      [a, b] = cluster.nodes;
      token = await a.token('alice');
      await cluster.seen(a, token, 2);
    });
    after(async () => { await cluster?.stop(); });

    /** A session that b owns. */
    const ownedByB = async (id) => {
      await b.must(token, 'PUT', `/v1/conversations/${id}`, { kind: 'session', agent: 'demo' });
      await b.say(token, id, 'Good morning');
      assert.equal(await cluster.owner(b, token, id), 'b');
      await until(() => count(b, token, id, 'turn.completed'), 'the first turn to end', 60_000);
    };

    test('the node that answers is killed: all three versions see the answer to its end, and no error', async () => {
      const ids = Object.fromEntries(versions.map((version) => [version, `taken-${version}`]));
      await Promise.all(Object.values(ids).map(ownedByB));
      const watching = [];
      for (const version of versions) watching.push([await open(version, a.url, token, ids[version]), ids[version]]);
      for (const [chat] of watching) chat.say('What is 2 + 2?');
      for (const [chat] of watching) await chat.saying('There is no language model');
      await b.kill();
      for (const [chat, id] of watching) {
        await chat.saying('2 + 2 is 4');
        await chat.is('ready');
        assert.deepEqual(chat.errors, []);
        await agrees(chat, a, token, id);
        const log = await a.history(token, id);
        const began = log.findLast(({ kind }) => kind === 'turn.started');
        assert.ok(log.at(-1).epoch > began.epoch, 'another node took over in mid-answer');
        assert.equal(log.filter(({ kind }) => kind === 'turn.started').length, 2);
      }
      await b.run();
      await cluster.seen(a, token, 2);
    });

    test('the node that a chat is connected to is killed: the page that comes back by another one has it all', async () => {
      await ownedByB('moved');
      const chat = await open(7, b.url, token, 'moved');
      chat.say('What is 4 + 4?');
      await chat.saying('There is no language model');
      await b.kill();
      await chat.is('error');
      const other = await open(7, a.url, token, 'moved');
      other.resume();
      await other.saying('4 + 4 is 8');
      await other.is('ready');
      assert.deepEqual(other.errors, []);
      await agrees(other, a, token, 'moved');
    });
  });

  describe('in Chromium', () => {
    let browser;
    let server;
    let pages;
    let token;
    let origin;
    const bundles = {};

    before(async () => {
      pages = createServer((request, response) => {
        const version = new URL(request.url, 'http://page').searchParams.get('version');
        if (request.url.startsWith('/page.js')) return response.setHeader('content-type', 'text/javascript').end(bundles[version]);
        return response.setHeader('content-type', 'text/html; charset=utf-8')
          .end(`<!doctype html><title>Chat</title><div id="chat"></div><script type="module" src="/page.js?version=${version}"></script>`);
      }).listen(0, '127.0.0.1');
      await once(pages, 'listening');
      origin = `http://127.0.0.1:${pages.address().port}`;
      server = await Server.start({ more: ['--set', PACE, '--set', `auth.allowed_origins=${origin}`] });
      token = await server.token('alice');
      const text = await readFile(path.join(repository, 'docs/AI-SDK.md'), 'utf8');
      const [, example] = text.match(/<!-- test: chat -->\n```jsx\n([\s\S]*?)\n```/);
      const of5 = path.join(repository, 'tests/clients/node_modules/@ai-sdk/react-5');
      for (const [version, alias] of [['7', {}], ['5', { '@ai-sdk/react': of5, ai: path.join(of5, 'node_modules/ai') }]]) {
        const contents = `${example}
          import { createRoot } from 'react-dom/client';
          createRoot(document.getElementById('chat')).render(
            <Chat server=${JSON.stringify(server.url)} token=${JSON.stringify(token)} id="page-${version}" agent="demo" />);`;
        const { outputFiles } = await build({
          stdin: { contents, loader: 'jsx', resolveDir: path.join(repository, 'tests/clients') },
          bundle: true, write: false, format: 'esm', jsx: 'automatic', alias, define: { 'process.env.NODE_ENV': '"production"' }, logLevel: 'silent',
        });
        bundles[version] = outputFiles[0].text;
      }
      browser = await launch();
    });
    after(async () => {
      await browser?.close();
      await server?.stop();
      pages?.close();
    });

    for (const version of ['7', '5']) {
      test(`the documented page, version ${version}: sends, is loaded again, lives through the server's death, asks again`, async () => {
        const id = `page-${version}`;
        const page = await browser.newPage();
        const faults = [];
        page.on('pageerror', (error) => faults.push(error.stack ?? String(error)));
        await page.goto(`${origin}/?version=${version}`);
        const answers = page.locator('[data-role="assistant"]');
        const saying = (text) => answers.last().getByText(text).first().waitFor({ timeout: 60_000 });
        const say = async (text) => {
          await page.getByLabel('Message').fill(text);
          await page.getByRole('button', { name: 'Send' }).click();
        };
        const ready = () => page.locator('button:enabled', { hasText: 'Send' }).waitFor({ timeout: 60_000 });
        const stored = async () => {
          const log = await server.history(token, id);
          const { body } = log.findLast(({ kind }) => kind === 'message');
          await until(async () => (await answers.last().locator('span').last().innerText()).trim() === body.text.trim(), 'the stored answer to be shown');
          return log;
        };
        await say('What is 2 + 2?');
        await saying('I am the demo agent');
        await page.reload();
        await saying('2 + 2 is 4');
        await ready();
        await stored();
        assert.equal(await answers.count(), 1, 'the answer once');
        assert.equal(await answers.locator('span').count(), 2, 'each text once');

        await say('What is 3 + 3?');
        await answers.nth(1).getByText('I am the demo agent').first().waitFor({ timeout: 60_000 });
        await server.kill();
        await server.run();
        await saying('3 + 3 is 6');
        await ready();
        const log = await stored();
        assert.equal(log.filter(({ kind }) => kind === 'turn.started').length, 2, 'one turn each');
        assert.deepEqual([await answers.count(), await answers.locator('span').count()], [2, 4]);

        await page.getByRole('button', { name: 'Another answer' }).click();
        await until(async () => (await server.history(token, id)).filter(({ kind }) => kind === 'turn.completed').length === 3, 'another answer', 60_000);
        await ready();
        await stored();
        assert.deepEqual([await answers.count(), await answers.locator('span').count()], [2, 4], 'in its place');
        await shoot(page, `ai-sdk-${version}`);
        assert.deepEqual(faults, [], 'errors in the page');
        await page.close();
      });
    }
  });
});
