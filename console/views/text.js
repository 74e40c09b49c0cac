/**
 * A message's words as nodes: links, `code`, **strong** and fenced code; all else as it was typed.
 *
 * Invariant: every character of the source is shown (but for the marks that were understood), and only as text.
 * Deliberately does not: be Markdown; a chat message is no document.
 */
import { h } from './dom.js';

const FENCE = /```([\w+-]*)\n([\s\S]*?)(?:\n```|```|$)/g;
const INLINE = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|(https?:\/\/[^\s<>"']+)/g;

export function rich(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(FENCE)) {
    nodes.push(...inline(text.slice(end, match.index).replace(/\n$/, '')));
    nodes.push(h('pre', { tabindex: '0' }, h('code', {}, match[2])));
    end = match.index + match[0].length;
    if (text[end] === '\n') end += 1;
  }
  nodes.push(...inline(text.slice(end)));
  return nodes;
}

function inline(text) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index));
    const [whole, code, strong, link] = match;
    end = match.index + whole.length;
    if (code) nodes.push(h('code', {}, code));
    else if (strong) nodes.push(h('strong', {}, strong));
    else {
      const trailing = /[.,;:!?)\]]+$/.exec(link)?.[0] ?? '';
      const address = link.slice(0, link.length - trailing.length);
      nodes.push(h('a', { href: address, target: '_blank', rel: 'noopener noreferrer' }, address), trailing);
    }
  }
  nodes.push(text.slice(end));
  return nodes.filter((node) => node !== '');
}
