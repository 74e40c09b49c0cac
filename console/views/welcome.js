/**
 * The stage while nothing is open.
 *
 * Invariant: says what can be done next.
 * Deliberately does not: list conversations; the sidebar does.
 */
import { h } from './dom.js';
import { mark } from './icons.js';

export function welcomeView({ me, onNew }) {
  return h('section.welcome', {}, mark(), h('h1', {}, `Hello, ${me.name}`),
    h('p', {}, 'Pick a conversation, or start one.'),
    h('button.primary', { type: 'button', onclick: onNew }, 'New conversation'));
}
