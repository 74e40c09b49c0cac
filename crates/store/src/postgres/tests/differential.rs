//! The same script against the memory store and this one gives the same answers.

use proptest::prelude::*;

use super::fixture::PostgresFixture;
use crate::conformance::MemoryFixture;
use crate::conformance::script::compare;

proptest! {
    // A script makes a database and some hundred round trips.
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_postgres_answer_alike(words in proptest::collection::vec(any::<u64>(), 50..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let verdict = runtime.block_on(async { compare(&words, &MemoryFixture::new(), &PostgresFixture::new().await).await });
        prop_assert!(verdict.is_ok(), "{}", verdict.err().unwrap_or_default());
    }
}
