/**
 * An agent that books a trip: a step with a side effect, an approval, and a streamed answer.
 *
 *   CONCH_WORKER_SECRET=whsec_… node examples/trip.js
 *
 * and in Conch's configuration:
 *
 *   [agents.trip]
 *   kind = "http"
 *   url = "http://127.0.0.1:9000/"
 *   secret_env = "CONCH_WORKER_SECRET"
 */
import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { handler } from '../src/index.js';

/** @param {import('../src/index.js').Turn} turn */
async function run(turn) {
  turn.delta('Looking for a train. ');
  const train = await turn.step('find', () => ({ train: 'R 12', price: 48 }));
  const answer = turn.wait('approve', {
    prompt: `Book ${train.train} for ${train.price} EUR?`,
    schema: { type: 'object', properties: { approved: { type: 'boolean' } }, required: ['approved'] },
    expiresInMs: Number(process.env.TRIP_EXPIRES_S ?? 3_600) * 1_000,
  });
  if (answer.expired || !answer.payload?.approved) {
    turn.message('Nothing was booked.');
    return;
  }
  const key = turn.idempotencyKey('book');
  const booking = await turn.step('book', () => book(train.train, key));
  for (const word of `Booked ${train.train} under ${booking.number}. Have a good trip!`.split(' ')) {
    turn.delta(`${word} `);
    await sleep(100);
  }
  turn.state = { trips: (turn.state?.trips ?? 0) + 1 };
}

/** Stands for a call of a booking service, which gets `key` so that a repetition books nothing twice. */
function book(train, key) {
  const digest = createHash('sha256').update(key).digest('hex');
  return { number: `${train.replaceAll(' ', '')}-${digest.slice(0, 4)}` };
}

const secret = process.env.CONCH_WORKER_SECRET;
if (secret === undefined) throw new Error('CONCH_WORKER_SECRET is not set');
const server = createServer(handler({ secret, run }));
server.listen(Number(process.env.CONCH_WORKER_PORT ?? 9000), '127.0.0.1', () => {
  console.log(`listening on port ${/** @type {import('node:net').AddressInfo} */ (server.address()).port}`);
});
