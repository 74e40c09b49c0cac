/**
 * The documents stay true to the tree: links lead somewhere, named files and named tests exist, the examples are there.
 * Needs node alone. The examples themselves run in tests/clients/suites/readme.test.js.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, readdirSync, statSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../', import.meta.url));
const read = (file) => readFileSync(path.join(root, file), 'utf8');
const isFile = (file) => existsSync(path.join(root, file)) && statSync(path.join(root, file)).isFile();

/** Every page that people read. */
const clients = ['python', 'typescript', 'typescript-agent'].map((name) => `clients/${name}/README.md`);
const pages = ['README.md', 'CONTRIBUTING.md', 'tests/clients/README.md', ...clients, ...markdownIn('docs')].filter(isFile);

function markdownIn(folder) {
  return readdirSync(path.join(root, folder), { withFileTypes: true }).flatMap((entry) => {
    const name = path.posix.join(folder, entry.name);
    if (entry.isDirectory()) return markdownIn(name);
    return name.endsWith('.md') ? [name] : [];
  });
}

const withoutCode = (text) => text.replaceAll(/^```[\s\S]*?^```/gm, '').replaceAll(/`[^`\n]*`/g, '');

/** A heading's anchor, as the usual renderers make it. */
const anchor = (heading) => heading.toLowerCase().replaceAll(/[^\p{L}\p{N} _-]/gu, '').trim().replaceAll(' ', '-');

export function brokenLinks(page, text, exists, textOf) {
  const broken = [];
  for (const [, target] of withoutCode(text).matchAll(/\[[^\]]*\]\(([^)\s]+)\)/g)) {
    if (/^[a-z]+:/.test(target)) continue;
    const [file, fragment] = target.split('#');
    const wanted = file === '' ? page : path.posix.normalize(path.posix.join(path.posix.dirname(page), file));
    if (!exists(wanted)) broken.push(`${page}: ${target}`);
    else if (fragment !== undefined) {
      const anchors = [...textOf(wanted).matchAll(/^#+ (.*)$/gm)].map(([, heading]) => anchor(heading));
      if (!anchors.includes(fragment)) broken.push(`${page}: ${target} (no such heading)`);
    }
  }
  return broken;
}

/** Paths of the tree that a page names in backticks. A trailing `::name` and patterns are not part of the path. */
export function namedPaths(text) {
  const paths = [];
  for (const [, code] of text.replaceAll(/^```[\s\S]*?^```/gm, '').matchAll(/`([^`\n]+)`/g)) {
    const found = /^(?:crates|docs|tests|console|clients|\.ci)\/[\w./-]*/.exec(code);
    if (found && !/[*{<…]/.test(code)) paths.push(found[0].replace(/\/$/, ''));
  }
  return paths;
}

/** The invariants of crates/core/src/invariant.rs as [number, sentence]. */
export function invariants(source) {
  return [...source.matchAll(/^\s*\w+ = (\d+), "([^"]+)";/gm)].map(([, number, sentence]) => [Number(number), sentence]);
}

/** The tests that a text names, as [file, name]: `path::name` for Rust, `path` "title" for JavaScript. */
export function namedTests(text) {
  const rust = [...text.matchAll(/`([\w./-]+\.rs)::(\w+)`/g)].map(([, file, name]) => [file, `fn ${name}(`]);
  const script = [...text.matchAll(/`([\w./-]+\.m?js)`\s+"([^"]+)"/g)].map(([, file, name]) => [file, name]);
  return [...rust, ...script];
}

