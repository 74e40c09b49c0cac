//! A check that cannot fail is worse than none: with a part of the fence, or the gap, taken out of the statements, a case of
//! the suite must miss it.

use super::super::Guards;
use super::super::append::FenceGuard;
use super::super::ownership::GapGuard;
use super::fixture::PostgresFixture;
use crate::conformance::Case;

async fn is_caught(guards: Guards, case: &str) {
    let case = Case::named(case).expect("the suite has it");
    case.run(&PostgresFixture::new().await).await.expect("holds with every guard on");
    let verdict = case.run(&PostgresFixture::with(guards).await).await;
    assert!(verdict.is_err(), "{case:?} does not miss what {guards:?} takes out");
}

fn fence(fence: FenceGuard) -> Guards {
    Guards { fence, ..Guards::default() }
}

#[tokio::test]
async fn an_append_without_the_epoch_is_caught() {
    is_caught(fence(FenceGuard::EpochOff), "an_append_of_another_epoch_is_fenced").await;
}

#[tokio::test]
async fn an_append_without_the_owner_is_caught() {
    is_caught(fence(FenceGuard::OwnerOff), "an_append_of_another_owner_is_fenced").await;
}

#[tokio::test]
async fn an_append_without_the_generation_is_caught() {
    is_caught(fence(FenceGuard::GenerationOff), "an_append_of_another_generation_is_rewound").await;
    is_caught(fence(FenceGuard::GenerationOff), "a_new_generation_skips_numbers_and_epochs").await;
}

#[tokio::test]
async fn an_append_without_the_last_seq_is_caught() {
    is_caught(fence(FenceGuard::PrevOff), "an_append_behind_the_head_is_refused").await;
}

#[tokio::test]
async fn an_append_without_a_fence_is_caught() {
    is_caught(fence(FenceGuard::Off), "an_append_of_another_epoch_is_fenced").await;
}

#[tokio::test]
async fn a_claim_without_the_gap_is_caught() {
    let guards = Guards { gap: GapGuard::Off, ..Guards::default() };
    is_caught(guards, "a_claim_after_a_death_skips_what_was_reserved_and_the_gap").await;
}
