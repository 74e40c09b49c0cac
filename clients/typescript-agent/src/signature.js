/**
 * Standard Webhooks signatures: who calls is the cluster that knows the secret, and the body is what it sent.
 */
import { createHmac, timingSafeEqual } from 'node:crypto';

/** How far the sender's clock may be from ours, in seconds. */
export const TOLERANCE_S = 300;

const PREFIX = 'whsec_';

/** The request is not signed with the secret, or was signed too long ago. */
export class InvalidSignature extends Error {
  name = 'InvalidSignature';
}

/**
 * The value of `webhook-signature` for a request.
 * @param {string} secret @param {string} id @param {number} timestamp seconds @param {Uint8Array} body
 */
export function sign(secret, id, timestamp, body) {
  return `v1,${createHmac('sha256', keyOf(secret)).update(`${id}.${timestamp}.`).update(body).digest('base64')}`;
}

/**
 * Returns if the request is signed with `secret`; throws InvalidSignature, which says what is wrong. The header may hold
 * several signatures while a secret is replaced.
 * @param {string} secret
 * @param {import('node:http').IncomingHttpHeaders} headers
 * @param {Uint8Array} body
 * @param {number} [nowS] seconds since 1970
 */
export function verify(secret, headers, body, nowS = Date.now() / 1000) {
  const [id, stamp, given] = ['id', 'timestamp', 'signature'].map((name) => headers[`webhook-${name}`]);
  if (typeof id !== 'string' || typeof stamp !== 'string' || typeof given !== 'string' || id === '') {
    throw new InvalidSignature('webhook-id, webhook-timestamp and webhook-signature are needed');
  }
  if (!/^[0-9]{1,15}$/.test(stamp)) throw new InvalidSignature('webhook-timestamp: is not a number of seconds');
  const timestamp = Number(stamp);
  if (Math.abs(nowS - timestamp) > TOLERANCE_S) {
    throw new InvalidSignature(`webhook-timestamp: is more than ${TOLERANCE_S} s from this clock`);
  }
  const expected = Buffer.from(sign(secret, id, timestamp, body));
  const fits = given.split(' ').map((one) => Buffer.from(one))
    .some((one) => one.length === expected.length && timingSafeEqual(one, expected));
  if (!fits) throw new InvalidSignature('webhook-signature: does not fit');
}

/** @param {string} secret */
function keyOf(secret) {
  const encoded = secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : '';
  if (!/^[A-Za-z0-9+/]+={0,2}$/.test(encoded)) throw new TypeError(`secret: must be ${PREFIX} and base64`);
  return Buffer.from(encoded, 'base64');
}
