/**
 * The signed-in console: one socket, one inbox, at most one open conversation, and the screen around them.
 *
 * Invariant: the address bar says what is open (`#/`, `#/c/ID` or `#/nodes`); everything shown follows from it and the inbox.
 * Deliberately does not: sign in (main.js does), nor keep more than one conversation joined.
 */
import { Admission } from './core/admission.js';
import { Cluster } from './core/cluster.js';
import { Conversation } from '../clients/typescript/core/conversation.js';
import { connectionState } from './core/connection.js';
import { Inbox } from './core/inbox.js';
import { Owners } from './core/owners.js';
import { Socket } from './core/socket.js';
import { obeyDirectives } from '../clients/typescript/core/directive.js';
import { randomId, systemClock as clock, systemRandom as random } from '../clients/typescript/core/clock.js';
import { developmentSubject, directId, isChannelId, parseConversationId, slug } from './core/identifiers.js';
import { Refusal } from '../clients/typescript/core/errors.js';
import { tokenProtocols } from '../clients/typescript/core/token.js';
import { Titles } from './core/titles.js';
import { bannerView } from './views/banner.js';
import { conversationView } from './views/conversation.js';
import { newConversationDialog, peopleDialog } from './views/dialogs.js';
import { h } from './views/dom.js';
import { nodesView } from './views/nodes.js';
import { sidebarView } from './views/sidebar.js';
import { welcomeView } from './views/welcome.js';

/**
 * `addresses`: of the nodes; after each loss of the connection the next one is tried. `renew()`: a fresh token or a rejection;
 * `onSignedOut(notice)`: the session is over.
 */
