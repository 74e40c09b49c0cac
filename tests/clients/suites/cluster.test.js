/**
 * Several real nodes on one PostgreSQL: the console's page of the cluster while one is killed and one drains, and the client package
 * when the node that it is connected to, or the owner of its conversation, is killed.
 */
import assert from 'node:assert/strict';
import { after, before, beforeEach, describe, test } from 'node:test';
import WebSocket from 'ws';
import { launch, shoot } from '../harness/browser.js';
import { Cluster } from '../harness/cluster.js';
import { Person } from '../harness/console.js';
import { install } from '../harness/package.js';
import { until } from '../harness/until.js';

const WIDE = { width: 1440, height: 900 };
const NARROW = { width: 390, height: 844 };

describe('a cluster', { timeout: 420_000 }, () => {
  let cluster;
  let token;
  const node = (name) => cluster.nodes['abc'.indexOf(name)];

  before(async () => {
    cluster = await Cluster.start(['a', 'b', 'c']);
    token = await node('a').token('alice', { name: 'Alice' });
  });
  after(async () => { await cluster?.stop(); });
  beforeEach(() => complete());

  /** All three run, and know each other. */
  const complete = async () => {
    for (const one of cluster.nodes) if (!one.isRunning) await one.run();
    for (const one of cluster.nodes) await cluster.seen(one, token, 3);
  };

  /** A conversation that this node owns. */
  const ownedBy = async (name, id) => {
    await node(name).channel(token, id);
    await node(name).say(token, id, 'first');
    assert.equal(await cluster.owner(node(name), token, id), name);
  };

  describe('in the client package', () => {
    let installed;
    let Conch;
    const opened = [];

    before(async () => {
      installed = await install('phoenix', ['ws']);
      ({ Conch } = await installed.load());
    });
    after(async () => {
      for (const conch of opened) conch.close();
      await installed?.remove();
    });

    /** A room as somebody sees it who is connected to the first of these nodes. */
    const enter = async (sub, names, id) => {
      const mine = await node('a').token(sub);
      const seen = { records: [], pages: [], frames: [], connections: [] };
      class Observed extends WebSocket {
        constructor(url, ...more) {
          super(url, ...more);
          seen.connections.push(new URL(url).port);
        }

        send(frame) {
          const [, , , event, payload] = JSON.parse(frame);
          if (event === 'message') seen.frames.push(payload);
          super.send(frame);
        }
      }
      const conch = new Conch({ url: names.map((name) => node(name).url), token: () => mine, WebSocket: Observed });
      opened.push(conch);
      seen.room = conch.conversation(id);
      seen.room.onResync((page) => {
        seen.pages.push(page.cause);
        seen.records = [...page.messages];
      });
      seen.room.onRecord((record) => seen.records.push(record));
      await until(() => seen.room.state === 'live', `${id} to be live`, 30_000);
      return seen;
    };

    for (const [what, owner, connected, watched] of [
      ['that it is connected to, which owns the conversation', 'b', 'bac', 'c'],
      ['that it is connected to, while another one owns the conversation', 'a', 'bca', 'c'],
      ['that owns the conversation, while it is connected to another one', 'b', 'ac', 'a'],
    ]) {
      test(`sends while the node is killed ${what}: each once, in order, no error`, async () => {
        const id = `killed-${connected}-${owner}`;
        await ownedBy(owner, id);
        const mine = await enter('sender', [...connected], id);
        const theirs = await enter('watcher', [watched], id);
        const texts = Array.from({ length: 60 }, (_, index) => `${id} ${index}`);
        const sent = [];
        const say = (from, to) => { for (const text of texts.slice(from, to)) sent.push(mine.room.send({ text })); };
        say(0, 20);
        await Promise.all(sent);
        // What is sent now reaches a node that does nothing more with it.
        await node('b').freeze();
        say(20, 60);
        await until(() => mine.frames.length > 20, 'a message to be on its way');
        await node('b').kill();
        const receipts = await Promise.all(sent);
        assert.ok(receipts.every(({ seq }, index) => index === 0 || seq > receipts[index - 1].seq), 'in order');
        assert.deepEqual((await node('c').texts(token, id)).slice(1), texts, 'nothing is lost or doubled');
        const history = await node('c').history(token, id);
        await until(() => theirs.records.length === history.length && mine.records.length === history.length, 'everything to be seen');
        for (const { records, pages } of [mine, theirs]) {
          assert.deepEqual(records, history);
          assert.deepEqual(pages, ['start'], 'it resumed, and did not start over');
        }
        const keys = new Map(mine.frames.map(({ client_msg_id: key, body }) => [key, body.text]));
        assert.deepEqual([...keys.values()], texts, 'one key for each message, however often it was sent');
        const lost = connected[0] === 'b';
        assert.equal(new Set(mine.connections).size, lost ? 2 : 1, 'the next address was tried when the first was gone');
        if (lost) assert.ok(mine.frames.length > texts.length, 'something was sent again');
        if (owner === 'b') assert.ok(history.at(-1).epoch > history[0].epoch, 'another node took over');
      });
    }
  });

  describe('in the console', () => {
    let browser;
    let person;
    before(async () => { browser = await launch(); });
    after(async () => { await browser?.close(); });

    const row = (name) => person.page.getByRole('table', { name: 'Nodes' }).getByRole('row').filter({ has: person.page.locator('strong', { hasText: new RegExp(`^${name}$`) }) });
    const cell = (name, label) => row(name).locator(`[data-label="${label}"]`);
    const owned = () => person.page.getByRole('table', { name: 'Owned conversations' }).locator('tbody tr').evaluateAll(
      (rows) => rows.map((one) => [...one.cells].slice(0, 3).map(({ textContent }) => textContent)).sort(),
    );
    const happens = (text) => person.page.getByRole('list', { name: 'What happened' }).getByText(text).first().waitFor({ timeout: 15_000 });
    const find = (part) => person.page.getByLabel('Part of an id').fill(part);

    test('a turn goes on in the same tab when the node that it runs on, and that the tab talks to, is killed in a tool call', async () => {
      const context = await browser.newContext({ viewport: WIDE, locale: 'en-GB' });
      const tab = await Person.enterWith(context, node('a'), 'alice', token);
      const { page } = tab;
      await tab.create('Agent', 'Outlives its node');
      const id = decodeURIComponent(page.url().split('#/c/')[1]);
      await tab.say('When can I walk the shore?');
      await page.locator('.step[data-kind=tool] .tool-state[data-state=running]').waitFor({ timeout: 30_000 });
      assert.equal(await cluster.owner(node('b'), token, id), 'a');
      await page.locator('.turn-runner', { hasText: 'on a · epoch 1' }).waitFor();
      await node('a').kill();
      await page.locator('.step-takeover', { hasText: /^Went on at [bc] · epoch 2$/ }).waitFor({ timeout: 30_000 });
      await shoot(page, 'session-takeover');
      await page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
      await shoot(page, 'session-outlived');
      const log = await node('b').history(token, id);
      const steps = log.filter(({ kind }) => kind === 'step.completed').map(({ body }) => body.step);
      assert.equal(new Set(steps).size, steps.length, 'each step once');
      assert.equal(log.filter(({ kind }) => kind === 'turn.completed').length, 1);
      assert.equal(await page.locator('.step[data-kind=tool]').count(), steps.filter((step) => step.includes('.t')).length);
      const answer = log.find(({ sender, kind }) => kind === 'message' && sender.startsWith('@agent:'));
      assert.equal((await page.locator('.turn .answer').innerText()).replaceAll(/\s+/g, ' ').trim(), answer.body.text.replaceAll(/[*`]/g, '').replaceAll(/\s+/g, ' ').trim());
      assert.deepEqual(tab.faults, [], 'errors in the page');
      await context.close();
      await complete();
    });

    test('the page shows all nodes, and what happens to them as it happens, whichever node is asked', async () => {
      for (const [name, ids] of Object.entries({ a: ['sand-1'], b: ['tide-1', 'tide-2', 'tide-3'], c: ['rock-1', 'rock-2'] })) {
        for (const id of ids) await ownedBy(name, id);
      }
      const context = await browser.newContext({ viewport: WIDE, locale: 'en-GB' });
      person = await Person.enterWith(context, node('a'), 'alice', token, '/#/nodes');
      const { page } = person;
      await page.getByText(/^As a sees it, read \d\.\d s ago\.$/).waitFor();
      for (const [name, link] of [['a', 'this one'], ['b', 'up'], ['c', 'up']]) {
        await until(async () => (await cell(name, 'Link').innerText()) === link, `the link to ${name}`);
        assert.equal(await cell(name, 'State').innerText(), 'alive');
        assert.match(await cell(name, 'Lease').innerText(), /^renewed \d\.\d s ago$/);
      }
      await find('tide');
      await until(async () => (await owned()).length === 3, 'what is looked for');
      assert.deepEqual(await owned(), ['tide-1', 'tide-2', 'tide-3'].map((id) => [id, 'b', '1']));
      assert.ok(Number(await cell('b', 'Owns').innerText()) >= 3);
      await find('');
      await happens('b claimed tide-1 in epoch 1');
      await happens('c claimed rock-1 in epoch 1');
      await shoot(page, 'nodes-light');

      // A person sends all the while; the owner dies.
      await node('b').kill();
      await node('c').say(token, 'tide-1', 'is anybody there?');
      await happens(/^[ac] declared b dead: its process is gone$/);
      await happens(/^[ac] took over tide-1 in epoch 2: its owner is dead$/);
      await happens('b is gone');
      await row('b').waitFor({ state: 'detached' });
      const taker = await cluster.owner(node('a'), token, 'tide-1');
      await find('tide');
      await until(async () => JSON.stringify(await owned()) === JSON.stringify([['tide-1', taker, '2']]), 'the new owner');
      await page.getByRole('button', { name: 'Takeovers' }).click();
      await happens('took over tide-1');
      assert.equal(await page.getByText('claimed rock-1').count(), 0, 'what is no takeover is left out');
      await page.emulateMedia({ colorScheme: 'dark' });
      await shoot(page, 'nodes-dark');
      await page.getByRole('button', { name: 'All' }).click();

      // A turn keeps the node that is to go for a while.
      await node('c').must(token, 'PUT', '/v1/conversations/turning', { kind: 'session', agent: 'demo' });
      await node('c').say(token, 'turning', 'Tell me about tides.');
      await row('c').getByRole('button', { name: 'Drain' }).click();
      await row('c').getByRole('button', { name: 'Really drain c?' }).click();
      await happens('c drains');
      await happens('c handed rock-1 to a in epoch 2');
      await happens('c is gone');
      await row('c').waitFor({ state: 'detached' });
      await until(() => !node('c').isRunning, 'its process to end');
      await find('rock');
      await until(async () => JSON.stringify(await owned()) === JSON.stringify(['rock-1', 'rock-2'].map((id) => [id, 'a', '2'])), 'what it owned to be here');
      await page.setViewportSize(NARROW);
      await shoot(page, 'nodes-narrow');
      assert.ok(await page.evaluate(() => document.querySelector('.nodes').scrollWidth <= window.innerWidth), 'nothing is wider than the screen');
      assert.deepEqual(person.faults, [], 'errors in the page');
      await context.close();
    });
  });
});
