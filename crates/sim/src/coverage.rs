//! What a run went through, so that an uneventful one is not taken for a good one.

use std::fmt;
use std::ops::AddAssign;

use crate::shared::{Shared, lock, shared};

/// Declares the counters once.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Counts of what happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Coverage { $($(#[$doc])* pub $name: u64,)* }

        impl Coverage {
            /// Every counter with its label.
            #[must_use]
            pub fn entries(&self) -> Vec<(&'static str, u64)> {
                vec![$(($label, self.$name),)*]
            }
        }

        impl AddAssign for Coverage {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counters! {
    /// Calls of the store that failed for certain.
    refused_calls = "store calls refused",
    /// Calls that were applied and whose answer was lost.
    lost_answers = "store answers lost",
    /// Calls that were applied after their failure was reported.
    late_calls = "store calls applied late",
    /// Batches that the fence turned away.
    fenced = "batches fenced",
    /// Batches that were written under an older generation.
    rewound = "batches of an older generation",
    /// Processes that were killed.
    kills = "processes killed",
    /// Processes that ended because their lease was gone.
    lost_leases = "processes ended by a lost lease",
    /// Processes that shut down in order.
    shut_downs = "processes shut down",
    /// Processes that were halted in whole or in part.
    halts = "processes halted",
    /// Processes that were stopped, replaced under their name, and continued.
    twins = "processes twinned",
    /// Lifelines whose session was ended while their process lived.
    cut_lifelines = "lifelines cut",
    /// Times that the way between nodes, or all ways to the store, were cut.
    cuts = "networks cut",
    /// Deaths declared because a lease ran out.
    expired = "leases declared expired",
    /// Deaths declared because a process was gone.
    processes_dead = "processes declared dead",
    /// Calls between nodes whose outcome the caller was not told.
    ambiguous_calls = "link calls of unknown outcome",
    /// Calls between nodes that reached nobody, or somebody else.
    unreached_calls = "link calls that reached nobody",
    /// Follow streams that broke on their way.
    broken_streams = "follow streams broken",
    /// Writes that a node passed on to another.
    forwarded_writes = "writes forwarded",
    /// Follow streams that cross the network.
    forwarded_follows = "follows forwarded",
    /// Conversations that one node handed to another.
    hand_overs = "hand-overs",
    /// Hand-overs that the receiver was told of and took up at once.
    adoptions = "adoptions",
    /// Conversations handed over to even out, or because their home was there again.
    rebalanced = "hand-overs in peace",
    /// Claims of what a dead node owned.
    takeovers = "takeovers",
    /// Conversations taken from a task that made no progress.
    wedged = "watchdog releases",
    /// Nodes that drained.
    drains = "drains",
    /// Clocks that jumped.
    clock_jumps = "clock jumps",
    /// Failovers of the store that lost nothing.
    generations = "generations",
    /// Times that a conversation was claimed.
    claims = "claims",
    /// Acks of a message that was in the log before.
    duplicates = "acks of duplicates",
    /// Attempts that were refused.
    refusals = "sends refused",
    /// Attempts without an answer.
    unknown = "sends without an answer",
    /// Sessions that observers had.
    sessions = "sessions",
    /// Sessions whose queue was full at some time.
    slow_sessions = "pushes to a full queue",
    /// Resyncs that observers were told.
    resyncs = "resyncs",
}

impl Coverage {
    /// Calls of the store that did not end as they should.
    #[must_use]
    pub fn failed_calls(&self) -> u64 {
        self.refused_calls + self.lost_answers + self.late_calls
    }
}

/// Counters under way; clones are the same ones.
#[derive(Clone)]
pub struct Tally(Shared<Coverage>);

impl Default for Tally {
    fn default() -> Self {
        Self(shared(Coverage::default()))
    }
}

impl Tally {
    /// Counts.
    pub fn count(&self, what: impl FnOnce(&mut Coverage)) {
        what(&mut lock(&self.0));
    }

    /// The counts so far.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        *lock(&self.0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries().iter().try_for_each(|(label, count)| writeln!(f, "{count:>10}  {label}"))
    }
}
