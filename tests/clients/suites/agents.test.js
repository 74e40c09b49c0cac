/**
 * The example workers in Python and TypeScript, as their users start them, behind a real server that is configured as docs/AGENTS.md
 * says.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { Server, freePort, repository } from '../harness/server.js';
import { until } from '../harness/until.js';

const SECRET = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
const EXAMPLES = {
  python: { command: ['python3', 'examples/trip.py'], folder: 'clients/python', environment: { PYTHONPATH: '.' } },
  typescript: { command: ['node', 'examples/trip.js'], folder: 'clients/typescript-agent', environment: {} },
};

/** The `[agents.trip]` table of docs/AGENTS.md, with the worker's port. */
async function configuration(port) {
  const page = await readFile(path.join(repository, 'docs/AGENTS.md'), 'utf8');
  const [, table] = /```toml\n(\[agents\.trip\][\s\S]*?)```/.exec(page) ?? assert.fail('docs/AGENTS.md has no [agents.trip]');
  return table.replace('127.0.0.1:9000', `127.0.0.1:${port}`);
}

class Worker {
  /** @param {'python' | 'typescript'} kind */
  static async start(kind, expiresS) {
    const { command: [program, ...args], folder, environment } = EXAMPLES[kind];
    const worker = new Worker();
    worker.port = await freePort();
    worker.output = '';
    worker.process = spawn(program, args, {
      cwd: path.join(repository, folder),
      env: { ...process.env, ...environment, CONCH_WORKER_SECRET: SECRET, CONCH_WORKER_PORT: String(worker.port), TRIP_EXPIRES_S: String(expiresS) },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    for (const stream of [worker.process.stdout, worker.process.stderr]) {
      stream.on('data', (chunk) => { worker.output = (worker.output + chunk).slice(-20_000); });
    }
    await until(() => worker.output.includes('listening'), 'the worker to listen', 20_000);
    return worker;
  }

  async stop() {
    if (this.process.exitCode === null) {
      this.process.kill('SIGKILL');
      await once(this.process, 'exit');
    }
  }
}

for (const kind of /** @type {const} */ (['python', 'typescript'])) {
  describe(`the example in ${kind}`, { timeout: 120_000 }, () => {
    let worker;
    let server;
    let folder;
    let token;

    before(async () => {
      folder = await mkdtemp(path.join(tmpdir(), 'conch-agents-'));
      worker = await Worker.start(kind, 2);
      const file = path.join(folder, 'conch.toml');
      await writeFile(file, await configuration(worker.port));
      server = await Server.start({ more: ['--config', file], environment: { CONCH_WORKER_SECRET: SECRET } });
      token = await server.token('alice');
    });
    after(async () => {
      await server?.stop();
      await worker?.stop();
      await rm(folder, { recursive: true, force: true });
    });

    const call = async (method, where, body) => {
      const answer = await fetch(`${server.url}${where}`, {
        method,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      const text = await answer.text();
      assert.ok(answer.ok, `${method} ${where}: ${answer.status} ${text}\n${worker.output}`);
      return text === '' ? null : JSON.parse(text);
    };
    const log = async (id) => (await call('GET', `/v1/conversations/${id}/messages?after=0&limit=500`)).messages;
    const found = async (id, kindOf) => {
      let records = [];
      await until(async () => {
        records = (await log(id)).filter((record) => record.kind === kindOf);
        return records.length > 0;
      }, `${kindOf} in ${id}`, 30_000);
      return records[0];
    };
    const begin = async (id) => {
      await call('PUT', `/v1/conversations/${id}`, { kind: 'session', agent: 'trip' });
      await call('POST', `/v1/conversations/${id}/messages`, { client_msg_id: '1', body: { text: 'to Oslo' } });
      return found(id, 'await.opened');
    };

    test('does its step once, asks, and says so when nobody answers in time', async () => {
      const opened = await begin('late');
      assert.match(opened.body.prompt, /^Book R 12 for 48 EUR\?$/);
      await found('late', 'turn.completed');
      const records = await log('late');
      const steps = records.filter((record) => record.kind === 'step.completed').map((record) => record.body.step);
      assert.deepEqual(steps, ['find'], 'the step is done once, over both runs');
      assert.equal(records.at(-2).body.text, 'Nothing was booked.');
    });

    test('books when it is approved', async () => {
      const opened = await begin('approved');
      await call('POST', `/v1/conversations/approved/awaits/${opened.body.await}`, { payload: { approved: true } });
      const end = await found('approved', 'turn.completed');
      assert.deepEqual(end.body.state, { trips: 1 });
      const records = await log('approved');
      const steps = records.filter((record) => record.kind === 'step.completed').map((record) => record.body.step);
      assert.deepEqual(steps, ['find', 'book']);
      assert.match(records.at(-2).body.text, /Booked R 12 under R12-\w+\. Have a good trip!/);
    });
  });
}
