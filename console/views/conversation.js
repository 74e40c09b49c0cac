/**
 * The open conversation: its header, the stream, who is here, who is typing, and the composer.
 *
 * Invariant: one instance per opened conversation; `stop()` ends everything that it started.
 * Deliberately does not: know routes or other conversations.
 */
import { h, setText } from './dom.js';
import { icon } from './icons.js';
import { avatar, names, sentence } from './format.js';
import { composerView } from './composer.js';
import { streamView } from './stream.js';

const FACES = 4;

/**
 * `title()`: what it is called now. `admission`: whether I am a member, or will be by writing.
 * `onJoin()`: makes me a member. `onCreate()`: makes a channel of an id that nobody has, null where that cannot be.
 * `onPeople()`: opens the people dialog. `announce(text)`: to screen readers. `owners`: which node runs it. `turnActions`: see turn.js.
 */
export function conversationView({ conversation, kind, me, title, admission, unreadAfter, storage, onRead, onJoin, onCreate, onPeople, announce, owners, turnActions }) {
  const heading = h('h1.stage-title', { tabindex: '-1' });
  const subtitle = h('p.stage-subtitle');
  const faces = h('span.faces');
  const people = h('button.people', { type: 'button', onclick: onPeople }, faces, icon('people'), h('span.sr-only', {}, 'People and invitations'));
  const typing = h('p.typing', { 'aria-live': 'polite' });
  const joinBar = h('div.join-bar', { hidden: true }, h('p', {}, 'You are looking in from outside.'),
    h('button.secondary', { type: 'button', onclick: onJoin }, 'Join'));
  const refusal = h('div.refusal', { role: 'alert', hidden: true });
  const composer = composerView({
    storage, draftKey: `conch.draft.${me.sub}.${conversation.id}`,
    send: (text) => conversation.say(text), onTyping: () => conversation.isTyping(),
  });
  const stream = streamView({
    conversation, me, unreadAfter, onRead, onEdit: (body) => composer.put(body?.text ?? ''), intro: () => intro(kind(), title()),
    turns: { nodeOf: (epoch) => owners.nodeOf(epoch), actions: turnActions },
  });
  const element = h('section.conversation', { data: { kind: kind() ?? '' } },
    h('header.stage-head', {}, h('a.icon-button.back', { href: '#/', 'aria-label': 'All conversations' }, icon('back')),
      h('div.stage-name', {}, heading, subtitle), people),
    refusal, stream.element, joinBar, h('footer.stage-foot', {}, typing, composer.element));

  const update = () => {
    setText(heading, title());
    element.dataset.kind = kind() ?? '';
    composer.ask(invitation(kind(), admission));
    element.dataset.status = conversation.status;
    const isRefused = conversation.status === 'refused';
    joinBar.hidden = isRefused || admission.isMember !== false;
    people.hidden = isRefused;
    refusal.hidden = !isRefused;
    if (isRefused && conversation.refusal) showRefusal(refusal, conversation.refusal, { onJoin, onCreate });
    updatePresence();
    updateTyping();
  };

  function updatePresence() {
    const { presence } = conversation;
    const isLive = conversation.status === 'live';
    const shown = presence.people.slice(0, FACES);
    const signature = `${isLive}:${presence.count}:${shown.map(({ sub }) => sub)}`;
    if (faces.dataset.shows === signature) return;
    faces.dataset.shows = signature;
    const rest = presence.count - shown.length;
    faces.replaceChildren(...(isLive ? shown.map(({ sub, name }) => avatar(sub, name)) : []),
      ...(isLive && rest > 0 ? [h('span.more', {}, shown.length > 0 ? `+${rest}` : `${rest}`)] : []));
    people.title = isLive && shown.length > 0 ? `Here now: ${names(presence.people.map(({ name }) => name))}` : 'People and invitations';
    showSubtitle();
  }

  function showSubtitle() {
    const { presence, status } = conversation;
    const owner = kind() === 'session' && owners.current ? ` · owned by ${owners.current.node}, epoch ${owners.current.epoch}` : '';
    setText(subtitle, status === 'live' ? presenceWords(presence, me) + owner : '');
  }

  function updateTyping() {
    const typers = conversation.typing.names;
    setText(typing, typers.length === 0 ? '' : `${names(typers)} ${typers.length === 1 ? 'is' : 'are'} typing`);
    typing.classList.toggle('is-shown', typers.length > 0);
  }

  const stops = [
    conversation.on('status', update),
    conversation.on('presence', updatePresence),
    conversation.on('typing', updateTyping),
    owners.on('change', () => {
      showSubtitle();
      stream.schedule();
    }),
    conversation.on('records', ({ reason, record }) => { if (reason === 'live') announceRecord(record, me, announce); }),
  ];
  return {
    element,
    update,
    start: () => {
      update();
      stream.draw();
      composer.fit();
      composer.focus();
    },
    stop: () => {
      for (const unsubscribe of stops) unsubscribe();
      stream.stop();
    },
  };
}

function presenceWords(presence, me) {
  if (presence.isCountOnly) return `${presence.count} here`;
  const others = presence.people.filter(({ sub }) => sub !== me.sub);
  if (others.length === 0) return 'Only you are here';
  if (others.length <= 3) return `${names(others.map(({ name }) => name))} ${others.length === 1 ? 'is' : 'are'} here`;
  return `${presence.count} people are here`;
}

function announceRecord(record, me, announce) {
  if (record.kind === 'message' && record.sender !== me.sub) announce(`${record.name || record.sender.replace('@agent:', '')}: ${record.body?.text ?? ''}`);
  if (record.kind === 'turn.started') announce('The agent is answering.');
  if (record.kind === 'turn.failed') announce('The answer failed.');
  if (record.kind === 'await.opened') announce(`The agent asks: ${record.body?.prompt ?? 'it needs an answer.'}`);
}

function intro(kind, title) {
  const words = {
    session: ['This is where it begins.', 'Whatever is said here, the agent answers. Every step of it is kept.'],
    direct: [`You and ${title}`, 'Only the two of you are here.'],
  }[kind] ?? [`The beginning of ${title}`, 'Invite people with the button at the top right, or send them the link.'];
  return [h('strong', {}, words[0]), h('span', {}, words[1])];
}

function invitation(kind, { joinsByWriting }) {
  if (joinsByWriting) return 'Write a message to join';
  return kind === 'session' ? 'Ask the agent' : 'Write a message';
}

/** One refusal, what it means, and the ways out of it. Drawn once: a button must not be replaced while it is pressed. */
function showRefusal(element, refusal, { onJoin, onCreate }) {
  if (element.shows === refusal) return;
  element.shows = refusal;
  const isMissing = refusal.code === 'not_found';
  const words = isMissing ? 'There is no conversation here.' : refusal.code === 'forbidden' ? 'This conversation is closed to you.' : 'This cannot be opened.';
  const error = h('p.form-error', { role: 'alert' });
  const create = () => onCreate().catch(({ detail }) => setText(error, sentence(detail ?? 'It could not be created')));
  const button = (label, onclick) => h('button.secondary', { type: 'button', onclick }, label);
  element.replaceChildren(h('strong', {}, words), isMissing ? '' : h('p', {}, sentence(refusal.detail)),
    h('div.refusal-actions', {}, h('a.secondary', { href: '#/' }, 'Back'),
      isMissing && onCreate && button('Create it', create), refusal.code === 'closed' && button('Join again', onJoin)), error);
}
