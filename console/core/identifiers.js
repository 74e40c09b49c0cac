/**
 * Conversation ids that people can live with.
 *
 * Invariant: every id made here is 1–128 of `A-Z a-z 0-9 . _ : -`; the direct conversation of two people has one id,
 * whoever opens it.
 * Deliberately does not: ask the server whether an id is free; creating is idempotent.
 */
const PATTERN = /^[A-Za-z0-9._:-]{1,128}$/;

export const isConversationId = (id) => PATTERN.test(id);

/** "Water & Tea" → "water-tea"; empty if nothing is left. */
export function slug(title) {
  return title.normalize('NFKD').replace(/[\u0300-\u036f]/g, '').toLowerCase()
    .replace(/[^a-z0-9._:-]+/g, '-').replace(/^-+|-+$/g, '').slice(0, 80);
}

/** The same for (alice, bob) and (bob, alice). A subject that an id cannot carry as it stands is spelt in hex. */
export function directId(a, b) {
  const spelt = (sub) => (/^[A-Za-z0-9._-]{1,40}$/.test(sub) ? sub : `x${fingerprint(sub)}`);
  return `direct:${[spelt(a), spelt(b)].sort().join(':')}`;
}

/** False for the ids that the console itself gives to direct conversations and sessions. */
export const isChannelId = (id) => isConversationId(id) && !/^direct:|^session-[0-9a-f-]{20,}$/.test(id);

/** The subject behind a name of the development login: "Alice Liddell" is `alice-liddell`. */
export const developmentSubject = (name) => name.trim().toLowerCase().replace(/\s/g, '-');

/** A link's or a person's way to name a conversation → its id, or null. */
export function parseConversationId(text) {
  const given = text.trim();
  const linked = given.includes('#/c/') ? decode(given.slice(given.indexOf('#/c/') + 4)) : given.replace(/^#/, '');
  return linked !== null && isConversationId(linked) ? linked : null;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return null;
  }
}

/** The UTF-8 bytes in hex, as far as fits; beyond that a 53-bit hash keeps two long names apart. */
function fingerprint(sub) {
  const hex = [...new TextEncoder().encode(sub)].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  if (hex.length <= 44) return hex;
  let high = 0xdeadbeef;
  let low = 0x41c6ce57;
  for (const byte of new TextEncoder().encode(sub)) {
    high = Math.imul(high ^ byte, 2654435761);
    low = Math.imul(low ^ byte, 1597334677);
  }
  return `${hex.slice(0, 28)}${(high >>> 0).toString(16).padStart(8, '0')}${(low >>> 0).toString(16).padStart(8, '0')}`;
}
