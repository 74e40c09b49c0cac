/**
 * Where one writes. Enter sends, Shift+Enter makes a new line.
 *
 * Invariant: what was typed is never lost: a draft survives a change of conversation and a reload, and is cleared only
 * once the outbox has taken it.
 * Deliberately does not: send while an input method is composing.
 */
import { h } from './dom.js';
import { icon } from './icons.js';

/** `send(text)`: false if it cannot be taken now. `onTyping()`: at each change that is not empty. */
export function composerView({ storage, draftKey, send, onTyping }) {
  const field = h('textarea', {
    id: 'composer-field', rows: '1', enterkeyhint: 'send', value: storage.getItem(draftKey) ?? '',
  });
  const button = h('button.send', { type: 'submit', title: 'Send', 'aria-label': 'Send' }, icon('send'));
  const note = h('p.composer-note', { role: 'alert' });
  const element = h('form.composer', { onsubmit: submit }, h('div.composer-box', {}, field, button), note);

  const fit = () => {
    field.style.setProperty('height', 'auto');
    field.style.setProperty('height', `${Math.min(field.scrollHeight, 200)}px`);
    button.disabled = field.value.trim() === '';
  };
  const keep = () => {
    if (field.value) storage.setItem(draftKey, field.value);
    else storage.removeItem(draftKey);
  };

  field.addEventListener('input', () => {
    note.textContent = '';
    fit();
    keep();
    if (field.value.trim()) onTyping();
  });
  field.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    element.requestSubmit();
  });

  function submit(event) {
    event.preventDefault();
    const text = field.value.trim();
    if (!text) return;
    if (!send(text)) {
      note.textContent = 'Too many messages are waiting to be sent.';
      return;
    }
    field.value = '';
    keep();
    fit();
    field.focus();
  }

  return {
    element,
    fit,
    /** What to write here, which may be known only later. */
    ask: (words) => {
      field.placeholder = words;
      field.setAttribute('aria-label', words);
    },
    focus: () => field.focus({ preventScroll: true }),
    put: (text) => {
      field.value = field.value ? `${field.value}\n${text}` : text;
      keep();
      fit();
      field.focus();
    },
  };
}
