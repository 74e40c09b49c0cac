/**
 * A TCP proxy before the server that cuts connections when it is told to, or after so many answers.
 *
 * Invariant: what was cut off is never delivered later; every connection ends with the proxy.
 */
import { once } from 'node:events';
import { connect, createServer } from 'node:net';

export class Proxy {
  #listener;
  #pairs = new Set();
  /** Connections that were cut so far. */
  cuts = 0;

  /**
   * `answers()`: how many chunks of the server's the next connection carries before it is cut; the one after is lost.
   * `loses(text)`: true for a chunk that is to be lost, and its connection cut.
   */
  static async before(server, { answers = () => Infinity, loses = () => false } = {}) {
    const proxy = new Proxy();
    proxy.#listener = createServer((near) => proxy.#carry(near, connect(server.port, '127.0.0.1'), { left: answers(), loses }));
    proxy.#listener.listen(0, '127.0.0.1');
    await once(proxy.#listener, 'listening');
    proxy.url = `http://127.0.0.1:${proxy.#listener.address().port}`;
    return proxy;
  }

  #carry(near, far, { left, loses }) {
    const pair = { end: () => { near.destroy(); far.destroy(); } };
    this.#pairs.add(pair);
    for (const side of [near, far]) {
      side.setNoDelay(true);
      side.on('error', () => {});
      side.on('close', () => {
        this.#pairs.delete(pair);
        pair.end();
      });
    }
    near.on('data', (chunk) => far.write(chunk));
    far.on('data', (chunk) => {
      if (left > 0 && !loses(chunk.toString('utf8'))) {
        left -= 1;
        near.write(chunk);
        return;
      }
      if (!near.destroyed) this.cuts += 1;
      pair.end();
    });
  }

  /** Cuts everything that is open now. */
  cut() {
    for (const pair of [...this.#pairs]) {
      this.cuts += 1;
      pair.end();
    }
  }

  async stop() {
    this.cut();
    this.#listener.close();
    await once(this.#listener, 'close');
  }
}
