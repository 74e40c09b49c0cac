/**
 * A chat of the Vercel AI SDK in a process of its own, as a page has one, without a browser: `chat.js PACKAGE` reads commands and writes what the
 * chat shows, both as lines of JSON. `Chat` is the test's side of it.
 *
 * Invariant: the SDK's own chat and transport, untouched; only the state that a framework would keep is kept here. Version 7 runs
 * in the Node that it wants.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { until } from './until.js';

const node22 = fileURLToPath(new URL(`../node_modules/node-linux-${process.arch}/bin/node`, import.meta.url));
const me = fileURLToPath(import.meta.url);

/** The versions: the packages, and the Node that each runs in. */
export const VERSIONS = { 5: ['ai-5', process.execPath], 6: ['ai-6', process.execPath], 7: ['ai', node22] };

export class Chat {
  /** What the chat shows now. */
  shown = { status: 'ready', messages: [], error: null };

  /** Every error that it reported. */
  errors = [];

  /** A page is opened: `url` is the node's, `id` the chat's. It begins with the messages that the server has. */
  static async open(version, url, token, id) {
    const [name, runtime] = VERSIONS[version];
    const chat = new Chat();
    chat.process = spawn(runtime, [me, name], { stdio: ['pipe', 'pipe', 'inherit'] });
    createInterface({ input: chat.process.stdout }).on('line', (line) => {
      chat.shown = JSON.parse(line);
      if (chat.shown.error) chat.errors.push(chat.shown.error);
    });
    chat.shown.status = 'opening';
    chat.tell({ do: 'open', url, token, id });
    await chat.is('ready');
    return chat;
  }

  tell(command) { this.process.stdin.write(`${JSON.stringify(command)}\n`); }

  say(text) { this.#begin({ do: 'say', text }); }

  again() { this.#begin({ do: 'again' }); }

  resume() { this.#begin({ do: 'resume' }); }

  /** The chat is over with this status, or reaches it. */
  async is(status, timeout = 60_000) {
    await until(() => this.shown.status === status, `the chat to be ${status}`, timeout)
      .catch((error) => { throw new Error(`${error.message}: ${JSON.stringify(this.shown)} ${this.errors}`); });
  }

  /** The text of the last message. */
  get text() {
    return (this.shown.messages.at(-1)?.parts ?? []).filter(({ type }) => type === 'text').map(({ text }) => text).join('\n');
  }

  async saying(part, timeout) {
    await until(() => this.shown.messages.at(-1)?.role === 'assistant' && this.text.includes(part), `“${part}” to be said`, timeout)
      .catch((error) => { throw new Error(`${error.message}: ${JSON.stringify(this.shown)} ${this.errors}`); });
  }

  /** The page is closed, in the middle of whatever it does. */
  async close() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const gone = once(this.process, 'exit');
    this.process.kill('SIGKILL');
    await gone;
  }

  #begin(command) {
    // What was shown before says nothing about what comes of this.
    this.shown = { status: 'begun', messages: [], error: null };
    this.tell(command);
  }
}

/** The other side. */
async function run(name) {
  const { AbstractChat, DefaultChatTransport } = await import(name);
  const show = ({ status, messages, error }) => process.stdout.write(`${JSON.stringify({ status, messages, error: error ? String(error) : null })}\n`);

  class State {
    status = 'ready';

    messages = [];

    error = undefined;

    snapshot(value) { return structuredClone(value); }

    pushMessage(message) { this.messages = [...this.messages, message]; }

    popMessage() { this.messages = this.messages.slice(0, -1); }

    replaceMessage(index, message) { this.messages = this.messages.with(index, structuredClone(message)); }
  }
  // Whatever changes is shown.
  const watched = (state) => new Proxy(state, {
    set(target, key, value) {
      target[key] = value;
      show(target);
      return true;
    },
  });

  class Page extends AbstractChat {
    constructor({ url, token, id }, messages) {
      const state = watched(new State());
      const transport = new DefaultChatTransport({ api: `${url}/ai/chat`, headers: { authorization: `Bearer ${token}` } });
      super({ id, transport, state, onError: () => show(state) });
      state.messages = messages;
    }
  }

  const load = async ({ url, token, id }) => {
    const answer = await fetch(`${url}/ai/chat/${id}/messages`, { headers: { authorization: `Bearer ${token}` } });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  let page = null;
  const done = (promise) => {
    promise.then(() => show(page.state), (error) => process.stderr.write(`${error.stack}\n`));
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const command = JSON.parse(line);
    if (command.do === 'open') page = new Page(command, await load(command));
    if (command.do === 'say') done(page.sendMessage({ text: command.text }));
    if (command.do === 'again') done(page.regenerate());
    if (command.do === 'resume') done(page.resumeStream());
    if (command.do === 'stop') done(page.stop());
  }
}

if (process.argv[1] === me) await run(process.argv[2]);
