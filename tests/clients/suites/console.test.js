/**
 * The console in real Chromium against a real server: two tabs are two people, and the server may die under them.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { launch, shoot } from '../harness/browser.js';
import { Person } from '../harness/console.js';
import { Server } from '../harness/server.js';
import { until } from '../harness/until.js';

const DESKTOP = { width: 1180, height: 760 };

describe('the console', { timeout: 420_000 }, () => {
  let server;
  let browser;
  let context;
  const people = [];
  const enter = async (name, route) => {
    const person = await Person.enter(context, server, name, route);
    people.push(person);
    return person;
  };

  before(async () => {
    server = await Server.start();
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });
  beforeEach(async () => { context = await browser.newContext({ viewport: DESKTOP, locale: 'en-GB' }); });
  afterEach(async (run) => {
    if (run.passed === false) {
      for (const { name, page } of people) await shoot(page, `failed-${run.name.slice(0, 40).replaceAll(/\W+/g, '-')}-${name}`).catch(() => {});
    }
    const faults = people.flatMap((person) => person.faults);
    people.length = 0;
    await context.close();
    assert.deepEqual(faults, [], 'errors in the page');
  });

  test('two tabs are two people and chat; presence, typing and unread counts are live', async () => {
    const alice = await enter('alice');
    const bob = await enter('bob');
    await shoot(alice.page, 'welcome');
    await alice.create('Channel', 'Tide pool');
    await alice.invite('bob');
    await bob.open('Tide pool');

    await alice.say('Good morning! Did anyone look at the **tide table**?');
    await bob.sees('Good morning! Did anyone look at the tide table?');
    await bob.say('Low water is at 11:20.');
    await alice.sees('Low water is at 11:20.');
    assert.deepEqual(await alice.messages(), await bob.messages());
    assert.equal(await alice.page.locator('.message.is-own').count(), 1);
    await alice.page.getByText('Today').first().waitFor();

    await alice.page.getByText('bob is here').waitFor();
    await bob.page.getByText('alice is here').waitFor();
    await bob.page.locator('#composer-field').pressSequentially('I am wr');
    await alice.page.getByText('bob is typing').waitFor();
    await shoot(alice.page, 'chat-light');
    await bob.page.locator('#composer-field').fill('');

    await alice.page.getByRole('link', { name: 'Conch' }).click();
    for (const text of ['one', 'two', 'three']) await bob.say(text);
    await until(async () => (await alice.unread('Tide pool')) === 3, 'three unread');
    assert.match(await alice.page.title(), /^\(3\)/);
    await alice.entry('Tide pool').getByText('bob: three').waitFor();
    await alice.open('Tide pool');
    await alice.page.getByText('New', { exact: true }).waitFor();
    await until(async () => (await alice.unread('Tide pool')) === 0, 'nothing unread');
    await alice.page.emulateMedia({ colorScheme: 'dark' });
    await shoot(alice.page, 'chat-dark');
    // Read is read: also for the server, and so after a reload somewhere else.
    await alice.page.getByRole('link', { name: 'Conch' }).click();
    await alice.page.reload();
    await alice.connection('live');
    await alice.entry('Tide pool').waitFor();
    assert.equal(await alice.unread('Tide pool'), 0);

    await bob.page.close();
    await alice.open('Tide pool');
    await alice.page.getByText('Only you are here').waitFor();
  });

  test('a reload loses nothing: not who I am, where I am, what was said, nor what I was writing', async () => {
    const alice = await enter('alice');
    await alice.create('Channel', 'Reload');
    for (let count = 0; count < 5; count += 1) await alice.say(`line ${count}`);
    await until(async () => (await server.texts(await server.token('alice'), 'reload')).length === 5, 'five messages to be stored');
    await alice.page.locator('#composer-field').fill('half a thou');
    const before = await alice.messages();
    await alice.page.reload();
    await alice.settled();
    await until(async () => (await alice.messages()).length === 5, 'the messages to be back');
    assert.deepEqual(await alice.messages(), before);
    assert.equal(await alice.page.locator('#composer-field').inputValue(), 'half a thou');
    await alice.page.locator('.me').getByText('alice').waitFor();
  });

  test('scrolling up loads history, page by page, and what is read stays where it is', async () => {
    const token = await server.token('alice');
    await server.channel(token, 'deep', { title: 'Deep water' });
    for (let count = 0; count < 170; count += 1) await server.say(token, 'deep', `fathom ${count}`);
    const bob = await enter('bob', '/#/c/deep');
    await bob.settled();
    await bob.sees('fathom 169');
    assert.equal((await bob.messages()).includes('fathom 60'), false);
    const stream = bob.page.locator('.stream');
    const first = async () => (await bob.messages())[0];
    for (let rounds = 0; rounds < 10 && (await first()) !== 'fathom 0'; rounds += 1) {
      const before = await first();
      await stream.hover();
      // Where the first message is, before and after the page above it arrives.
      await stream.evaluate((element) => { element.scrollTop = 350; });
      await until(async () => (await first()) !== before, 'an older page');
    }
    assert.deepEqual(await bob.messages(), Array.from({ length: 170 }, (_, count) => `fathom ${count}`));
    await stream.evaluate((element) => { element.scrollTop = 600; });
    const place = () => bob.page.getByText('fathom 20', { exact: true }).boundingBox();
    const before = await place();
    await server.say(token, 'deep', 'splash');
    await bob.page.getByRole('button', { name: '1 new' }).waitFor();
    assert.deepEqual(await place(), before);
    await shoot(bob.page, 'history');
    await bob.page.getByRole('button', { name: '1 new' }).click();
    await bob.page.getByText('splash', { exact: true }).waitFor();
    assert.equal(await bob.page.locator('.jump').isVisible(), false);
  });

  test('a link opens a conversation one is not in; joining puts it into the list', async () => {
    await server.channel(await server.token('alice'), 'open-door', { title: 'Open door' });
    const carol = await enter('carol', '/#/c/open-door');
    await carol.settled();
    await carol.page.getByRole('heading', { level: 1, name: 'Open door' }).waitFor();
    await carol.page.getByRole('button', { name: 'Join' }).click();
    await carol.entry('Open door').waitFor();
    assert.equal(await carol.page.getByRole('button', { name: 'Join' }).isVisible(), false);
  });

  test('whoever writes from outside joins by writing', async () => {
    await server.channel(await server.token('alice'), 'threshold', { title: 'Threshold' });
    const carol = await enter('carol', '/#/c/threshold');
    await carol.settled();
    await carol.page.getByText('You are looking in from outside.').waitFor();
    await carol.page.getByPlaceholder('Write a message to join').waitFor();
    await carol.say('May I?');
    await carol.entry('Threshold').waitFor();
    await carol.page.getByText('You are looking in from outside.').waitFor({ state: 'hidden' });
    await carol.page.getByPlaceholder('Write a message', { exact: true }).waitFor();
    await until(async () => (await server.texts(await server.token('alice'), 'threshold')).join() === 'May I?', 'it to be stored once');
  });

  test('a link to nothing says so in one sentence, and offers to go back or to create it', async () => {
    const carol = await enter('carol', '/#/c/nowhere');
    await carol.page.getByText('There is no conversation here.').waitFor();
    assert.equal(await carol.page.getByRole('button', { name: 'People and invitations' }).isVisible(), false);
    await shoot(carol.page, 'nowhere');
    await carol.page.getByRole('link', { name: 'Back', exact: true }).click();
    await carol.page.getByText('Hello, carol').waitFor();
    await carol.page.goto(`${server.url}/#/c/nowhere`);
    await carol.page.getByRole('button', { name: 'Create it' }).click();
    await carol.settled();
    await carol.entry('nowhere').waitFor();
    await carol.say('somewhere now');
    await carol.sees('somewhere now');
  });

  test('a channel whose name is taken is not opened unasked', async () => {
    await server.channel(await server.token('alice'), 'taken', { title: 'Taken' });
    const carol = await enter('carol');
    await carol.page.getByRole('button', { name: 'New conversation' }).first().click();
    const dialog = carol.page.getByRole('dialog');
    await dialog.getByRole('textbox').fill('Taken');
    await dialog.getByRole('button', { name: 'Create channel' }).click();
    await dialog.getByText('A channel with this name exists already.').waitFor();
    assert.equal(await carol.page.getByRole('heading', { level: 1, name: 'Taken' }).count(), 0);
    await dialog.getByRole('button', { name: 'Open it' }).click();
    await dialog.waitFor({ state: 'detached' });
    await carol.page.getByRole('heading', { level: 1, name: 'Taken' }).waitFor();
  });

  test('a direct conversation is the same for both and named after the other', async () => {
    const alice = await enter('alice');
    await alice.create('Direct', 'dave');
    await alice.page.getByRole('heading', { level: 1, name: 'dave' }).waitFor();
    await alice.say('Just us');
    const dave = await enter('dave');
    await dave.open('alice');
    await dave.sees('Just us');
    await dave.create('Direct', 'alice');
    assert.equal(dave.page.url(), alice.page.url());
  });

  test('a demo session streams: thinking, words, a tool call, the answer; a reload shows the same', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'Ask me');
    await alice.page.evaluate(() => {
      window.lengths = [];
      new MutationObserver(() => window.lengths.push(document.querySelector('.turn .answer')?.textContent.length ?? 0))
        .observe(document.querySelector('.stream'), { childList: true, subtree: true, characterData: true });
    });
    await alice.say('When can I walk the shore?');
    await alice.page.locator('.answer.is-streaming').waitFor();
    await alice.page.locator('.step[data-kind=tool]').waitFor({ timeout: 30_000 });
    await until(async () => (await alice.page.locator('.answer.is-streaming').innerText().catch(() => '')).length > 20, 'the answer to stream');
    await shoot(alice.page, 'session-streaming');
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    const growth = new Set(await alice.page.evaluate(() => window.lengths));
    assert.ok(growth.size > 5, `it grew in ${growth.size} steps`);
    const shown = () => alice.page.locator('.turn').innerText();
    const whole = await alice.page.locator('.turn .answer').innerText();
    await alice.page.locator('.step summary').first().click();
    await alice.page.getByText('Output').first().waitFor();
    await shoot(alice.page, 'session-answer');
    await alice.page.locator('.step summary').first().click();
    const before = await shown();
    await alice.page.reload();
    await alice.settled();
    await alice.page.locator('.turn[data-state=completed]').waitFor();
    assert.equal(await alice.page.locator('.turn .answer').innerText(), whole);
    assert.equal(await shown(), before);
  });

  test('whoever joins in the middle of a turn sees the same', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'Shared');
    const id = decodeURIComponent(alice.page.url().split('#/c/')[1]);
    const bob = await enter('bob');
    await alice.say('Tell us both');
    await until(async () => (await alice.page.locator('.answer.is-streaming').innerText().catch(() => '')).length > 5, 'the stream to be under way');
    await bob.page.goto(`${server.url}/#/c/${encodeURIComponent(id)}`);
    await bob.settled();
    for (const { page } of [alice, bob]) await page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    assert.equal(await bob.page.locator('.turn .answer').innerText(), await alice.page.locator('.turn .answer').innerText());
    assert.equal(await bob.page.locator('.turn .step').count(), await alice.page.locator('.turn .step').count());
  });

  test('the server is killed and restarted: disconnected, resuming, everything there, what was written meanwhile goes out once', async () => {
    const alice = await enter('alice');
    const bob = await enter('bob');
    await alice.create('Channel', 'Storm');
    await alice.invite('bob');
    await bob.open('Storm');
    await alice.say('before the storm');
    await bob.sees('before the storm');
    for (const person of [alice, bob]) await person.watchStates();

    await server.kill();
    for (const person of [alice, bob]) await person.connection('disconnected');
    await alice.page.getByText('Disconnected.', { exact: false }).first().waitFor();
    await alice.say('written in the dark');
    await bob.say('me too');
    await alice.page.locator('.message[data-state=slow]').waitFor();
    await shoot(alice.page, 'disconnected');
    await server.run();
    // Whatever the wait that is left, a person may cut it short.
    for (const person of [alice, bob]) await person.page.getByRole('button', { name: 'Try now' }).click({ timeout: 2_000 }).catch(() => {});
    for (const person of [alice, bob]) {
      await person.connection('live');
      const states = await person.states();
      assert.ok(states.includes('disconnected') && states.indexOf('resuming') > states.indexOf('disconnected'), states.join());
      assert.equal(states.at(-1), 'live');
    }
    const expected = ['before the storm', 'me too', 'written in the dark'];
    for (const person of [alice, bob]) {
      await until(async () => (await person.messages()).length === 3, `${person.name} to have all three`);
      assert.deepEqual((await person.messages()).toSorted(), expected);
    }
    assert.deepEqual(await alice.messages(), await bob.messages());
    assert.equal(await alice.page.locator('.message[data-state=slow], .message[data-state=failed]').count(), 0);
    assert.deepEqual((await server.texts(await server.token('alice'), 'storm')).toSorted(), expected);
    await alice.say('after the storm');
    await bob.sees('after the storm');
  });

  test('a turn that the server took down with it goes on when the server is back', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'Cut short');
    await alice.say('Tell me something long');
    await until(async () => (await alice.page.locator('.answer.is-streaming').innerText().catch(() => '')).length > 5, 'the stream to be under way');
    await server.kill();
    await alice.connection('disconnected');
    await alice.page.locator('.turn.is-interrupted').getByText('Interrupted: no connection').waitFor();
    await shoot(alice.page, 'turn-interrupted');
    await server.run();
    await alice.page.getByRole('button', { name: 'Try now' }).click({ timeout: 2_000 }).catch(() => {});
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    await alice.page.locator('.step-takeover').getByText('epoch 2').waitFor();
    assert.equal(await alice.page.locator('.turn').count(), 1);
  });

  test('an agent asks, and what it asks is answered once, by whoever is there', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'With approval');
    const id = decodeURIComponent(alice.page.url().split('#/c/')[1]);
    const bob = await enter('bob', `/#/c/${encodeURIComponent(id)}`);
    await alice.say('With my approval: what is 6 * 7?');
    await alice.page.getByRole('button', { name: 'Approve' }).waitFor({ timeout: 30_000 });
    await alice.page.locator('.turn[data-state=waiting]').getByText('Waiting for an answer').waitFor();
    await shoot(alice.page, 'session-asks');
    await alice.page.reload();
    await alice.settled();
    await alice.page.getByRole('button', { name: 'Approve' }).waitFor();
    await bob.page.getByRole('button', { name: 'Approve' }).click();
    await alice.page.locator('.ask').getByText('Approved by bob.').waitFor();
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    assert.match(await alice.page.locator('.turn .answer').innerText(), /42/);
    assert.equal(await alice.page.locator('.tool-attempt').count(), 0, 'the tool was called once');
    await shoot(alice.page, 'session-approved');
  });

  test('a turn is stopped: what was said is kept, or nothing is; and it is answered again', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'Stopped');
    const last = () => alice.page.locator('.turn').last();
    const streaming = () => until(async () => (await last().locator('.answer').innerText().catch(() => '')).length > 10, 'the stream to be under way');
    await alice.say('Tell me something long');
    await streaming();
    await last().getByRole('button', { name: 'Stop' }).click();
    await alice.page.locator('.turn[data-state=cancelled]').getByText('Stopped here.').waitFor();
    assert.ok((await last().locator('.answer').innerText()).length > 10, 'it is kept');
    await alice.say('Tell me something else');
    await until(async () => (await alice.page.locator('.turn').count()) === 2, 'the next turn');
    await streaming();
    await last().getByRole('button', { name: 'Discard' }).click();
    await last().getByText('Stopped; nothing of it was kept.').waitFor();
    assert.equal(await last().locator('.answer').innerText(), '');
    await shoot(alice.page, 'session-stopped');
    assert.equal(await last().getByRole('button', { name: 'Answer again' }).isVisible(), false, 'what was taken back is asked anew');
    await alice.say('What is 3 * 4?');
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    await last().getByRole('button', { name: 'Answer again' }).click();
    await alice.page.locator('.turn[data-state=superseded]').getByText('Replaced by a newer answer.').waitFor();
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    assert.match(await last().locator('.answer').innerText(), /12/);
    await last().getByRole('button', { name: 'Answer again' }).click();
    await until(async () => (await alice.page.locator('.turn[data-state=superseded]').count()) === 2, 'the answer to be replaced');
    await streaming();
    await last().getByRole('button', { name: 'Discard' }).click();
    await last().getByText('Stopped; nothing of it was kept.').waitFor();
    const counted = alice.page.locator('.turn[data-state=completed]');
    await counted.getByRole('button', { name: 'Answer again' }).click();
    await counted.waitFor({ state: 'detached' });
    await alice.page.locator('.turn[data-state=completed]').waitFor({ timeout: 60_000 });
    assert.match(await last().locator('.answer').innerText(), /12/);
  });

  test('a question is closed when its turn is stopped, and stays so', async () => {
    const alice = await enter('alice');
    await alice.create('Agent', 'Never mind');
    await alice.say('With my approval: what is 6 * 7?');
    await alice.page.getByRole('button', { name: 'Approve' }).waitFor({ timeout: 30_000 });
    await alice.page.getByRole('button', { name: 'Stop' }).click();
    for (const reload of [false, true]) {
      if (reload) await alice.page.reload();
      await alice.page.locator('.ask[data-state=closed]').getByText('Closed: the turn ended').waitFor();
      assert.equal(await alice.page.getByRole('button', { name: 'Approve' }).count(), 0);
    }
  });

  test('the server is told to stop and starts again: the same, without a kill', async () => {
    const alice = await enter('alice');
    await alice.create('Channel', 'Restart');
    await alice.say('before');
    await alice.sees('before');
    await server.terminate();
    await alice.connection('disconnected');
    await alice.say('between');
    await server.run();
    await alice.page.getByRole('button', { name: 'Try now' }).click({ timeout: 2_000 }).catch(() => {});
    await alice.connection('live');
    await until(async () => (await server.texts(await server.token('alice'), 'restart')).join() === 'before,between', 'both to be stored');
    assert.deepEqual(await alice.messages(), ['before', 'between']);
  });

  test('written while disconnected, then reloaded: still goes out, once', async () => {
    const alice = await enter('alice');
    await alice.create('Channel', 'Kept');
    await server.kill();
    await alice.connection('disconnected');
    await alice.say('kept through a reload');
    await server.run();
    await alice.page.reload();
    await alice.settled();
    const token = await server.token('alice');
    await until(async () => (await server.texts(token, 'kept')).length === 1, 'it to be stored');
    await alice.sees('kept through a reload');
    await until(async () => (await alice.page.locator('.message').count()) === 1, 'one element for it');
    assert.deepEqual(await server.texts(token, 'kept'), ['kept through a reload']);
  });

  test('a refusal without a directive says why and offers no retry', async () => {
    const alice = await enter('alice');
    await alice.create('Channel', 'Limits');
    await alice.say('x '.repeat(35_000));
    const failed = alice.page.locator('.message[data-state=failed]');
    await failed.waitFor();
    assert.equal(await failed.getByRole('button', { name: 'Try again' }).count(), 0);
    await failed.getByText('Too long: 69 KB of at most 64 KB.').waitFor();
    assert.ok((await failed.locator('.bubble').boundingBox()).height < 120);
    await alice.say('shorter');
    await alice.sees('shorter');
    await until(async () => (await alice.messages()).at(-1) === 'shorter', 'the refused one to stay where it was');
    await shoot(alice.page, 'refused');
    await failed.getByRole('button', { name: 'Show all of it' }).click();
    assert.ok((await failed.locator('.bubble').boundingBox()).height > 1_000);
    await failed.getByRole('button', { name: 'Discard' }).click();
    await failed.waitFor({ state: 'detached' });
    assert.deepEqual(await alice.messages(), ['shorter']);
  });

  test('whatever people write is text: names, titles, messages, links', async () => {
    const markup = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>';
    const mallory = await server.token('mallory', { name: markup });
    await server.channel(mallory, 'hostile', { title: markup, members: ['frank'] });
    const frank = await enter('frank', '/#/c/hostile');
    await frank.settled();
    const texts = [markup, 'javascript:alert(1)', '```\n</code></pre><b>x</b>\n```', '`a` ** ` **b*', '[x](javascript:alert(1)) https://example.org/?q=<b>"x"'];
    for (const text of texts) await server.say(mallory, 'hostile', text);
    await until(async () => (await frank.messages()).length === texts.length, 'all of it');
    assert.equal((await frank.messages())[0], markup);
    assert.equal(await frank.page.evaluate(() => window.pwned), undefined);
    assert.equal(await frank.page.locator('.stream img, .stream script, .stream b, .sidebar img').count(), 0);
    const links = await frank.page.locator('.bubble a').evaluateAll((all) => all.map((link) => link.href));
    assert.deepEqual(links, ['https://example.org/?q=']);
  });

  test('who is removed is told so, and the conversation leaves the list', async () => {
    const alice = await enter('alice');
    const bob = await enter('bob');
    await alice.create('Channel', 'Invited');
    await alice.invite('bob');
    await bob.open('Invited');
    await server.must(await server.token('alice'), 'DELETE', '/v1/conversations/invited/members/bob');
    await bob.page.getByText('You are no longer part of this conversation.').waitFor();
    await bob.entry('Invited').waitFor({ state: 'detached' });
    await bob.page.getByRole('button', { name: 'Join again' }).click();
    await bob.settled();
    await bob.entry('Invited').waitFor();
    await bob.say('back again');
    await bob.sees('back again');
  });

  test('narrow: the list and the conversation take turns, nothing is wider than the screen', async () => {
    await context.close();
    context = await browser.newContext({ viewport: { width: 380, height: 720 }, deviceScaleFactor: 2 });
    const alice = await enter('alice');
    await alice.create('Channel', 'Narrow');
    await alice.say('a rather long line that has to wrap on a narrow screen, and averylongwordthatcannotbebrokenanywhereatallexceptbyforce '.repeat(2));
    await alice.sees((await alice.messages())[0]);
    const width = () => alice.page.evaluate(() => document.documentElement.scrollWidth);
    assert.equal(await width(), 380);
    assert.equal(await alice.page.locator('.sidebar').isVisible(), false);
    await shoot(alice.page, 'narrow-chat');
    await alice.page.getByRole('link', { name: 'All conversations' }).click();
    await alice.entry('Narrow').waitFor();
    assert.equal(await alice.page.locator('.stage').isVisible(), false);
    assert.equal(await width(), 380);
    await shoot(alice.page, 'narrow-list');
  });

  test('the keyboard alone: skip link, dialog, conversation, walking the list', async () => {
    const erin = await enter('erin');
    const { page } = erin;
    await page.getByRole('button', { name: 'New conversation' }).first().press('Enter');
    await page.keyboard.type('By keys');
    await page.keyboard.press('Enter');
    await erin.settled();
    await page.keyboard.type('typed without a mouse');
    await page.keyboard.press('Enter');
    await erin.sees('typed without a mouse');
    await erin.create('Channel', 'Second');
    await page.keyboard.press('Alt+ArrowDown');
    await page.getByRole('heading', { level: 1, name: 'By keys' }).waitFor();
  });
});

describe('the console of a server with a key', { timeout: 180_000 }, () => {
  let server;
  let browser;

  before(async () => {
    server = await Server.start({ environment: { CONCH_AUTH_SECRET: 'a secret of thirty-two bytes or more, for this test' } });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });

  test('asks for a token, says what is wrong with a bad one, and says so when it has run out', async () => {
    const page = await browser.newPage({ viewport: DESKTOP });
    const posts = [];
    page.on('request', (request) => { if (request.method() === 'POST') posts.push(request.url()); });
    await page.goto(server.url);
    const field = page.getByLabel('Paste an access token');
    await field.waitFor();
    assert.deepEqual(posts, [], 'the mode is known before anything is tried');
    const alert = page.getByRole('alert');
    await field.fill('nonsense');
    await page.getByRole('button', { name: 'Enter' }).click();
    await alert.getByText('This does not look like an access token.').waitFor();
    const good = await server.token('alice', { name: 'Alice Liddell', ttl: '5s' });
    await field.fill(`${good}x`);
    await page.getByRole('button', { name: 'Enter' }).click();
    await until(async () => ((await alert.innerText()).length > 10 && !(await alert.innerText()).includes('look like')), 'the refusal');
    await shoot(page, 'token');
    await field.fill(good);
    await page.getByRole('button', { name: 'Enter' }).click();
    await page.getByText('Hello, Alice Liddell').waitFor();
    await page.getByText('Your access has ended.').waitFor({ timeout: 30_000 });
    await field.waitFor();
    await shoot(page, 'signed-out');
  });
});

/** A worker that asks one thing after the other, and then says what it was answered. */
const QUESTIONS = [
  { id: 'size', prompt: 'Which size?', schema: { type: 'object', required: ['size'], properties: { size: { enum: ['S', 'M'] } } } },
  { id: 'note', prompt: 'A note?', schema: { type: 'string', minLength: 3, description: 'At least three letters.' } },
];

