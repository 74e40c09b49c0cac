/**
 * Times, names and colours as people read them.
 *
 * Invariant: the same subject always has the same colour and initials, on every screen.
 * Deliberately does not: translate; the console speaks English, times follow the reader's locale.
 */
import { h } from './dom.js';

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
const secondsFormat = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const dayFormat = new Intl.DateTimeFormat(undefined, { weekday: 'long', day: 'numeric', month: 'long' });
const yearDayFormat = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'long', year: 'numeric' });
const shortDayFormat = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short' });
const weekdayFormat = new Intl.DateTimeFormat(undefined, { weekday: 'short' });
const fullFormat = new Intl.DateTimeFormat(undefined, { dateStyle: 'full', timeStyle: 'medium' });

export const clockTime = (at) => clockFormat.format(new Date(at));

/** To the second. */
export const clockSeconds = (at) => secondsFormat.format(new Date(at));

export const fullTime = (at) => fullFormat.format(new Date(at));

/** The local calendar day, as a comparable key. */
export function dayOf(at) {
  const date = new Date(at);
  return `${date.getFullYear()}-${date.getMonth() + 1}-${date.getDate()}`;
}

const daysAgo = (at) => {
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  return Math.round((midnight(new Date()) - midnight(new Date(at))) / 86_400_000);
};

/** "Today", "Yesterday", "Monday 3 November", "3 November 2024". */
export function dayTitle(at) {
  const ago = daysAgo(at);
  if (ago === 0) return 'Today';
  if (ago === 1) return 'Yesterday';
  return ago < 300 ? dayFormat.format(new Date(at)) : yearDayFormat.format(new Date(at));
}

/** For the list: "14:02" today, "Mon" this week, else "3 Nov". */
export function briefTime(at) {
  const ago = daysAgo(at);
  if (ago <= 0) return clockTime(at);
  return ago < 7 ? weekdayFormat.format(new Date(at)) : shortDayFormat.format(new Date(at));
}

export function initials(name) {
  const words = name.replace(/^@agent:/, '').split(/[\s._-]+/).filter(Boolean);
  const letters = words.length > 1 ? [...words[0]][0] + [...words.at(-1)][0] : [...(words[0] ?? '?')].slice(0, 1).join('');
  return letters.toUpperCase();
}

/** A hue in degrees, stable per subject. */
export function hue(sub) {
  let hash = 2166136261;
  for (const character of sub) hash = Math.imul(hash ^ character.codePointAt(0), 16777619);
  return (hash >>> 0) % 360;
}

export function avatar(sub, name, { isPresent = false } = {}) {
  const element = h('span.avatar', { 'aria-hidden': 'true', title: name, data: isPresent ? { present: '' } : {} }, initials(name || sub));
  element.style.setProperty('--hue', hue(sub));
  return element;
}

/** "alice", "alice and bob", "alice, bob and 2 others". */
export function names(list) {
  if (list.length <= 2) return list.join(' and ');
  if (list.length === 3) return `${list[0]}, ${list[1]} and ${list[2]}`;
  return `${list[0]}, ${list[1]} and ${list.length - 2} others`;
}

/** A refusal's detail as a sentence: the server writes fragments. */
export function sentence(detail) {
  const text = detail.trim();
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? '' : '.');
}

/** The server counts to 100: beyond that it says so. */
export const unreadLabel = (summary, unread) => (unread > 0 && summary.unread_capped ? `${unread}+` : String(unread));
