/**
 * The state of the connection, said in one line, only while it is not simply fine.
 *
 * Invariant: a state once shown stays long enough to be read; "try now" is there whenever there is a wait.
 * Deliberately does not: decide the state (core/connection.js does).
 */
import { h, setText } from './dom.js';

const DWELL_MS = 700;

export function bannerView({ onRetry }) {
  const words = h('span.banner-words');
  const button = h('button.text-button', { type: 'button', hidden: true, onclick: onRetry }, 'Try now');
  // The words count down each second: only the state is announced, or the countdown would be read aloud.
  const spoken = h('span.sr-only', { role: 'status' });
  const element = h('aside.banner', { hidden: true, 'aria-label': 'Connection' }, h('span.banner-dot', { 'aria-hidden': 'true' }), words, button, spoken);
  const queue = [];
  let shown = 'starting';
  let retryAt = null;
  let dwell = null;
  let ticking = null;

  const show = (state) => {
    shown = state;
    document.body.dataset.connection = state;
    const isQuiet = state === 'live' || state === 'starting' || state === 'signed_out';
    element.hidden = isQuiet;
    element.dataset.state = state;
    button.hidden = state !== 'disconnected';
    setText(spoken, { disconnected: 'Disconnected.', reconnecting: '', resuming: 'Connected again, catching up.', live: '' }[state] ?? '');
    tick();
    if (isQuiet && state !== 'live') return;
    dwell = setTimeout(() => {
      dwell = null;
      const next = queue.shift();
      if (next !== undefined) show(next);
    }, state === 'live' ? 0 : DWELL_MS);
  };

  function tick() {
    clearTimeout(ticking);
    setText(words, wordsFor(shown, retryAt));
    if (shown === 'disconnected') ticking = setTimeout(tick, 500);
  }

  /** A state that comes while another is dwelling waits its turn; one that is overtaken is not shown at all. */
  const update = (state, nextRetryAt) => {
    retryAt = nextRetryAt;
    const latest = queue.at(-1) ?? shown;
    if (state === latest) return tick();
    if (dwell === null) return show(state);
    // Keep "resuming" on the way to "live"; everything older in the queue is stale.
    if (!(state === 'live' && queue.at(-1) === 'resuming')) queue.length = 0;
    queue.push(state);
  };
  return { element, update };
}

function wordsFor(state, retryAt) {
  if (state === 'reconnecting') return 'Reconnecting…';
  if (state === 'resuming') return 'Connected. Catching up…';
  if (state !== 'disconnected') return '';
  const seconds = Math.ceil(Math.max(0, (retryAt ?? 0) - Date.now()) / 1000);
  return seconds > 1 ? `Disconnected. Trying again in ${seconds} s` : 'Disconnected. Trying again…';
}
