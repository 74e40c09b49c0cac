/**
 * The README's curl examples, run as they stand: every ```sh block with `<!-- test: curl -->` directly above it, in order,
 * in one bash with `set -eu`. The server's address is the only thing that is changed.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readFile, symlink } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Server, binary, repository } from '../harness/server.js';

const BLOCK = /<!-- test: curl -->[ \t]*\r?\n```sh\r?\n([\s\S]*?)```/g;
const LIMIT_MS = 60_000;

export const blocks = (markdown) => [...markdown.matchAll(BLOCK)].map(([, code]) => code);

let server;

before(async () => {
  // The README starts the server with its defaults: the data lies in ./conch-data of where one stands.
  server = await Server.start({ data: 'conch-data' });
  await mkdir(path.join(server.directory, 'target', 'release'), { recursive: true });
  await symlink(binary, path.join(server.directory, 'target', 'release', 'conch'));
});
after(async () => { await server?.stop(); });

test('the runner finds marked blocks only', () => {
  const markdown = 'a\n<!-- test: curl -->\n```sh\ncurl 1\n```\n```sh\ncurl 2\n```\n<!-- test: curl -->\n```sh\ncurl 3\ncurl 4\n```\n';
  assert.deepEqual(blocks(markdown), ['curl 1\n', 'curl 3\ncurl 4\n']);
});

test("the README's curl examples run as they stand", async () => {
  const found = blocks(await readFile(path.join(repository, 'README.md'), 'utf8'));
  assert.ok(found.length > 0, 'README.md has no ```sh block marked with <!-- test: curl -->');
  const script = found.join('\n')
    .replaceAll(/(127\.0\.0\.1|localhost):4000\b/g, `127.0.0.1:${server.port}`)
    .replaceAll(/(127\.0\.0\.1|localhost):4001\b/g, `127.0.0.1:${server.opsPort}`)
    .replaceAll(/cargo run (--release|-r) -- /g, 'conch ');
  const { code, output } = await bash(`set -eu\n${script}`);
  assert.equal(code, 0, `exit code ${code}\n--- script\n${script}\n--- output\n${output}`);
});

async function bash(script) {
  const child = spawn('bash', ['-c', script], {
    cwd: server.directory,
    env: { ...process.env, PATH: `${path.join(server.directory, 'target', 'release')}:${process.env.PATH}`, CONCH_URL: server.url },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true, // its own process group, so that a curl that never ends can be ended with it
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => { output += chunk; });
  const limit = setTimeout(() => {
    output += `\n(ended after ${LIMIT_MS} ms)`;
    process.kill(-child.pid, 'SIGKILL');
  }, LIMIT_MS);
  const [code, signal] = await once(child, 'close');
  clearTimeout(limit);
  return { code: code ?? signal, output };
}
