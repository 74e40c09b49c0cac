//! The suite, on the memory store, through a fault plan without faults, and against every mutant.

use std::sync::Arc;

use async_trait::async_trait;

use super::{CASES, Fixture, MemoryFixture, script};
use crate::Store;
use crate::faulty::{Call, Fault, FaultPlan, FaultyStore};
use crate::memory::{MemoryStore, Mutant};

crate::conformance_tests!(memory, MemoryFixture::new());
crate::conformance_tests!(memory_behind_a_quiet_plan, QuietFixture::new());

struct Quiet;

impl FaultPlan for Quiet {
    fn next(&self, _call: Call) -> Fault {
        Fault::None
    }
}

/// Shows that a [`FaultyStore`] passes every call on as it is.
struct QuietFixture {
    memory: MemoryFixture,
    store: FaultyStore<MemoryStore>,
}

impl QuietFixture {
    fn new() -> Self {
        let memory = MemoryFixture::new();
        let inner = Arc::new(memory.memory().clone());
        let store = FaultyStore::new(inner, Arc::new(Quiet), Arc::new(|_| unreachable!("nothing is late")));
        Self { memory, store }
    }
}

#[async_trait]
impl Fixture for QuietFixture {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn move_clock(&self, by_ms: i64) {
        self.memory.move_clock(by_ms).await;
    }

    async fn raise_generation(&self) -> bool {
        self.memory.raise_generation().await
    }
}

/// A check that cannot fail is worse than none: each guard, taken out, is missed by at least one case.
#[tokio::test(flavor = "current_thread")]
async fn every_mutant_is_caught() {
    let mut escaped = Vec::new();
    for &mutant in Mutant::ALL {
        let mut caught_by = Vec::new();
        for case in CASES {
            if case.run(&MemoryFixture::mutated(mutant)).await.is_err() {
                caught_by.push(case.name);
            }
        }
        if caught_by.is_empty() {
            escaped.push(mutant);
        }
    }
    assert!(escaped.is_empty(), "no case of the suite misses the guards that these take out: {escaped:?}");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CASES.len());
}

/// The words of a script of this seed (splitmix64).
fn words(seed: u64, count: usize) -> Vec<u64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    (0..count).map(|_| next()).collect()
}

/// Scripts reach what they are meant to compare, and are deterministic.
#[tokio::test(flavor = "current_thread")]
async fn scripts_reach_every_outcome() {
    let mut seen = String::new();
    for seed in 0..40 {
        let words = words(seed, 150);
        let answers = script::compare(&words, &MemoryFixture::new(), &MemoryFixture::new()).await.expect("one store");
        for answer in answers {
            seen.push_str(&answer.0);
        }
    }
    for outcome in ["Won", "Lost", "Landed", "Duplicate", "Fenced", "Rewound", "Direct", "BeyondHead", "Listed"] {
        assert!(seen.contains(outcome), "no script of these reaches {outcome}");
    }
}

/// Comparing scripts, too, must be able to fail. The guards that scripts do not go near are left to the cases.
#[tokio::test(flavor = "current_thread")]
async fn scripts_tell_mutants_of_the_fence() {
    let fences = [
        Mutant::FenceOff,
        Mutant::OwnerUnchecked,
        Mutant::PrevUnchecked,
        Mutant::EpochResetOnRelease,
        Mutant::EpochKeptOnClaim,
        Mutant::NoGap,
        Mutant::NoGapForTheWedged,
        Mutant::ReservationIgnored,
        Mutant::ClaimUnchecked,
        Mutant::ReleaseUnchecked,
        Mutant::PeerUnchecked,
        Mutant::DrainingClaims,
        Mutant::MarginIgnored,
        Mutant::DedupOff,
        Mutant::DueIgnored,
        Mutant::DueOfTheLiving,
        Mutant::CheckpointUnfenced,
        Mutant::CheckpointGoesBack,
    ];
    for mutant in fences {
        let mut told = false;
        for seed in 0..200 {
            let words = words(seed, 150);
            told = script::compare(&words, &MemoryFixture::new(), &MemoryFixture::mutated(mutant)).await.is_err();
            if told {
                break;
            }
        }
        assert!(told, "no script of these tells {mutant:?} from the real one");
    }
}
