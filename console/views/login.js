/**
 * The door: a name in development mode, else a token to paste.
 *
 * Invariant: a token is asked for where the server gives none out by name, as it says beforehand, or by a 404.
 * Deliberately does not: keep anything; the session does.
 */
import { h } from './dom.js';
import { sentence } from './format.js';
import { mark } from './icons.js';

/**
 * `enter(name)` and `paste(token)` sign in or reject with a Refusal; `notice`: why one is here again, or null.
 * `expectsToken`: the server is known to give none out by name.
 */
export function loginView({ enter, paste, notice = null, suggestion = '', expectsToken = false }) {
  const error = h('p.form-error', { role: 'alert', id: 'login-error' });
  const card = h('main.login', {}, h('div.login-card', {}, mark(), h('h1', {}, 'Conch')));
  const show = (form) => {
    card.querySelector('form')?.remove();
    error.textContent = '';
    card.firstElementChild.append(form);
    form.querySelector('input, textarea').after(error);
    form.querySelector('input, textarea').focus();
  };

  const submit = (action, field) => async (event) => {
    event.preventDefault();
    const button = event.submitter ?? event.target.querySelector('button');
    error.textContent = '';
    button.disabled = true;
    try {
      await action(field.value.trim());
    } catch (refusal) {
      if (refusal.status === 404 && action === enter) return show(tokenForm());
      error.textContent = sentence(refusal.detail ?? String(refusal));
      field.focus();
    } finally {
      button.disabled = false;
    }
  };

  const nameForm = () => {
    const input = h('input', {
      id: 'login-name', name: 'name', required: true, autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false',
      placeholder: 'alice', value: suggestion, 'aria-describedby': 'login-error',
    });
    return h('form', { onsubmit: submit(enter, input) },
      h('label', { for: 'login-name' }, 'What should people call you?'),
      input,
      h('button.primary', { type: 'submit' }, 'Enter'),
      h('p.hint', {}, 'Each tab can be someone else.'));
  };

  const tokenForm = () => {
    const input = h('textarea', {
      id: 'login-token', name: 'token', required: true, rows: '4', autocomplete: 'off', spellcheck: 'false', placeholder: 'eyJ…',
      'aria-describedby': 'login-error',
    });
    return h('form', { onsubmit: submit(paste, input) },
      h('label', { for: 'login-token' }, 'Paste an access token'),
      input,
      h('button.primary', { type: 'submit' }, 'Enter'),
      h('p.hint', {}, 'Whoever runs this server makes one with ', h('code', {}, 'conch token --sub NAME'), '. It stays in this tab.'));
  };

  if (notice) card.firstElementChild.append(h('p.notice', { role: 'status' }, notice));
  return { element: card, start: () => show(expectsToken ? tokenForm() : nameForm()) };
}
