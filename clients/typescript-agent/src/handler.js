/**
 * The HTTP side of a worker: a request handler for `http.createServer`, or for anything that hands over Node's request and
 * response.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { InvalidSignature, sign, verify } from './signature.js';
import { Parked, Stale, Turn } from './turn.js';

/** Most bytes of a request: the journal of a turn has at most 16 MiB. */
const BODY_MAX_BYTES = 32 * 1024 * 1024;
const FIELDS = ['conversation', 'turn', 'epoch', 'attempt', 'messages', 'journal', 'callback'];

/**
 * @param {{secret: string, run: (turn: Turn) => void | Promise<void>, onError?: (error: unknown) => void}} agent
 *   `secret`: shared with Conch, `whsec_…`. `onError` is told of what `run` threw; the console is by default.
 * @returns {(request: import('node:http').IncomingMessage, response: import('node:http').ServerResponse) => Promise<void>}
 */
export function handler({ secret, run, onError = console.error }) {
  sign(secret, '', 0, new Uint8Array()); // a secret that is none is refused now
  // Node's server does not wait for the promise, so a rejection would end the whole process.
  return (request, response) => take(request, response).catch((error) => {
    onError(error);
    response.destroy();
  });

  /** @param {import('node:http').IncomingMessage} request @param {import('node:http').ServerResponse} response */
  async function take(request, response) {
    const body = await read(request, response);
    if (body === null) return;
    try {
      verify(secret, request.headers, body);
    } catch (error) {
      if (!(error instanceof InvalidSignature)) throw error;
      refuse(response, 401, error.message);
      return;
    }
    const turn = parse(body);
    if (turn === null) refuse(response, 400, 'body: is not a turn');
    else await answer(turn, run, response, onError);
  }
}

/**
 * @param {import('./turn.js').TurnRequest} request
 * @param {(turn: Turn) => void | Promise<void>} run
 * @param {import('node:http').ServerResponse} response
 * @param {(error: unknown) => void} onError
 */
async function answer(request, run, response, onError) {
  response.writeHead(200, { 'content-type': 'application/x-ndjson' });
  response.flushHeaders();
  // An owner that hung up reads nothing more; its steps are refused as stale.
  const emit = (/** @type {Record<string, unknown>} */ line) => void (response.destroyed || response.write(`${JSON.stringify(line)}\n`));
  const turn = new Turn(request, emit, { fetch: globalThis.fetch, sleep: (ms) => sleep(ms) });
  try {
    await run(turn);
    emit({ type: 'done', state: turn.state });
    response.end();
  } catch (error) {
    if (error instanceof Parked || error instanceof Stale) {
      response.end();
      return;
    }
    onError(error);
    // Without `done` and without the stream's end, the owner does not take this for an answer.
    response.destroy();
  }
}

/**
 * @param {import('node:http').IncomingMessage} request
 * @param {import('node:http').ServerResponse} response
 * @returns {Promise<Buffer | null>}
 */
async function read(request, response) {
  if (request.method !== 'POST') {
    refuse(response, 405, 'method: must be POST');
    return null;
  }
  const pieces = [];
  let length = 0;
  try {
    for await (const piece of request) {
      length += piece.length;
      if (length > BODY_MAX_BYTES) {
        refuse(response, 413, `body: is longer than ${BODY_MAX_BYTES} bytes`);
        return null;
      }
      pieces.push(piece);
    }
  } catch {
    return null; // whoever sent it hung up in its middle
  }
  return Buffer.concat(pieces);
}

/** @param {Buffer} body @returns {import('./turn.js').TurnRequest | null} */
function parse(body) {
  try {
    const turn = JSON.parse(body.toString());
    return FIELDS.every((field) => field in turn) ? turn : null;
  } catch {
    return null;
  }
}

/** @param {import('node:http').ServerResponse} response @param {number} status @param {string} detail */
function refuse(response, status, detail) {
  response.writeHead(status, { 'content-type': 'application/json', connection: 'close' });
  response.end(JSON.stringify({ detail }));
}
