//! One suite that every backend passes: the contracts of [`crate::LeaseStore`] and [`crate::LogStore`], a case a sentence.
//!
//! A backend writes a [`Fixture`] and one line, [`crate::conformance_tests!`], which makes a `#[test]` of every case.
//! [`script`] plays one sequence of calls against two stores, to compare their answers.
//!
//! Invariant: a case judges by answers alone, holds for any clock that moves as the fixture says, and reports the first
//! broken sentence as a [`Violation`] instead of panicking, so that a test can also demand that a case fails.
//!
//! Deliberately absent: speed, durability across a restart and concurrency of several processes; each backend shows these
//! by itself.

mod append;
mod conversation;
mod dedup;
mod due;
mod fixture;
mod handover;
mod lease;
mod membership;
mod ownership;
mod range;
pub mod script;
mod summary;
#[cfg(test)]
mod tests;
mod world;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;

pub use self::fixture::MemoryFixture;
use self::world::World;
use crate::{Store, StoreError};

/// A fresh store and its clock.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// The store; empty at first, and the same at each call.
    fn store(&self) -> &dyn Store;

    /// Moves the store's clock by this many milliseconds; a negative number sets it back.
    async fn move_clock(&self, by_ms: i64);

    /// Puts the store into a higher generation without losing anything. False: this backend cannot do that here, and
    /// the cases about generations pass.
    async fn raise_generation(&self) -> bool {
        false
    }

    /// How this backend's epochs follow each other.
    fn epochs(&self) -> Epochs {
        Epochs::Consecutive
    }

    /// What becomes of a claim against an owner that is registered, which nobody should make.
    fn steals(&self) -> Steals {
        Steals::Granted
    }
}

/// How the epochs of a conversation follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epochs {
    /// From the generation's first one on, by one; a new generation skips a million.
    Consecutive,
    /// Each is above the one before.
    Rising,
}

/// What becomes of a claim against a registered owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steals {
    /// It wins, and the fence makes that harmless.
    Granted,
    /// It is lost.
    Refused,
}

/// A sentence of the contract that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What was expected and what was seen.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<StoreError> for Violation {
    fn from(error: StoreError) -> Self {
        Self { detail: format!("a call failed: {error}") }
    }
}

/// How a case ends.
type Verdict<T = ()> = Result<T, Violation>;

type CaseFuture<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// Its name: the sentence it checks.
    pub name: &'static str,
    run: for<'a> fn(&'a World<'a>) -> CaseFuture<'a>,
}

