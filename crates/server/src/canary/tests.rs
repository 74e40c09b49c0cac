//! The canary finds a good fence good, and a missing one missing.

use std::sync::Arc;

use conch_store::LeaseStore;
use conch_store::memory::{MemoryStore, Mutant};

use super::*;

async fn run_on(store: &MemoryStore) -> (Outcome, Vec<Step>) {
    let mut steps = Vec::new();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(store.clone()), Arc::new(store.clone())];
    let outcome =
        run(stores, &Config::default(), |step| steps.push(step.clone())).await.expect("it is carried through");
    (outcome, steps)
}

#[tokio::test]
async fn a_good_fence_leaves_no_doubt_and_no_node() {
    let store = MemoryStore::new("test", Arc::new(|| 0));
    let (outcome, steps) = run_on(&store).await;
    let doubts: Vec<&Step> = steps.iter().filter(|step| !step.shown).collect();
    assert_eq!((doubts, outcome.doubts), (vec![], 0));
    let names: Vec<_> = steps.iter().map(|step| step.step).collect();
    let expected = [
        "owner_writes",
        "owner_is_unaware",
        "another_takes_over",
        "stale_write_is_fenced",
        "the_new_owner_goes_on",
        "stale_write_is_shown_to_nobody",
        "log_is_whole",
    ];
    assert_eq!(names, expected);
    assert_eq!(store.nodes().await.expect("in memory"), []);
    let resolution = store.resolve(&outcome.conversation).await.expect("in memory").expect("it stays");
    assert_eq!(resolution.owner, None, "nobody owns what the canary leaves behind");
}

#[tokio::test]
async fn a_missing_fence_is_found_by_each_step_that_it_concerns() {
    let store = MemoryStore::mutated("test", Arc::new(|| 0), Mutant::FenceGone);
    let (outcome, steps) = run_on(&store).await;
    let doubts: Vec<_> = steps.iter().filter(|step| !step.shown).map(|step| step.step).collect();
    assert!(doubts.contains(&"stale_write_is_fenced"), "{steps:?}");
    assert!(doubts.contains(&"stale_write_is_shown_to_nobody"), "{steps:?}");
    assert!(doubts.contains(&"log_is_whole"), "{steps:?}");
    assert_eq!(outcome.doubts, doubts.len());
    assert_eq!(store.nodes().await.expect("in memory"), []);
}
