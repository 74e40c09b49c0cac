/**
 * A message's words in one plain line, for the list of conversations.
 *
 * Invariant: only marks that are Markdown emphasis or code are dropped; arithmetic and names_with_underscores stay whole.
 * Deliberately does not: look at more than the beginning of a long text.
 */
const LOOKED_AT = 400;
const SHOWN = 120;

const FENCE = /```[\w+-]*\n([\s\S]*?)(?:```|$)/g;
/** A mark touches the words inside it, and no word outside: "12 * 34" and "2*3*4" have none. */
const MARKED = /`([^`]+)`|(?<![\w*])(\*{1,3}|_{1,3})(?![\s*_])(.*?[^\s*_])\2(?![\w*])/g;

export function plainLine(text) {
  const line = text.slice(0, LOOKED_AT).replace(FENCE, ' $1 ').replace(/\s+/g, ' ').trim();
  return unmarked(line).slice(0, SHOWN);
}

const unmarked = (line) => line.replaceAll(MARKED, (_, code, mark, words) => code ?? unmarked(words));
