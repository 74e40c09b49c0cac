/**
 * The client package as npm would install it: packed, unpacked beside one version of phoenix.js in a folder of its own, imported.
 *
 * Invariant: what is tested is what `npm pack` holds; nothing is fetched.
 */
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, rm, symlink } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const modules = fileURLToPath(new URL('../node_modules/', import.meta.url));
export const source = fileURLToPath(new URL('../../../clients/typescript/', import.meta.url));
export const compiler = path.join(modules, '.bin', 'tsc');

/** `phoenix`: the folder in node_modules that stands in for `phoenix`. `packages`: others that are to be there. */
export async function install(phoenix, packages = []) {
  const directory = await mkdtemp(path.join(tmpdir(), 'conch-package-'));
  const target = path.join(directory, 'node_modules', '@conch', 'client');
  await mkdir(target, { recursive: true });
  const { stdout } = await run('npm', ['pack', '--ignore-scripts', '--json', '--pack-destination', directory], { cwd: source, timeout: 60_000 });
  const [{ filename }] = JSON.parse(stdout);
  await run('tar', ['--extract', '--gzip', '--strip-components=1', '--directory', target, '--file', path.join(directory, filename)], { timeout: 60_000 });
  await symlink(path.join(modules, phoenix), path.join(directory, 'node_modules', 'phoenix'));
  for (const name of packages) {
    await mkdir(path.dirname(path.join(directory, 'node_modules', name)), { recursive: true });
    await symlink(path.join(modules, name), path.join(directory, 'node_modules', name));
  }
  return {
    directory,
    target,
    load: () => import(pathToFileURL(path.join(target, 'src', 'index.js')).href),
    remove: () => rm(directory, { recursive: true, force: true }),
  };
}