impl Case {
    /// The case with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.name == name)
    }

    /// Runs it on a fresh store.
    ///
    /// # Errors
    /// The first sentence that does not hold.
    pub async fn run(&self, fixture: &dyn Fixture) -> Result<(), Violation> {
        let world = World::new(fixture);
        (self.run)(&world).await
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Fails the case unless the condition holds.
macro_rules! check {
    ($condition:expr, $($sentence:tt)+) => {
        if !$condition {
            let sentence = format!($($sentence)+);
            return Err($crate::conformance::Violation { detail: format!("{sentence} ({}:{})", file!(), line!()) });
        }
    };
}
pub(crate) use check;

/// Fails the case unless both are equal.
macro_rules! check_eq {
    ($seen:expr, $expected:expr, $($sentence:tt)+) => {
        match (&$seen, &$expected) {
            (seen, expected) => $crate::conformance::check!(
                seen == expected,
                "{}: saw {seen:?}, expected {expected:?}",
                format!($($sentence)+)
            ),
        }
    };
}
pub(crate) use check_eq;

/// Calls a macro with its arguments and the names of all cases. The one list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! with_conformance_cases {
    ([$($macro:tt)+] $($arguments:tt)*) => {
        $($macro)+! { ($($arguments)*)
            // Node leases.
            a_registered_node_is_listed, an_incarnation_registers_once, a_renewal_extends_the_lease_and_raises_the_beat,
            an_expired_row_is_renewed, a_gone_row_is_never_renewed, leaving_removes_the_row_once, draining_is_kept,
            death_needs_the_expiry, death_needs_the_beat, a_clock_set_back_ends_the_lease,
            // Ownership.
            an_unknown_conversation_resolves_to_nothing, several_resolve_as_each_does, the_first_claim_starts_at_the_beginning,
            an_owner_is_shown_with_its_node, a_released_conversation_is_taken_without_a_hole,
            a_claim_of_ones_own_skips_the_gap, a_claim_after_a_death_skips_what_was_reserved_and_the_gap,
            a_claim_on_an_old_view_loses, of_two_claims_on_one_view_one_wins, only_the_registered_claim,
            the_draining_claim_only_what_they_own, inside_the_margin_claims_lose, every_change_of_owner_raises_the_epoch,
            the_epoch_survives_release, a_new_generation_skips_numbers_and_epochs, a_key_belongs_to_one_id,
            // Giving up and passing on.
            only_the_holder_releases, the_dead_release_nothing, a_release_keeps_what_was_used,
            a_wedged_release_keeps_the_gap, a_hand_off_passes_ownership, a_hand_off_needs_a_fit_peer,
            only_the_holder_hands_off,
            // Appends.
            an_append_is_read_back, an_append_of_another_epoch_is_fenced, an_append_of_another_owner_is_fenced,
            an_append_after_the_reign_is_fenced, an_append_behind_the_head_is_refused,
            an_append_of_another_generation_is_rewound, a_fenced_batch_harms_no_other,
            a_batch_sent_again_lands_once, a_malformed_batch_fails_alone, a_logs_times_never_go_back, numbers_may_have_holes,
            the_reserve_is_never_lowered, batches_are_seen_whole_and_in_order,
            a_duplicate_names_its_original, a_duplicate_of_an_earlier_reign_keeps_its_epoch,
            another_body_is_told_by_its_hash, a_batch_may_hold_its_own_duplicate, keys_are_per_sender_and_conversation,
            a_write_is_found_by_its_key,
            // Due work and checkpoints.
            due_work_is_listed_when_its_owner_is_gone, due_work_is_kept_replaced_and_cleared,
            due_work_is_listed_earliest_first, due_work_is_listed_page_by_page,
            due_work_is_listed_where_it_may_be_done, a_fenced_append_leaves_due_work,
            the_newest_checkpoint_is_kept, a_checkpoint_is_fenced,
            // Ranges.
            a_range_after_a_position, a_range_before_a_position, the_latest_records, a_range_of_some_kinds,
            a_range_of_nothing, records_are_counted_up_to_a_limit,
            // Conversations and members.
            a_conversation_is_created_once, the_home_is_the_first_region, a_conversation_is_patched,
            members_come_and_go, members_are_paged, a_direct_conversation_keeps_its_two,
            // Cursors and summaries.
            a_cursor_only_moves_forward, a_cursor_stays_within_the_log, unread_counts_messages_by_others,
            unread_is_capped, a_summary_is_for_members, summaries_are_ordered_and_paged,
        }
    };
}

macro_rules! declare_cases {
    (() $($name:ident,)*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$(Case { name: stringify!($name), run: |world| Box::pin($name(world)) },)*];
    };
}

use self::append::*;
use self::conversation::*;
use self::dedup::*;
use self::due::*;
use self::handover::*;
use self::lease::*;
use self::membership::*;
use self::ownership::*;
use self::range::*;
use self::summary::*;
with_conformance_cases! { [declare_cases] }

/// Makes a module with one `#[test]` for each case. The expression makes the fixture and may `await`; the calling crate
/// needs tokio with `rt` and `time` for its tests.
#[macro_export]
macro_rules! conformance_tests {
    ($module:ident, $fixture:expr) => {
        mod $module {
            #[allow(unused_imports, reason = "for the fixture's expression")]
            use super::*;
            $crate::with_conformance_cases! { [$crate::conformance_test_functions] $fixture }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_test_functions {
    (($fixture:expr) $($name:ident,)*) => {
        $crate::conformance_test_functions! { @each ($fixture) $($name)* }
    };
    (@each ($fixture:expr)) => {};
    (@each ($fixture:expr) $name:ident $($rest:ident)*) => {
        #[test]
        fn $name() {
            let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            runtime.block_on(async {
                let case = $crate::conformance::Case::named(stringify!($name)).expect("the list has it");
                let fixture = $fixture;
                if let Err(violation) = case.run(&fixture).await {
                    panic!("{violation}");
                }
            });
        }
        $crate::conformance_test_functions! { @each ($fixture) $($rest)* }
    };
}