export function startApp({ root, session, api, addresses, renew, onSignedOut }) {
  const me = { sub: session.sub, name: session.name };
  const socket = new Socket({
    url: () => `${addresses.currentSocket}/websocket?vsn=2.0.0`, onLost: () => addresses.next(), authorize, WebSocket, clock, random,
  });
  const inbox = new Inbox({ socket });
  const titles = new Titles({ api, me });
  let open = null;
  let page = null;
  let hasBeenLive = false;
  let frame = 0;

  const announcer = h('div.sr-only', { 'aria-live': 'polite' });
  const announce = (text) => { announcer.replaceChildren(h('p', {}, text.slice(0, 400))); };
  const banner = bannerView({ onRetry: () => socket.retryNow() });
  const onNew = () => newConversationDialog({ create, agents: () => api.agents() });
  const sidebar = sidebarView({
    inbox, me, titleOf: (summary) => titles.of(summary), partnerOf: (summary) => titles.partnerOf(summary), onNew, onSignOut: () => end(null),
  });
  const stage = h('main.stage', { id: 'stage' });
  root.replaceChildren(h('a.skip', { href: '#stage', onclick: skip }, 'Skip to the conversation'),
    h('div.shell', {}, sidebar.element, stage), banner.element, announcer);

  /** The token for the next connection. A browser does not say why a socket failed to open, so HTTP is asked. */
  async function authorize({ failedToOpen }) {
    if (session.isStale) await renew();
    else if (failedToOpen) await probe();
    return tokenProtocols(session.token);
  }

  async function probe() {
    try {
      await api.conversations({ limit: 1 });
    } catch (refusal) {
      if (refusal.code === 'unauthenticated') await renew();
      else throw refusal;
    }
  }

  /** The banner hears of every state, however short, and a hidden tab's title tells of news; all else is drawn once a frame. */
  function changed() {
    const state = stateNow();
    hasBeenLive ||= state === 'live';
    banner.update(state, socket.retryAt);
    const unread = inbox.totalUnread;
    const title = open ? `${openTitle()} · Conch` : 'Conch';
    document.title = unread > 0 ? `(${unread}) ${title}` : title;
    frame ||= requestAnimationFrame(update);
  }

  const stateNow = () => connectionState({ socket, inbox, conversation: open?.conversation, hasBeenLive });

  function update() {
    frame = 0;
    const state = stateNow();
    sidebar.update({ selected: open?.conversation.id ?? null, state });
    open?.view.update();
  }

  const openSummary = () => inbox.get(open.conversation.id) ?? open.summary ?? { id: open.conversation.id, kind: null, title: null };
  const openTitle = () => titles.of(openSummary());

  function route() {
    const id = location.hash.startsWith('#/c/') ? parseConversationId(location.hash) : null;
    const isNodes = location.hash === '#/nodes';
    root.firstElementChild.nextElementSibling.dataset.pane = id || isNodes ? 'stage' : 'list';
    if (id !== null && id === open?.conversation.id) return;
    close();
    page?.stop();
    page = null;
    if (isNodes) showNodes();
    else if (id === null) stage.replaceChildren(welcomeView({ me, onNew }));
    else show(id);
    changed();
  }

  function showNodes() {
    page = nodesView({ cluster: new Cluster({ api, clock }), clock, onDrain: (name) => api.drain(name) });
    stage.replaceChildren(page.element);
    page.start();
  }

  /** The link to the nodes is for those alone who may see them. */
  async function lookForNodes() {
    const allowed = await api.nodes().then(() => true, () => false);
    sidebar.allowNodes(allowed);
  }

  function close() {
    if (!open) return;
    open.view.stop();
    open.conversation.stop();
    for (const unsubscribe of open.stops) unsubscribe();
    open = null;
    inbox.reading(null);
  }

  function show(id) {
    const admission = new Admission({ id, inbox, join: () => api.addMember(id, me.sub) });
    const conversation = new Conversation({
      id, me: () => me.sub, api, socket, clock, random, newId: randomId, storage: sessionStorage, storageKey: `conch.outbox.${me.sub}.${id}`,
      beforeSending: () => admission.beforeSending(),
    });
    const summary = inbox.get(id);
    open = { conversation, summary, stops: [conversation.on('status', changed)] };
    open.view = conversationView({
      conversation, me, storage: sessionStorage, announce,
      kind: () => openSummary().kind,
      title: openTitle,
      admission,
      unreadAfter: summary?.unread > 0 ? summary.cursor ?? 0 : null,
      onRead: (seq) => {
        inbox.reading(seq === null ? null : id);
        if (seq !== null) conversation.readThrough(seq);
      },
      onJoin: () => join(id).catch(() => {}),
      onCreate: isChannelId(id) ? () => found(conversation) : null,
      onPeople: () => showPeople(conversation),
      owners: new Owners({ id, api }),
      turnActions: session.may('run', id) ? turnActions(id) : null,
    });
    stage.replaceChildren(open.view.element);
    open.view.start();
    conversation.start();
    if (!summary) lookUp(id);
  }

  function turnActions(id) {
    return {
      cancel: (turn, mode) => obeying(() => api.cancelTurn(id, turn, mode)),
      resolve: (name, payload) => obeying(() => api.resolveAwait(id, name, payload)),
      regenerate: (turn) => {
        const key = randomId();
        return obeying(() => api.regenerateTurn(id, turn, key));
      },
    };
  }

  /** Opened by link, not in my list: its kind and title come from the server. */
  async function lookUp(id) {
    const found = await api.conversation(id).catch(() => null);
    if (found && open?.conversation.id === id) open.summary = found;
    changed();
  }

  function showPeople(conversation) {
    const summary = openSummary();
    peopleDialog({
      title: titles.of(summary),
      load: () => titles.members(conversation.id),
      presence: conversation.presence,
      invite: summary.kind === 'direct' ? null : (name) => obeying(() => api.addMember(conversation.id, subjectOf(name))),
      link: `${location.origin}/#/c/${encodeURIComponent(conversation.id)}`,
    });
  }

  const obeying = (call) => obeyDirectives(call, { clock, random });

  /** Null once it is open; {open()} if a channel has that name already. */
  async function create(kind, text, agent) {
    if (kind === 'join') {
      await join(requireId(parseConversationId(text)));
      return null;
    }
    const { id, body } = plan(kind, text, agent);
    const { isNew } = await obeying(() => api.create(id, body));
    if (kind === 'channel' && !isNew) return { open: () => go(id) };
    go(id);
    return null;
  }

  /** A link led to nothing: a channel is made of its id. */
  async function found(conversation) {
    await obeying(() => api.create(conversation.id, { kind: 'channel', title: conversation.id }));
    if (open?.conversation !== conversation) return;
    lookUp(conversation.id);
    conversation.restart();
  }

  function plan(kind, text, agent) {
    if (kind === 'channel') return { id: requireId(slug(text) || `channel-${randomId().slice(0, 8)}`), body: { kind, title: text } };
    if (kind === 'direct') {
      const other = subjectOf(text);
      if (other === me.sub) throw new Refusal({ code: 'invalid_request', detail: 'A direct conversation needs somebody else.' });
      return { id: requireId(directId(me.sub, other)), body: { kind, members: [me.sub, other] } };
    }
    return { id: `session-${randomId()}`, body: { kind, agent, title: text || `Session with ${agent}` } };
  }

  /** Where people enter by name, they are also called by name; elsewhere a subject is meant as it is written. */
  function subjectOf(name) {
    return session.loginName === null ? name : developmentSubject(name);
  }

  function requireId(id) {
    if (id === null) throw new Refusal({ code: 'invalid_request', detail: 'An id has letters, digits and . _ : - only.' });
    return id;
  }

  async function join(id) {
    await obeying(() => api.addMember(id, me.sub));
    if (open?.conversation.id === id) open.conversation.restart();
    else go(id);
  }

  function go(id) { location.hash = `#/c/${encodeURIComponent(id)}`; }

  function skip(event) {
    event.preventDefault();
    stage.querySelector('textarea, button, a')?.focus();
  }

  /** Alt+↑ and Alt+↓ walk through the list. */
  function onKey(event) {
    if (!event.altKey || (event.key !== 'ArrowUp' && event.key !== 'ArrowDown')) return;
    event.preventDefault();
    const ids = inbox.list.map(({ id }) => id);
    const next = ids[ids.indexOf(open?.conversation.id) + (event.key === 'ArrowDown' ? 1 : -1)];
    if (next !== undefined) go(next);
  }

  function end(notice) {
    close();
    page?.stop();
    inbox.stop();
    for (const unsubscribe of stops) unsubscribe();
    socket.close();
    titles.stop();
    window.removeEventListener('hashchange', route);
    window.removeEventListener('keydown', onKey);
    window.removeEventListener('online', online);
    document.removeEventListener('visibilitychange', returned);
    cancelAnimationFrame(frame);
    document.title = 'Conch';
    onSignedOut(notice);
  }

  /** The network, or the person, is back. */
  const online = () => socket.retryNow();
  const returned = () => { if (document.visibilityState === 'visible') socket.retryNow(); };
  const stops = [
    socket.on('state', ({ state, reason }) => {
      if (state === 'closed' && reason === 'unauthenticated') return end('Your access has ended. Please come in again.');
      changed();
    }),
    inbox.on('change', changed),
    titles.on('change', changed),
  ];
  window.addEventListener('hashchange', route);
  window.addEventListener('keydown', onKey);
  window.addEventListener('online', online);
  document.addEventListener('visibilitychange', returned);
  inbox.start();
  socket.connect();
  route();
  lookForNodes();
}
