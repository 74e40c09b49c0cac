/**
 * A person at the console: one tab, driven through what is visible (roles, labels, words).
 */
import { until } from './until.js';

export class Person {
  /** Opens a tab and enters under `name`. Failures in the page are kept in `faults`. */
  static async enter(context, server, name, route = '') {
    const person = await Person.#at(context, server, name, route);
    await person.page.getByLabel('What should people call you?').fill(name);
    await person.#through();
    return person;
  }

  /** The same where the server gives no tokens out: with one of `conch token`. */
  static async enterWith(context, server, name, token, route = '') {
    const person = await Person.#at(context, server, name, route);
    await person.page.getByLabel('Paste an access token').fill(token);
    await person.#through();
    return person;
  }

  static async #at(context, server, name, route) {
    const person = new Person();
    person.name = name;
    person.faults = [];
    person.page = await context.newPage();
    person.page.on('pageerror', (error) => person.faults.push(error.stack ?? String(error)));
    person.page.on('console', (message) => {
      // A browser logs each request that a killed server refuses; that is the network's word, not the console's.
      if (message.type() === 'error' && !/ERR_|WebSocket connection|status of 4/.test(message.text())) person.faults.push(message.text());
    });
    await person.page.goto(server.url + route);
    return person;
  }

  async #through() {
    await this.page.getByRole('button', { name: 'Enter' }).click();
    await this.page.getByRole('navigation', { name: 'Conversations' }).waitFor({ state: 'attached' });
    await this.connection('live');
  }

  /** Waits until the console says this of its connection. */
  connection(state, timeout = 30_000) {
    return this.page.waitForSelector(`body[data-connection="${state}"]`, { timeout, state: 'attached' });
  }

  /** Records every connection state from now on; read with `states()`. */
  watchStates() {
    return this.page.evaluate(() => {
      window.connectionStates = [document.body.dataset.connection];
      new MutationObserver(() => window.connectionStates.push(document.body.dataset.connection))
        .observe(document.body, { attributeFilter: ['data-connection'] });
    });
  }

  states() { return this.page.evaluate(() => window.connectionStates); }

  async create(kind, text) {
    await this.page.getByRole('button', { name: 'New conversation' }).first().click();
    const dialog = this.page.getByRole('dialog');
    await dialog.getByRole('radio', { name: kind }).check();
    await dialog.getByRole('textbox').fill(text);
    await dialog.locator('button[type=submit]').click();
    await dialog.waitFor({ state: 'detached' });
    await this.settled();
  }

  /** Opens a conversation of the list by its title. */
  async open(title) {
    await this.entry(title).click();
    await this.page.getByRole('heading', { level: 1, name: title }).waitFor();
    await this.settled();
  }

  settled() { return this.page.waitForSelector('.conversation[data-status=live]', { timeout: 20_000 }); }

  entry(title) { return this.page.getByRole('navigation', { name: 'Conversations' }).getByRole('link').filter({ hasText: title }); }

  async say(text) {
    const field = this.page.locator('#composer-field');
    await field.fill(text);
    await field.press('Enter');
  }

  /** The words of all messages on screen, in order. */
  messages() { return this.page.locator('.message .bubble').allInnerTexts(); }

  async sees(text, timeoutMs = 20_000) {
    await until(async () => (await this.messages()).includes(text), `${this.name} to see "${text}"`, timeoutMs);
  }

  /** The unread count beside a conversation of the list; 0 if there is none. */
  async unread(title) {
    const badge = this.entry(title).locator('.badge');
    return (await badge.isVisible()) ? Number.parseInt(await badge.innerText(), 10) : 0;
  }

  async invite(sub) {
    await this.page.getByRole('button', { name: 'People and invitations' }).click();
    const dialog = this.page.getByRole('dialog');
    await dialog.getByLabel('Invite someone').fill(sub);
    await dialog.getByRole('button', { name: 'Invite' }).click();
    await dialog.getByRole('listitem').filter({ hasText: sub }).waitFor();
    await this.page.keyboard.press('Escape');
    await dialog.waitFor({ state: 'detached' });
  }
}
