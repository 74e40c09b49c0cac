/**
 * Several real nodes on one real PostgreSQL server: `a`, `b`, `c`.
 *
 * Invariant: as the server's: only what was started here is ended.
 * Deliberately does not: cut links; what a partition does is tested beside the command line.
 */
import { Postgres } from './postgres.js';
import { freePort, Server } from './server.js';
import { until } from './until.js';

const SECRET = 'the nodes of this test share this secret';
/** A takeover takes as long as a lease at most. */
const SETTINGS = ['lease.ttl_ms=1500', 'lease.beat_ms=500', 'lease.margin_ms=300'];

export class Cluster {
  nodes = [];

  /** `settings`: more of them, as `--set` takes them. */
  static async start(names, settings = []) {
    const cluster = new Cluster();
    cluster.postgres = await Postgres.start();
    const ports = await Promise.all(names.map(freePort));
    const urls = `client_urls=${ports.map((port) => `http://127.0.0.1:${port}`).join()}`;
    const set = [urls, ...SETTINGS, ...settings].flatMap((setting) => ['--set', setting]);
    // One after the other: the first makes the tables.
    for (const [index, name] of names.entries()) {
      const link = await freePort();
      cluster.nodes.push(await Server.start({
        store: cluster.postgres.url, port: ports[index], environment: { CONCH_AUTH_SECRET: SECRET }, more: ['--node', name, '--link-listen', `127.0.0.1:${link}`, ...set],
      }));
    }
    return cluster;
  }

  /** Waits until a node shows so many of them. */
  async seen(node, token, count) {
    await until(async () => (await node.must(token, 'GET', '/v1/nodes')).nodes.length === count, `${count} nodes to be seen`);
  }

  /** The name of the node that owns a conversation, as `node` resolves it. */
  async owner(node, token, id) {
    const { owner } = await node.must(token, 'GET', `/v1/conversations/${id}`);
    return owner?.node ?? null;
  }

  async stop() {
    // The last to go gives back what it owns; no order is needed.
    await Promise.all(this.nodes.map((node) => node.stop()));
    await this.postgres?.stop();
  }
}
