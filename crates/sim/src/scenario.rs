//! What one seed plays: how many machines, clients and conversations, and how tight the limits are.

use std::time::Duration;

use conch_core::lease::LeaseTiming;
use conch_server::hub::HubLimits;
use conch_server::node::OwnerLimits;

use crate::dice::Dice;
use crate::machine::{NodeLimits, Proof};

/// The plan of a run.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Machines that run a node.
    pub machines: usize,
    /// Regions that they are spread over.
    pub regions: usize,
    /// What proves that a node is dead.
    pub proof: Proof,
    /// Conversations.
    pub conversations: usize,
    /// How many of them, the first ones, are sessions with the demo agent.
    pub sessions: usize,
    /// People who send.
    pub senders: usize,
    /// Clients of each sender, which send beside each other.
    pub lanes: usize,
    /// Messages of each lane.
    pub messages: u64,
    /// Observers of each conversation.
    pub observers: usize,
    /// How long there is trouble.
    pub trouble: Duration,
    /// How nodes are configured.
    pub limits: NodeLimits,
}

/// The lease of the simulation, in the ratios of the defaults.
pub const TIMING: LeaseTiming = LeaseTiming {
    ttl: Duration::from_millis(1_500),
    beat: Duration::from_millis(500),
    margin: Duration::from_millis(300),
};

impl Scenario {
    /// Draws a plan.
    #[must_use]
    pub fn draw(dice: &mut Dice) -> Self {
        let machines = 1 + dice.index(3);
        let proof = if machines == 1 && dice.chance(500) { Proof::Lock } else { Proof::Lease };
        Self {
            machines,
            regions: if machines > 1 && dice.chance(300) { 2 } else { 1 },
            proof,
            conversations: 1 + dice.index(3),
            sessions: dice.index(2),
            senders: 1 + dice.index(3),
            lanes: 1 + dice.index(2),
            messages: 4 + dice.below(10),
            observers: 1 + dice.index(2),
            trouble: dice.between(Duration::from_secs(5), Duration::from_secs(25)),
            limits: NodeLimits { timing: TIMING, owner: owner_limits(dice), hub: hub_limits(dice) },
        }
    }
}

/// One of a few values, small ones among them, so that limits are met.
fn one_of<T: Copy>(dice: &mut Dice, values: &[T]) -> T {
    values[dice.index(values.len())]
}

fn owner_limits(dice: &mut Dice) -> OwnerLimits {
    let mut limits = OwnerLimits::default();
    limits.sequencer.block = one_of(dice, &[1, 3, 10, 1_000]);
    limits.sequencer.batch_records = one_of(dice, &[1, 4, 512]);
    limits.sequencer.queue_records = one_of(dice, &[2, 4_096]);
    limits.sequencer.recent_keys = one_of(dice, &[1, 64]);
    limits.follower_frames = one_of(dice, &[2, 4_096]);
    limits.commit_batches = one_of(dice, &[1, 512]);
    limits.hibernate_after = one_of(dice, &[Duration::from_millis(400), Duration::from_secs(60)]);
    limits.release_after = one_of(dice, &[Duration::from_secs(1), Duration::from_secs(600)]);
    limits.rebalance_per_s = one_of(dice, &[0, 2, 20]);
    limits.rebalance_every = one_of(dice, &[Duration::from_millis(100), Duration::from_secs(1)]);
    limits.rebalance_idle = one_of(dice, &[Duration::from_millis(100), Duration::from_secs(5)]);
    limits.sequencer.gap = one_of(dice, &[5, 1_000]);
    limits.route_budget = one_of(dice, &[Duration::from_millis(200), Duration::from_secs(5)]);
    limits
}

fn hub_limits(dice: &mut Dice) -> HubLimits {
    HubLimits {
        ring_records: one_of(dice, &[1, 4, 1_024]),
        catch_up_records: one_of(dice, &[8, 10_000, 10_000]),
        catch_up_page: one_of(dice, &[1, 3, 200]),
        linger: one_of(dice, &[Duration::from_millis(300), Duration::from_secs(5)]),
        join_wait: one_of(dice, &[Duration::from_secs(1), Duration::from_secs(6)]),
        ..HubLimits::default()
    }
}
