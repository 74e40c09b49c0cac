//! The same script against two backends gives the same answers.

use conch_store::conformance::MemoryFixture;
use conch_store::conformance::script::compare;
use proptest::prelude::*;

use crate::sqlite::SqliteFixture;

proptest! {
    // A script costs some dozen synced commits.
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_sqlite_answer_alike(words in proptest::collection::vec(any::<u64>(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
        let verdict = runtime.block_on(compare(&words, &MemoryFixture::new(), &SqliteFixture::new()));
        prop_assert!(verdict.is_ok(), "{}", verdict.err().unwrap_or_default());
    }
}
