//! What every part of a running node shares: who it is, its store, its lease's validity and its limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conch_core::death::Own;
use conch_core::ids::{ConvRef, Incarnation, NodeName, Region};
use conch_core::lease::LeaseTiming;
use conch_core::sequencer::{Moment, Reign, SequencerLimits};
use conch_core::time::Monotonic;
use conch_store::{Held, Store};

use crate::cluster::nodes::Nodes;
use crate::config::Config;
use crate::events::{Event, Events, WhyReleased};
use crate::link::Peer;
use crate::metrics::Metrics;
use crate::pressure::Pressure;
use crate::rules::Rules;
use crate::seams::Seams;

/// Until when this incarnation may act on its lease. Written by the heartbeat alone, read before every assignment and ack.
#[derive(Debug, Default)]
pub struct Validity {
    /// For the many who ask all the time.
    until: AtomicU64,
    own: Mutex<Own>,
}

impl Validity {
    /// The end of validity; in the past when the lease is lost or was never had.
    #[must_use]
    pub fn until(&self) -> Monotonic {
        Monotonic(self.until.load(Ordering::Acquire))
    }

    /// How this node stands, for the judgement of others.
    #[must_use]
    pub fn own(&self) -> Own {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how this node stands. The heartbeat's alone.
    pub fn stand(&self, own: Own) {
        *self.own.lock().unwrap_or_else(PoisonError::into_inner) = own;
        self.until.store(own.valid_until.0, Ordering::Release);
    }
}

/// Bounds and times of ownership on a node; see docs/CONFIG.md.
#[derive(Debug, Clone, Copy)]
pub struct OwnerLimits {
    /// Of each conversation's sequencer.
    pub sequencer: SequencerLimits,
    /// Commands that may wait for one owner.
    pub commands: usize,
    /// Frames that may wait for one follower; above it the follower is dropped and comes back.
    pub follower_frames: usize,
    /// Sessions over all gateways from which on presence is a count.
    pub presence_threshold: usize,
    /// Batches that may wait for the group commit.
    pub commit_queue: usize,
    /// Most batches of one group commit.
    pub commit_batches: usize,
    /// Group commits under way at once.
    pub commits: usize,
    /// Idle for this long and not followed: its memory goes.
    pub hibernate_after: Duration,
    /// Idle for this long: its lease goes too.
    pub release_after: Duration,
    /// Conversations a second that are handed over to even out, and likewise taken; 0: none.
    pub rebalance_per_s: u32,
    /// Time between two looks at whether that is needed.
    pub rebalance_every: Duration,
    /// Nothing written for this long, and no turn: it may be handed over to even out.
    pub rebalance_idle: Duration,
    /// Owners elsewhere that are remembered.
    pub known_owners: usize,
    /// Claims under way at once.
    pub claims: usize,
    /// Claims a second that nobody waits for.
    pub claims_per_s: u32,
    /// Of these at once.
    pub claims_burst: u32,
    /// How long a gateway itself waits and retries before it answers with a directive.
    pub route_budget: Duration,
    /// How long a turn whose agent this node lacks waits for a node that has it.
    pub agent_wait: Duration,
}

impl Default for OwnerLimits {
    fn default() -> Self {
        Self {
            sequencer: SequencerLimits::default(),
            commands: 4_096,
            follower_frames: 4_096,
            presence_threshold: conch_core::presence::COUNT_THRESHOLD,
            commit_queue: 1_024,
            commit_batches: 512,
            commits: 2,
            hibernate_after: Duration::from_secs(60),
            release_after: Duration::from_secs(600),
            rebalance_per_s: 20,
            rebalance_every: Duration::from_secs(1),
            rebalance_idle: Duration::from_secs(5),
            known_owners: 65_536,
            claims: 64,
            claims_per_s: 500,
            claims_burst: 100,
            route_budget: Duration::from_secs(5),
            agent_wait: Duration::from_secs(60),
        }
    }
}

/// A running node.
pub struct Node {
    /// This registration.
    pub me: Incarnation,
    /// The operator's name for it.
    pub name: NodeName,
    /// Where it runs.
    pub region: Region,
    /// Leases and records.
    pub store: Arc<dyn Store>,
    /// Time, tasks, randomness.
    pub seams: Seams,
    /// The lease's times.
    pub timing: LeaseTiming,
    /// Until when the lease may be acted upon.
    pub validity: Validity,
    /// Bounds of ownership.
    pub limits: OwnerLimits,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How hard it works, and what it sheds.
    pub pressure: Pressure,
    /// The nodes, as membership last saw them.
    pub nodes: Nodes,
    /// What happened to ownership lately.
    pub events: Events,
    /// The rules that hold: in the product, all.
    pub rules: Rules,
}

impl Node {
    /// This process as a node of a configuration. It has no lease yet, and keeps all rules.
    #[must_use]
    pub fn new(config: &Config, store: Arc<dyn Store>, seams: Seams) -> Self {
        Self {
            me: seams.incarnation(),
            name: config.node.clone(),
            region: config.region.clone(),
            store,
            timing: config.lease.timing(),
            validity: Validity::default(),
            limits: config.owner_limits(),
            metrics: Arc::new(Metrics::new()),
            pressure: Pressure::default(),
            nodes: Nodes::default(),
            events: Events::new(Arc::clone(&seams.clock)),
            rules: Rules::default(),
            seams,
        }
    }

    /// Now, and until when the lease is certain.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment { now: self.seams.now(), valid_until: self.validity.until() }
    }

    /// Gives up a lease with nothing under way. One that stays runs out with the node's own.
    pub(crate) async fn release(&self, conversation: &ConvRef, reign: &Reign, why: WhyReleased) {
        let (id, epoch) = (&conversation.id, reign.epoch);
        let held = Held { conversation: conversation.key, epoch, me: self.me };
        match self.store.release(&held, reign.first_seq).await {
            Ok(true) => self.events.record(Event::Released { conversation: id.clone(), epoch, why }),
            // Somebody else has it by now.
            Ok(false) => {}
            Err(error) => tracing::warn!(conversation = %id, %epoch, %error, "a lease was not released"),
        }
    }

    /// The other live nodes, as this one last saw them.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        self.nodes.peers(self.me, self.seams.now())
    }
}
