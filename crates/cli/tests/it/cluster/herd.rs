//! The death of a node that owned very many conversations.

use std::time::{Duration, Instant};

use conch_cli::client::{Endpoint, PhoenixSocket};

use super::load::Load;
use super::rig::Cluster;
use crate::node::{message, until};

/// Conversations that the node owns.
const OWNED: usize = 20_000;
/// Of these are watched at the node that is left, so many that at the limit their claims take a while.
const WATCHED: usize = 300;
/// Topics of one socket.
const TOPICS: usize = 50;
/// Claims a second that nobody waits for. Low, so that a busy machine would still do more without the limit.
const RATE: u32 = 20;
/// Of these at once.
const BURST: u32 = 10;
/// Claims that may have been admitted and are not finished yet.
const UNDER_WAY: u32 = 8;
/// What the test's own sender claims.
const SENT: usize = 2;

/// How many conversations a node owned, asked in this time.
struct Sample {
    from: Instant,
    to: Instant,
    owned: usize,
}

impl Sample {
    fn take(cluster: &Cluster, owner: &str) -> Self {
        let from = Instant::now();
        let rows = cluster.rows(&format!("SELECT count(*) FROM conv_head WHERE owner = '{owner}'"));
        Self { from, to: Instant::now(), owned: rows[0].parse().expect("a number") }
    }
}

/// Between which two samples there were more claims than the limit admits, if anywhere: how many, and in which time.
fn excess(samples: &[Sample]) -> Option<(usize, Duration)> {
    let allowed = |time: Duration| f64::from(BURST + UNDER_WAY) + SENT as f64 + f64::from(RATE) * time.as_secs_f64();
    let later = |(index, first): (usize, &Sample)| {
        samples[index + 1..]
            .iter()
            .map(|second| (second.owned - first.owned, second.to - first.from))
            .collect::<Vec<_>>()
    };
    samples.iter().enumerate().flat_map(later).find(|(claims, time)| *claims as f64 > allowed(*time))
}

/// As conversations of the node `a`, which has no task for any of them yet.
fn make_herd(cluster: &Cluster) {
    cluster.rows(&format!(
        "WITH made AS (SELECT 'herd-' || n AS id FROM generate_series(0, {OWNED} - 1) n),
           named AS (SELECT id, encode(substring(sha256(convert_to(id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid AS conv_id FROM made),
           like_it AS (SELECT * FROM conversation JOIN conv_head USING (conv_id) WHERE id = 'room-0'),
           conversations AS (INSERT INTO conversation
             SELECT n.conv_id, n.id, l.kind, l.regions, l.home, l.title, l.agent, l.settings, l.creator, l.created_at
             FROM named n, like_it l)
         INSERT INTO conv_head(conv_id, epoch, owner, gen, last_seq, reserved_to)
           SELECT n.conv_id, 1, l.owner, l.gen, 0, 0 FROM named n, like_it l"
    ));
}

/// Sockets at a node that watch so many of the herd.
fn watch(cluster: &Cluster, node: usize) -> Vec<PhoenixSocket> {
    let token = cluster.token("many");
    let endpoint = Endpoint::new(&format!("http://{}", cluster.places[node].listen), Some(token)).expect("a good URL");
    let one = async |socket: usize| {
        let mut joined = PhoenixSocket::connect(&endpoint).await.expect("connects");
        for topic in socket * TOPICS..(socket + 1) * TOPICS {
            let topic = format!("conversation:herd-{topic}");
            joined.join(&topic, r#"{"after":0}"#, &mut |_| {}).await.expect("joins");
        }
        joined
    };
    cluster.runtime.block_on(futures_util::future::join_all((0..WATCHED / TOPICS).map(one)))
}

/// The node `b`, whose hubs watch what the node `a` owned until it was killed just now.
struct Herd {
    cluster: Cluster,
    _load: Load,
    /// Incarnations.
    dead: String,
    left: String,
    samples: Vec<Sample>,
    _sockets: Vec<PhoenixSocket>,
}

impl Herd {
    /// The node that is left admits so many claims that nobody waits for.
    fn without_its_owner(rate: u32, burst: u32) -> Self {
        let mut cluster = Cluster::planned(2);
        for (place, rate, burst) in [(0, 100_000, 100_000), (1, rate, burst)] {
            let limits = [format!("limits.claims_per_s={rate}"), format!("limits.claims_burst={burst}")];
            cluster.places[place].settings.extend(limits);
        }
        cluster.places[1].settings.push(format!("limits.claims={UNDER_WAY}"));
        cluster.start_all();
        let load = Load::start(&cluster, 1, 0);
        assert_eq!(cluster.owned(&load.rooms[0]), 0);
        make_herd(&cluster);
        let sockets = watch(&cluster, 1);
        let [dead, left] = [0, 1].map(|node| cluster.incarnations(node).remove(0));
        cluster.take(0).kill();
        let samples = vec![Sample::take(&cluster, &left)];
        Self { cluster, _load: load, dead, left, samples, _sockets: sockets }
    }

    /// How many have been taken over by now.
    fn taken(&mut self) -> usize {
        self.samples.push(Sample::take(&self.cluster, &self.left));
        self.samples.last().expect("just taken").owned
    }

    /// Waits until so many are taken over.
    fn wait_for(&mut self, count: usize) {
        until("the takeover", || (self.taken() >= count).then_some(()));
    }

    /// A conversation that is watched and has not been taken over.
    fn waits(&self) -> String {
        let sql = format!(
            "SELECT v.id FROM conversation v JOIN conv_head h USING (conv_id)
             WHERE h.owner = '{}' AND h.epoch > 1 AND v.id LIKE 'herd-%' LIMIT 1",
            self.dead
        );
        self.cluster.rows(&sql).pop().expect("some wait")
    }
}

#[test]
fn herd_at_takeover() {
    let mut herd = Herd::without_its_owner(RATE, BURST);
    herd.wait_for(BURST as usize);
    // Somebody sends to one that is watched and has to wait, and to one that nobody watches.
    let client = herd.cluster.client(1, &herd.cluster.token("sender"));
    for room in [herd.waits(), format!("herd-{}", OWNED - 1)] {
        herd.cluster.runtime.block_on(client.attempt(&message(&room, "now", "now"))).expect("acknowledged at once");
    }
    let taken = herd.taken();
    assert!(taken < WATCHED, "a sender does not wait for the herd, of which {taken} were taken over");
    herd.wait_for(WATCHED);
    assert_eq!(excess(&herd.samples), None, "more claims than the limit admits");
    // What nobody asks for stays where it is.
    let rest = herd.cluster.rows(&format!("SELECT count(*) FROM conv_head WHERE owner = '{}'", herd.dead));
    assert!(rest[0].parse::<usize>().expect("a number") >= OWNED - WATCHED - SENT, "{rest:?}");
}

#[test]
fn without_the_limit_the_herd_claims_at_once() {
    let mut herd = Herd::without_its_owner(100_000, 100_000);
    until("more claims than the limit admits", || {
        herd.taken();
        excess(&herd.samples).map(|_| ())
    });
}
