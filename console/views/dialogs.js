/**
 * Two dialogs: starting (or joining) a conversation, and the people of one.
 *
 * Invariant: native <dialog>s, so focus is trapped and Escape closes; a refusal is shown where it was caused.
 * Deliberately does not: remember anything between openings.
 */
import { h, setText } from './dom.js';
import { icon } from './icons.js';
import { avatar, sentence } from './format.js';
import { slug } from '../core/identifiers.js';

function open(dialog) {
  document.body.append(dialog);
  dialog.addEventListener('close', () => dialog.remove());
  dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
}

const closeButton = (dialog) =>
  h('button.icon-button.close', { type: 'button', 'aria-label': 'Close', onclick: () => dialog().close() }, icon('plus'));

/** Runs `action`; shows its refusal in `error`, keeps the button from being pressed twice. */
async function attempt(form, error, action) {
  const button = form.querySelector('button[type=submit]');
  button.disabled = true;
  setText(error, '');
  try {
    await action();
  } catch (refusal) {
    setText(error, sentence(refusal.detail ?? String(refusal)));
  } finally {
    button.disabled = false;
  }
}

/** The agent that always exists. */
const DEMO = 'demo';

const KINDS = {
  channel: { label: 'Channel', icon: 'hash', field: 'Name', placeholder: 'Tide pool', action: 'Create channel' },
  direct: { label: 'Direct', icon: 'people', field: 'With whom?', placeholder: 'bob', action: 'Start talking' },
  session: { label: 'Agent', icon: 'spark', field: 'About what? (optional)', placeholder: 'Tides and trains', action: 'Start session' },
  join: { label: 'Join', icon: 'link', field: 'Conversation id or link', placeholder: 'tide-pool', action: 'Join' },
};

/**
 * `create(kind, text, agent)`: resolves to null once it is open, to {open()} if another has the name already, or rejects with a
 * Refusal. `agents()`: resolves to [{name}].
 */
export function newConversationDialog({ create, agents }) {
  const error = h('p.form-error', { role: 'alert' });
  const label = h('label', { for: 'new-text' });
  const field = h('input', { id: 'new-text', autocomplete: 'off', spellcheck: 'false', maxlength: '200' });
  const hint = h('p.hint');
  const agent = h('select', { id: 'new-agent' }, h('option', { value: DEMO }, DEMO));
  const agentField = h('div.agent-field', { hidden: true }, h('label', { for: 'new-agent' }, 'Who answers?'), agent);
  agent.addEventListener('change', () => describe());
  const submit = h('button.primary', { type: 'submit' });
  const choices = Object.entries(KINDS).map(([kind, { label: name, icon: picture }]) => h('label.choice', {},
    h('input', { type: 'radio', name: 'kind', value: kind, checked: kind === 'channel', onchange: () => choose(kind) }), icon(picture), h('span', {}, name)));
  let chosen = 'channel';

  const form = h('form', {
    onsubmit: (event) => {
      event.preventDefault();
      attempt(form, error, async () => {
        const existing = await create(chosen, field.value.trim(), agent.value);
        if (existing) offer(existing);
        else dialog.close();
      });
    },
  }, h('fieldset.choices', {}, h('legend.sr-only', {}, 'Kind'), choices), agentField, label, field, hint, error, submit);
  const dialog = h('dialog', { 'aria-labelledby': 'new-title' },
    h('header', {}, h('h2', { id: 'new-title' }, 'New conversation'), closeButton(() => dialog)), form);

  /** Nobody is led into a conversation that they took for a new one. */
  function offer(existing) {
    const openIt = () => {
      dialog.close();
      existing.open();
    };
    error.replaceChildren('A channel with this name exists already. ', h('button.text-button', { type: 'button', onclick: openIt }, 'Open it'));
  }

  function choose(kind) {
    chosen = kind;
    setText(label, KINDS[kind].field);
    setText(submit, KINDS[kind].action);
    setText(error, '');
    field.placeholder = KINDS[kind].placeholder;
    field.required = kind !== 'session';
    agentField.hidden = kind !== 'session' || agent.options.length < 2;
    describe();
  }
  function describe() {
    const id = chosen === 'channel' ? slug(field.value) : '';
    setText(hint, {
      channel: id ? `Its id will be ${id}` : 'Anyone you invite can read and write.',
      direct: 'Exactly two people, for good.',
      session: agent.value === DEMO ? 'A demonstration agent that needs no key and no network.' : 'Whatever is said here, the agent answers.',
      join: 'Ask a member for the link, or type its id.',
    }[chosen]);
  }
  field.addEventListener('input', () => {
    setText(error, '');
    describe();
  });
  choose('channel');
  agents().then((all) => {
    const names = all.map(({ name }) => name).sort((a, b) => Number(a === DEMO) - Number(b === DEMO));
    agent.replaceChildren(...names.map((name) => h('option', { value: name }, name)));
    choose(chosen);
  }, () => {}); // without the list there is the demo agent
  open(dialog);
  field.focus();
}

/** `load()`: resolves to [{sub, name?}]; `presence`: who is here; `invite(name)`: null where nobody can be added. */
export function peopleDialog({ title, load, presence, invite, link }) {
  const error = h('p.form-error', { role: 'alert' });
  const list = h('ul.people-list', { 'aria-label': 'Members' }, h('li.hint', {}, 'Loading…'));
  const dialog = h('dialog', { 'aria-labelledby': 'people-title' },
    h('header', {}, h('h2', { id: 'people-title' }, title), closeButton(() => dialog)), list);

  const show = async () => {
    try {
      const members = await load();
      const present = presence.people.filter(({ sub }) => !members.some((member) => member.sub === sub)).map((person) => ({ ...person, isGuest: true }));
      list.replaceChildren(...[...members, ...present].map((member) => person(member, presence)));
    } catch (refusal) {
      list.replaceChildren(h('li.form-error', {}, sentence(refusal.detail ?? String(refusal))));
    }
  };
  const stop = presence.on('change', show);
  dialog.addEventListener('close', stop);

  if (invite) {
    const field = h('input', { id: 'invite-name', required: true, autocomplete: 'off', autocapitalize: 'none', spellcheck: 'false', maxlength: '200', placeholder: 'bob' });
    const form = h('form', {
      onsubmit: (event) => {
        event.preventDefault();
        attempt(form, error, async () => {
          await invite(field.value.trim());
          field.value = '';
          field.focus();
          await show();
        });
      },
    }, h('label', { for: 'invite-name' }, 'Invite someone'), h('div.inline', {}, field, h('button.primary', { type: 'submit' }, 'Invite')), error);
    dialog.append(form);
  }
  dialog.append(copyLink(link));
  open(dialog);
  show();
}

function person({ sub, name, isGuest }, presence) {
  const isPresent = presence.has(sub);
  return h('li', {}, avatar(sub, name || sub, { isPresent }), h('span.person-name', {}, name || presence.people.find((known) => known.sub === sub)?.name || sub),
    h('span.person-state', {}, isGuest ? 'looking in' : isPresent ? 'here' : ''));
}

function copyLink(link) {
  const button = h('button.text-button', {
    type: 'button',
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(link);
        setText(button, 'Copied');
      } catch {
        setText(button, link);
      }
    },
  }, 'Copy link');
  return h('p.copy-link', {}, button);
}
