//! The same script against the memory store and this one gives the same answers.

use proptest::prelude::*;

use super::fixture::EtcdFixture;
use crate::conformance::MemoryFixture;
use crate::conformance::script::compare;

proptest! {
    // A script makes a database and some hundred round trips to both.
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_etcd_answer_alike(words in proptest::collection::vec(any::<u64>(), 50..150)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let verdict = runtime.block_on(async { compare(&words, &MemoryFixture::new(), &EtcdFixture::new().await).await });
        prop_assert!(verdict.is_ok(), "{}", verdict.err().unwrap_or_default());
    }
}
