/**
 * A real PostgreSQL server in a temporary directory, reached over a Unix socket.
 *
 * Invariant: it ends when this process does, however that ends: its supervisor waits for the end of a pipe that only this process
 * holds. Writes are synced, for a node refuses another server.
 * Deliberately does not: install anything (`./test` does), nor open a port.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, chown, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { until } from './until.js';

const run = promisify(execFile);
const INSTALLED = '/usr/lib/postgresql';
const PORT = 5432;
const SETTINGS = ['listen_addresses=', `port=${PORT}`, 'max_connections=200', 'shared_buffers=32MB', 'autovacuum=off', 'timezone=UTC'];
/** Starts the server, waits for the end of its input, stops the server. */
const SUPERVISOR = `
log=$1; shift
"$@" >>"$log" 2>&1 </dev/null &
server=$!
while IFS= read -r line; do :; done
kill -QUIT "$server" 2>/dev/null
wait "$server"
`;

/** It refuses to be root: then it runs as the user that Debian's package makes. */
async function serverUser() {
  if (process.getuid() !== 0) return {};
  const [uid, gid] = await Promise.all(['-u', '-g'].map((which) => run('id', [which, 'postgres']).then(({ stdout }) => Number(stdout))));
  return { uid, gid };
}

/** The programs of the newest version that is installed. */
async function programs() {
  const versions = await readdir(INSTALLED).catch(() => []);
  const newest = versions.filter((name) => /^\d+$/.test(name)).sort((a, b) => b - a)[0];
  if (newest === undefined) throw new Error(`no PostgreSQL in ${INSTALLED}: Debian's package is postgresql`);
  return path.join(INSTALLED, newest, 'bin');
}

export class Postgres {
  #supervisor;

  static async start() {
    const postgres = new Postgres();
    const [bin, user] = await Promise.all([programs(), serverUser()]);
    postgres.directory = await mkdtemp(path.join(tmpdir(), 'conch-postgres-'));
    if (user.uid !== undefined) await chown(postgres.directory, user.uid, user.gid);
    const data = path.join(postgres.directory, 'data');
    const options = { ...user, cwd: postgres.directory, timeout: 60_000 };
    await run(path.join(bin, 'initdb'), ['--username=postgres', '--auth=trust', '--encoding=UTF8', '--no-sync', '--pgdata', data], options);
    const settings = [...SETTINGS, `unix_socket_directories=${postgres.directory}`].flatMap((setting) => ['-c', setting]);
    const log = path.join(postgres.directory, 'log');
    postgres.#supervisor = spawn('/bin/sh', ['-c', SUPERVISOR, 'supervisor', log, path.join(bin, 'postgres'), '-D', data, ...settings], {
      ...user, cwd: postgres.directory, stdio: ['pipe', 'ignore', 'ignore'],
    });
    // A line is written to its file of the socket once it takes connections.
    const lock = path.join(data, 'postmaster.pid');
    await until(async () => (await readFile(lock, 'utf8')).split('\n')[7]?.trim() === 'ready', 'PostgreSQL to be ready', 30_000)
      .catch(async (error) => { throw new Error(`${error.message}\n${await readFile(log, 'utf8').catch(() => '')}`); });
    return postgres;
  }

  get url() { return `postgres://postgres@/postgres?host=${this.directory}&port=${PORT}`; }

  async stop() {
    const ended = once(this.#supervisor, 'exit');
    this.#supervisor.stdin.end();
    await ended;
    await rm(this.directory, { recursive: true, force: true });
    await access(this.directory).then(() => { throw new Error(`${this.directory} is still there`); }, () => {});
  }
}
