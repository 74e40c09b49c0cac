import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Addresses } from '../../../clients/typescript/core/addresses.js';

test('one address is used at a time, and each loss turns to the next, round and round', () => {
  const addresses = new Addresses(['http://one:1/', 'https://two/base']);
  const stock = `${addresses.socket}/websocket?vsn=2.0.0`;
  const used = [0, 1, 2].map(() => {
    const now = [addresses.current, addresses.at(stock)];
    addresses.next();
    return now;
  });
  assert.deepEqual(used, [
    ['http://one:1', 'ws://one:1/socket/websocket?vsn=2.0.0'],
    ['https://two/base', 'wss://two/base/socket/websocket?vsn=2.0.0'],
    ['http://one:1', 'ws://one:1/socket/websocket?vsn=2.0.0'],
  ]);
  const alone = new Addresses('http://alone');
  alone.next();
  assert.equal(alone.current, 'http://alone');
});

test('what is no address, none, and too many are refused by name', () => {
  assert.throws(() => new Addresses('chat.example'), /url: "chat\.example" is not an http: or https: address/);
  assert.throws(() => new Addresses([]), /url: 0 addresses; 1 to 16/);
  assert.throws(() => new Addresses(Array.from({ length: 17 }, () => 'http://a')), /url: 17 addresses; 1 to 16/);
});