export function sections(text) {
  return new Map(text.split(/^## /m).slice(1).map((section) => [section.split('\n')[0], section]));
}

test('the checks below can fail', () => {
  const exists = (file) => file === 'docs/B.md';
  const textOf = () => '# Some heading, here\n';
  assert.deepEqual(brokenLinks('docs/A.md', '[b](B.md) [h](B.md#some-heading-here) `[x](gone.md)`', exists, textOf), []);
  assert.deepEqual(brokenLinks('docs/A.md', '[c](C.md) [h](B.md#other)', exists, textOf), ['docs/A.md: C.md', 'docs/A.md: B.md#other (no such heading)']);
  assert.deepEqual(namedPaths('`crates/core/` and `crates/x.rs::name` and `GET /v1` and `crates/*/src`'), ['crates/core', 'crates/x.rs']);
  assert.deepEqual(invariants('    A = 1, "One.";\n    B = 2, "Two.";\n'), [[1, 'One.'], [2, 'Two.']]);
  assert.deepEqual(namedTests('`a/b.rs::name` and `c.test.js` "it works"'), [['a/b.rs', 'fn name('], ['c.test.js', 'it works']]);
  assert.deepEqual([...sections('x\n## 1. A\nb\n## 2. C\n').keys()], ['1. A', '2. C']);
});

test('every link of every page leads somewhere', () => {
  assert.ok(pages.length > 5, `only ${pages.length} pages were found`);
  const exists = (file) => existsSync(path.join(root, file));
  assert.deepEqual(pages.flatMap((page) => brokenLinks(page, read(page), exists, read)), []);
});

test('every file and folder that a page names is there', () => {
  const missing = pages.flatMap((page) => namedPaths(read(page)).filter((name) => !existsSync(path.join(root, name))).map((name) => `${page}: ${name}`));
  assert.deepEqual(missing, []);
});

test('docs/GUARANTEES.md has every invariant in its own words, with a why, an assertion, a test and a mutant', () => {
  const catalogue = invariants(read('crates/core/src/invariant.rs'));
  assert.equal(catalogue.length, 14);
  const text = read('docs/GUARANTEES.md');
  const found = [...sections(text).entries()].filter(([title]) => /^\d+\. /.test(title));
  assert.deepEqual(found.map(([title]) => Number.parseInt(title, 10)), catalogue.map(([number]) => number));
  for (const [index, [title, section]] of found.entries()) {
    const flat = section.replaceAll(/\s+/g, ' ');
    assert.ok(flat.includes(catalogue[index][1]), `${title}: the sentence of crates/core/src/invariant.rs is not in it`);
    for (const part of ['**Why it holds.**', '**Asserted in**', '**Shown by**', '**Mutant**']) {
      assert.ok(flat.includes(part), `${title}: has no ${part}`);
    }
    assert.ok(namedTests(section).length > 0, `${title}: names no test`);
  }
});

test('every test that a page names exists', () => {
  const missing = [];
  for (const page of pages) {
    for (const [file, name] of namedTests(read(page))) {
      if (!isFile(file) || !read(file).includes(name)) missing.push(`${page}: ${file}: ${name}`);
    }
  }
  assert.deepEqual(missing, []);
});

test('every mutant that a page names exists', () => {
  const declared = {
    Mutant: read('crates/store/src/memory/mutant.rs'),
    Flaw: read('crates/sim/src/model/scope.rs'),
    Guard: read('crates/core/src/death.rs'),
    Rule: ['crates/core/src/heart.rs', 'crates/server/src/rules.rs', 'crates/core/src/turn/machine.rs'].map(read).join(''),
  };
  const missing = [];
  for (const page of pages) {
    for (const [, kind, name] of read(page).matchAll(/`(Mutant|Flaw|Guard|Rule)::(\w+)`/g)) {
      if (!new RegExp(`^ +${name},$`, 'm').test(declared[kind])) missing.push(`${page}: ${kind}::${name}`);
    }
  }
  assert.deepEqual(missing, []);
});

/** What is wrong with the rows of a table of classes of failure: each needs a test of its name, and something to take out. */
export function unnamedClasses(table) {
  const rows = table.split('\n').filter((line) => line.startsWith('| ')).slice(1);
  const wrong = rows.flatMap((row) => {
    const [name, , , shown, without] = row.split(' | ').map((cell) => cell.replaceAll(/^\| | \|$/g, ''));
    const wanted = name.toLowerCase().replaceAll("'", '').replaceAll(/[^a-z0-9]+/g, '_').replaceAll(/^_|_$/g, '');
    const isNamed = namedTests(shown ?? '').some(([, test]) => test.startsWith(`fn ${wanted}`));
    return [...(isNamed ? [] : [`${name}: no test ${wanted}`]), ...(/[a-z]/.test(without ?? '') ? [] : [`${name}: nothing to take out`])];
  });
  return { count: rows.length, wrong };
}

test('every class of failure has a test of its name and a mutant', () => {
  const header = '| class | done | answer | shown by | without |\n|---|---|---|---|---|\n';
  const good = "| one's own, lost | x | y | `a.rs::ones_own_lost_again` | `Rule::X` |\n";
  assert.deepEqual(unnamedClasses(header + good), { count: 1, wrong: [] });
  assert.equal(unnamedClasses(header + good.replace('ones_own', 'other').replace('`Rule::X`', '–')).wrong.length, 2);
  const faults = sections(read('docs/FAULTS.md'));
  for (const [title, classes] of [['Classes', 24], ['Messages and sockets', 13], ['Agents', 13]]) {
    const { count, wrong } = unnamedClasses(faults.get(title));
    assert.deepEqual([title, count, wrong], [title, classes, []]);
  }
});

test('decisions are numbered without a gap and say context, decision and consequences', () => {
  const decisions = readdirSync(path.join(root, 'docs/adr')).filter((name) => name.endsWith('.md')).sort();
  assert.deepEqual(decisions.map((name) => Number.parseInt(name, 10)), decisions.map((_, index) => index + 1));
  for (const name of decisions) {
    const headings = [...sections(read(`docs/adr/${name}`)).keys()];
    for (const wanted of ['Context', 'Decision', 'Consequences']) assert.ok(headings.includes(wanted), `docs/adr/${name}: has no "## ${wanted}"`);
  }
});

test('the README starts the server, has runnable examples, and names every part of ./test', () => {
  const readme = read('README.md');
  assert.match(readme, /^cargo run --release -- serve$/m);
  assert.match(readme, /<!-- test: curl -->\n```sh\n/);
  const parts = [...read('test').matchAll(/^readonly (?:ALL|NAMED)_PARTS=\(([^)]+)\)/gm)].flatMap(([, names]) => names.split(' '));
  assert.ok(parts.includes('core') && parts.includes('model'), parts.join(' '));
  const missing = parts.filter((part) => !readme.includes(`\`${part}\``));
  assert.deepEqual(missing, []);
});
