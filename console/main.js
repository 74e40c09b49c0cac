/**
 * The entry: finds out where the cluster's nodes are and how one signs in, and decides between the door and the console.
 *
 * Invariant: exactly one of the two is on screen. The node that the page came from is asked first.
 * Deliberately does not: anything else.
 */
import { startApp } from './app.js';
import { Api } from './core/api.js';
import { Addresses } from '../clients/typescript/core/addresses.js';
import { systemClock as clock } from '../clients/typescript/core/clock.js';
import { Refusal } from '../clients/typescript/core/errors.js';
import { Session } from './core/session.js';
import { loginView } from './views/login.js';

/** The page's own node is one of the sixteen. */
const MOST_OTHERS = 15;

const root = document.getElementById('app');
const session = new Session({ storage: sessionStorage, clock });
const settings = await cluster();
const others = settings.urls.filter((url) => url !== location.origin).slice(0, MOST_OTHERS);
const addresses = new Addresses([location.origin, ...others]);
const api = new Api({ fetch: (...request) => fetch(...request), token: () => session.token, clock, base: () => addresses.current });

/** What is to be known before anybody has signed in: where the nodes are, and whether a name or a token is asked for. */
async function cluster() {
  try {
    return await (await fetch('/console.json')).json();
  } catch {
    return { urls: [], login: null };
  }
}

async function enter(name) {
  session.accept(await api.login(name), name);
  showConsole();
}

async function paste(token) {
  if (!session.paste(token)) throw new Refusal({ code: 'invalid_request', detail: 'This does not look like an access token.' });
  try {
    await api.conversations({ limit: 1 });
  } catch (refusal) {
    session.end();
    throw refusal;
  }
  showConsole();
}

/** A development login can be had again; a pasted token cannot. */
async function renew() {
  const name = session.loginName;
  if (name === null) throw new Refusal({ code: 'unauthenticated' });
  try {
    session.accept(await api.login(name), name);
  } catch (refusal) {
    throw refusal.status === 404 ? new Refusal({ code: 'unauthenticated' }) : refusal;
  }
}

function showDoor(notice = null) {
  const suggestion = session.loginName ?? '';
  const expectsToken = settings.login === 'token' || (session.isSignedIn && session.loginName === null);
  session.end();
  document.body.dataset.connection = 'signed_out';
  const door = loginView({ enter, paste, notice, suggestion, expectsToken });
  root.replaceChildren(door.element);
  door.start();
}

function showConsole() {
  startApp({ root, session, api, addresses, renew, onSignedOut: showDoor });
}

if (session.isSignedIn) showConsole();
else showDoor();
