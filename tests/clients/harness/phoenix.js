/**
 * phoenix.js as an application would use it in Node: its own Socket and Channel over `ws`.
 */
import { Socket } from 'phoenix';
import WebSocket from 'ws';

/** A connected-or-connecting stock socket. It reconnects fast, so that tests need not wait for its defaults. */
export function connect(server, token) {
  const socket = new Socket(server.socketUrl, {
    transport: WebSocket, authToken: token, reconnectAfterMs: () => 50, rejoinAfterMs: () => 50, timeout: 10_000,
  });
  socket.connect();
  return socket;
}

/** A push's or join's reply as a promise: rejects with the error response, or 'timeout'. */
export function reply(push) {
  return new Promise((resolve, reject) => {
    push.receive('ok', resolve)
      .receive('error', (response) => reject(Object.assign(new Error(`refused: ${JSON.stringify(response)}`), { response })))
      .receive('timeout', () => reject(new Error('timeout')));
  });
}

/** Every event of a channel in order of arrival, [{event, payload}]; replies and the client's own events left out. */
export function recording(channel) {
  const events = [];
  const onMessage = channel.onMessage;
  channel.onMessage = function record(event, payload, ref) {
    if (!event.startsWith('phx_') && !event.startsWith('chan_')) events.push({ event, payload });
    return onMessage.call(this, event, payload, ref);
  };
  return events;
}

/** Joins behind what was last seen, re-evaluated at each rejoin: the way to resume with the stock client. */
export async function follow(socket, topic, start = {}) {
  const position = { after: start.after ?? 0, log: start.log };
  const channel = socket.channel(topic, () => (position.log === undefined ? { after: position.after } : { ...position }));
  const events = recording(channel);
  const records = [];
  const joins = [];
  const onMessage = channel.onMessage;
  channel.onMessage = function track(event, payload, ref) {
    if (Number.isInteger(payload?.seq) && payload.epoch !== undefined && payload.kind === event) {
      records.push(payload);
      position.after = payload.seq;
    }
    return onMessage.call(this, event, payload, ref);
  };
  const push = channel.join();
  push.receive('ok', (response) => {
    joins.push(response);
    position.log = response.log;
  });
  await reply(push);
  return { channel, events, records, joins, position };
}
