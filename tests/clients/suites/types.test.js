/**
 * The package's types: its sources hold to them, what is packed declares them, and the README's example compiles against them.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { compiler, install, source } from '../harness/package.js';

let installed;
let complaints;
before(async () => {
  installed = await install('phoenix');
  complaints = await declare();
});
after(async () => { await installed?.remove(); });

/** Runs the compiler; resolves with its complaints, empty if it has none. */
function compile(...args) {
  return new Promise((resolve) => {
    execFile(compiler, args, { cwd: installed.directory, timeout: 120_000 }, (error, stdout, stderr) => {
      resolve(error ? stdout + stderr + (error.killed ? 'ended' : '') || error.message : '');
    });
  });
}

const STRICT = ['--noEmit', '--strict', '--target', 'es2023', '--lib', 'es2023,dom,dom.iterable', '--types', ''];

const consume = async (name, code, module, resolution) => {
  await writeFile(path.join(installed.directory, name), code);
  return compile(...STRICT, '--module', module, '--moduleResolution', resolution, name);
};

/** Writes the declarations into the installed package, as `npm pack` does. Resolves with the compiler's complaints. */
async function declare() {
  const options = {
    extends: path.join(source, 'tsconfig.json'),
    compilerOptions: {
      rootDir: source,
      outDir: path.join(installed.target, 'types'),
      paths: { phoenix: [path.join(path.dirname(compiler), '..', '@types', 'phoenix', 'index.d.ts')] },
    },
    include: [path.join(source, 'core', '*.js'), path.join(source, 'src', '*.js')],
  };
  await writeFile(path.join(installed.directory, 'sources.json'), JSON.stringify(options));
  return compile('--project', 'sources.json');
}

test('the sources hold to their types, and everything that is exported is packed and declared', async () => {
  assert.equal(complaints, '');
  const { exports } = JSON.parse(await readFile(path.join(installed.target, 'package.json'), 'utf8'));
  for (const file of Object.values(exports).flatMap((entry) => Object.values(entry))) {
    assert.ok(existsSync(path.join(installed.target, file.replace('*', 'outbox'))), file);
  }
});

test("the README's example compiles, as a bundler and as Node resolve it", async () => {
  const [, example] = /```ts\n([\s\S]*?)```/.exec(await readFile(path.join(source, 'README.md'), 'utf8'));
  assert.equal(await consume('bundled.mts', example, 'esnext', 'bundler'), '');
  assert.equal(await consume('node.mts', example, 'nodenext', 'nodenext'), '');
  assert.equal(await consume('core.mts', "import { Timeline } from '@conch/client/core/timeline.js';\nnew Timeline().advance(3);\n", 'nodenext', 'nodenext'), '');
});

test('wrong uses do not compile', async () => {
  const cases = [
    ["new Conch({ url: 'http://x' });", /token/],
    ["room.send('hello');", /not assignable/],
    ["room.onRecord((record) => { record.sequence; });", /sequence/],
    ["const { number } = await room.send({ text: 'a' }); export { number };", /number/],
  ];
  for (const [code, complaint] of cases) {
    const program = `import { Conch, type Room } from '@conch/client';\ndeclare const room: Room;\n${code}\nexport { Conch, room };\n`;
    assert.match(await consume('wrong.mts', program, 'nodenext', 'nodenext'), complaint, code);
  }
});
