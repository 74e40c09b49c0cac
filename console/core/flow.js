/**
 * The reading order of a conversation: records, turns and messages on their way, as a flat list of keyed items.
 *
 * Invariant: an item keeps its key from the moment it is written (client_msg_id) until its record replaces it, so that a
 * view can keep the element; records keep the order of the log; what is on its way comes last, what was refused stays
 * where it was refused.
 * Deliberately does not: render, nor show records that carry nothing for people (their seq still counts).
 */
import { turnOf } from '../../clients/typescript/core/turns.js';

const GROUP_MS = 5 * 60_000;

/**
 * Items: {key, type: 'day', at} · {key, type: 'unread'} · {key, type: 'message', record, isOwn, isContinued}
 * · {key, type: 'pending', entry, isContinued} · {key, type: 'turn', turn, isLatest?: nothing was said after it} · {key, type: 'event', record}.
 * `unreadAfter`: the cursor at opening, or null for no "new" line. `dayOf(at)`: the local calendar day of a time.
 */
export function flow({ records, turns, entries, me, unreadAfter = null, dayOf }) {
  const items = [];
  const placed = new Set();
  let day = null;
  let isUnreadMarked = unreadAfter === null;
  let previous = null;

  const startDay = (at) => {
    if (dayOf(at) === day) return;
    day = dayOf(at);
    items.push({ key: `day:${day}`, type: 'day', at });
    previous = null;
  };

  const placeEntry = (entry) => {
    const isContinued = previous?.sender === me && entry.created_at - Date.parse(previous.at) < GROUP_MS;
    items.push({ key: `c:${entry.client_msg_id}`, type: 'pending', entry, isContinued });
    previous = { sender: me, at: timeOf(entry) };
  };
  const isPlaced = ({ state, after }) => state === 'failed' && Number.isSafeInteger(after);
  const refused = entries.filter(isPlaced).sort((a, b) => a.after - b.after);

  for (const record of records) {
    while (refused.length > 0 && refused[0].after < record.seq) {
      const entry = refused.shift();
      if (dayOf(timeOf(entry)) === dayOf(record.at)) startDay(record.at);
      placeEntry(entry);
    }
    const turn = turnOf(record);
    if (turn !== null && placed.has(turn)) continue;
    if (turn === null && !isShown(record)) continue;
    // An input that joined another turn has no answer of its own.
    if (turn !== null && turns.get(turn)?.into !== null && turns.get(turn)?.startedAt === null) continue;
    startDay(record.at);
    if (!isUnreadMarked && record.seq > unreadAfter && record.sender !== me) {
      items.push({ key: 'unread', type: 'unread' });
      isUnreadMarked = true;
      previous = null;
    }
    if (turn !== null) {
      placed.add(turn);
      items.push({ key: `t:${turn}`, type: 'turn', turn: turns.get(turn) });
      previous = null;
    } else if (record.kind === 'event') {
      items.push({ key: `e:${record.seq}`, type: 'event', record });
      previous = null;
    } else {
      const isOwn = record.sender === me;
      const key = isOwn && record.client_msg_id ? `c:${record.client_msg_id}` : `m:${record.seq}`;
      items.push({ key, type: 'message', record, isOwn, isContinued: continues(previous, record) });
      previous = record;
    }
  }
  // What was rolled back is as if it had not been: the answer before it is the latest again.
  const last = items.findLast(({ type, turn }) => type === 'message' || (type === 'turn' && turn?.mode !== 'rollback'));
  if (last?.type === 'turn' && entries.length === 0) last.isLatest = true;
  for (const turn of turns.liveOnly(placed)) items.push({ key: `t:${turn.id}`, type: 'turn', turn });
  for (const entry of [...refused, ...entries.filter((entry) => !isPlaced(entry))]) placeEntry(entry);
  return items;
}

const timeOf = (entry) => new Date(entry.created_at).toISOString();

/** That a turn is run again shows by itself. */
const isShown = ({ kind, body }) => kind === 'message' || (kind === 'event' && body?.type !== 'regenerate');

const continues = (previous, record) =>
  previous?.sender === record.sender && Date.parse(record.at) - Date.parse(previous.at) < GROUP_MS;
