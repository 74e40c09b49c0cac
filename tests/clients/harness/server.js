/**
 * A real server process on free loopback ports, with its data in a temporary directory.
 *
 * Invariant: only processes started here are ended, by their pid; every wait is bounded.
 * Deliberately does not: build the binary (CONCH_BIN, else target/release/conch, must exist).
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { until } from './until.js';

export const repository = fileURLToPath(new URL('../../../', import.meta.url));
export const binary = path.resolve(repository, process.env.CONCH_BIN ?? 'target/release/conch');

const EVERYTHING = 'read,send,run,create,admin';

/** A port that was free a moment ago. */
export async function freePort() {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

export class Server {
  #process = null;
  #output = '';

  /** `store`: another one than its own directory. `port`: for clients, else one that is free. `more`: arguments besides. */
  static async start(options = {}) {
    const server = new Server();
    server.directory = await mkdtemp(path.join(tmpdir(), 'conch-clients-'));
    server.store = options.store ?? `sqlite:${path.join(server.directory, options.data ?? 'data')}`;
    server.more = options.more ?? [];
    server.port = options.port ?? (await freePort());
    server.opsPort = await freePort();
    server.environment = { ...process.env, ...options.environment };
    await server.run();
    return server;
  }

  get url() { return `http://127.0.0.1:${this.port}`; }

  get socketUrl() { return `ws://127.0.0.1:${this.port}/socket`; }

  /** Starts the process (again, on the same ports and data) and waits until it is ready. */
  async run() {
    this.#output = '';
    const child = spawn(binary, ['serve', '--listen', `127.0.0.1:${this.port}`, '--ops-listen', `127.0.0.1:${this.opsPort}`, '--store', this.store, ...this.more], {
      cwd: this.directory, env: this.environment, stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#process = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk) => { this.#output = (this.#output + chunk).slice(-20_000); });
    }
    let failure = null;
    child.on('error', (error) => { failure = error; });
    await until(async () => {
      if (failure || child.exitCode !== null) return true;
      const answer = await fetch(`http://127.0.0.1:${this.opsPort}/readyz`);
      return answer.status === 200;
    }, 'the server to be ready', 30_000).catch((error) => { failure ??= error; });
    if (failure || child.exitCode !== null) {
      await this.kill();
      throw new Error(`the server did not start: ${failure?.message ?? `exit code ${child.exitCode}`}\n${this.#output}`);
    }
  }

  /** Stops it as SIGSTOP does, until it is killed: resolves when it does nothing any more. */
  async freeze() {
    const { pid } = this.#process;
    this.#process.kill('SIGSTOP');
    await until(async () => /\) T /.test(await readFile(`/proc/${pid}/stat`, 'utf8')), 'the server to stand still');
  }

  /** kill -9, as a power cut would. */
  async kill() { await this.#end('SIGKILL'); }

  /** Asked to stop, as an operator would. */
  async terminate() { await this.#end('SIGTERM'); }

  /** Ends it for good and removes its data. */
  async stop() {
    await this.#end('SIGTERM');
    await rm(this.directory, { recursive: true, force: true });
  }

  async #end(signal) {
    const child = this.#process;
    this.#process = null;
    if (!child || child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
    const exited = once(child, 'exit');
    child.kill(signal);
    const forced = setTimeout(() => child.kill('SIGKILL'), 15_000);
    await exited;
    clearTimeout(forced);
  }

  /** True until it ends, by whatever cause. */
  get isRunning() { return this.#process !== null && this.#process.exitCode === null && this.#process.signalCode === null; }

  /** The last lines the server wrote, for a failing test's message. */
  get output() { return this.#output; }

  /** Runs the command line beside the server; resolves with its standard output. */
  async cli(...args) {
    const { stdout } = await promisify(execFile)(binary, args, {
      cwd: this.directory, timeout: 30_000, env: { ...this.environment, CONCH_STORE: this.store, CONCH_URL: this.url },
    });
    return stdout.trim();
  }

  /** A token from `conch token`, allowed everything unless told otherwise. */
  async token(sub, { name = sub, conversations = '*', can = EVERYTHING, ttl = '1h' } = {}) {
    const printed = await this.cli('token', '--sub', sub, '--name', name, '--conversations', conversations, '--can', can, '--ttl', ttl, '--store', this.store);
    return printed.startsWith('{') ? JSON.parse(printed).token : printed;
  }

  /** An HTTP call as the bearer of `token`: {status, headers, body}. */
  async call(token, method, route, body) {
    const answer = await fetch(this.url + route, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(20_000),
    });
    const text = await answer.text();
    return { status: answer.status, headers: answer.headers, body: text === '' ? null : JSON.parse(text) };
  }

  /** The same, but directives are obeyed (a test may write faster than a person), and any status outside 2xx is an error. */
  async must(token, method, route, body) {
    let answer = await this.call(token, method, route, body);
    const deadline = Date.now() + (answer.body?.retry?.budget_ms ?? 0);
    while (answer.body?.retry && Date.now() < deadline) {
      await pause(answer.body.retry.after_ms);
      answer = await this.call(token, method, route, body);
    }
    if (answer.status < 200 || answer.status > 299) throw new Error(`${method} ${route}: ${answer.status} ${JSON.stringify(answer.body)}`);
    return answer.body;
  }

  channel(token, id, more = {}) { return this.must(token, 'PUT', `/v1/conversations/${id}`, { kind: 'channel', title: id, ...more }); }

  say(token, id, text, clientMsgId = crypto.randomUUID()) {
    return this.must(token, 'POST', `/v1/conversations/${id}/messages`, { client_msg_id: clientMsgId, body: { text } });
  }

  /** The whole log of a small conversation. */
  async history(token, id) {
    const records = [];
    for (let after = 0; ;) {
      const page = await this.must(token, 'GET', `/v1/conversations/${id}/messages?after=${after}&limit=500`);
      records.push(...page.messages);
      if (!page.more || page.messages.length === 0) return records;
      after = page.messages.at(-1).seq;
    }
  }

  texts(token, id) {
    return this.history(token, id).then((records) => records.filter(({ kind }) => kind === 'message').map(({ body }) => body.text));
  }
}