async function asker() {
  const worker = createServer(async (request, response) => {
    let text = '';
    for await (const piece of request) text += piece;
    const { journal } = JSON.parse(text);
    const resolved = QUESTIONS.map(({ id }) => journal.find((entry) => entry.await === id && entry.state === 'resolved'));
    const answers = resolved.flatMap((entry) => (entry ? [entry.payload] : []));
    const next = QUESTIONS[answers.length];
    const lines = next ? [{ type: 'await', ...next }] : [{ type: 'message', body: { text: JSON.stringify(answers) } }, { type: 'done' }];
    response.end(lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
  });
  worker.listen(0, '127.0.0.1');
  await once(worker, 'listening');
  return worker;
}

describe('what a worker asks', { timeout: 180_000 }, () => {
  let worker;
  let server;
  let browser;
  let folder;

  before(async () => {
    worker = await asker();
    folder = await mkdtemp(path.join(tmpdir(), 'conch-asks-'));
    const file = path.join(folder, 'conch.toml');
    await writeFile(file, `[agents.asker]\nkind = "http"\nurl = "http://127.0.0.1:${worker.address().port}/"\nsecret_env = "CONCH_WORKER_SECRET"\n`);
    const environment = { CONCH_WORKER_SECRET: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', CONCH_AUTH_SECRET: 'a secret of thirty-two bytes or more, for this test' };
    server = await Server.start({ more: ['--config', file], environment });
    browser = await launch();
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
    worker?.close();
    await rm(folder, { recursive: true, force: true });
  });

  test('has a button for each answer that its schema names, or a field below its hint; whoever may not answer has neither', async () => {
    const context = await browser.newContext({ viewport: DESKTOP });
    const alice = await Person.enterWith(context, server, 'alice', await server.token('alice'));
    const headers = { authorization: `Bearer ${await server.token('alice')}`, 'content-type': 'application/json' };
    const put = await fetch(`${server.url}/v1/conversations/asked`, { method: 'PUT', headers, body: JSON.stringify({ kind: 'session', agent: 'asker' }) });
    assert.equal(put.status, 201);
    await alice.page.goto(`${server.url}/#/c/asked`);
    await alice.settled();
    await alice.say('Go');
    const ask = alice.page.locator('.ask[data-state=open]');
    await ask.getByText('Which size?').waitFor();
    assert.deepEqual(await ask.getByRole('button').allInnerTexts(), ['S', 'M']);
    const carol = await Person.enterWith(context, server, 'carol', await server.token('carol', { can: 'read,send' }), '/#/c/asked');
    await carol.page.locator('.ask[data-state=open]').getByText('Whoever may run turns here can answer.').waitFor();
    for (const name of ['S', 'Stop', 'Discard']) assert.equal(await carol.page.getByRole('button', { name, exact: true }).isVisible(), false, name);
    await ask.getByRole('button', { name: 'M' }).click();
    await ask.getByText('A note?').waitFor();
    const field = ask.getByLabel('Your answer');
    await field.fill('yes');
    await ask.getByText('At least three letters.').waitFor();
    await shoot(alice.page, 'asked');
    await ask.getByRole('button', { name: 'Answer' }).click();
    await alice.page.locator('.turn .answer').getByText('[{"size":"M"},"yes"]').waitFor();
    await alice.page.locator('.ask-answer').getByText('alice: M').waitFor();
    assert.deepEqual([...alice.faults, ...carol.faults], []);
  });
});
