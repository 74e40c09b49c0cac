//! A standby that lags takes over: what it had not received is lost, and no number or epoch of it is ever given again.

use super::super::PostgresStore;
use super::super::error::OpenError;
use super::super::testing::{Disk, TestServer};
use super::fixture::options;
use super::rig::{A, B, GAP, TTL, append, batch, create, register, seqs, take, write};
use crate::{AppendOutcome, LeaseStore, LogStore};

/// What a generation skips.
const SKIP: u64 = 1_000_000;

/// Takeover itself lost in a failover, and the writes before it.
#[tokio::test]
async fn what_a_promotion_lost_never_comes_back() {
    let primary = TestServer::start(Disk::NotSynced, &[]);
    primary.sql("CREATE DATABASE conch");
    let store = PostgresStore::open(&primary.url("conch"), options("a")).await.expect("opens");
    register(&store, A).await;
    let (fresh, old) = (create(&store, "fresh").await, create(&store, "old").await);
    let mut reign = take(&store, &old, A, None).await;
    write(&store, &old, A, &mut reign, "k1").await;
    // A copy that never hears of anything later.
    let standby = primary.standby(Disk::NotSynced, &["primary_conninfo="]);
    let error = PostgresStore::open(&standby.url("conch"), options("b")).await.expect_err("it takes no writes");
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
    // Both hosts in one URL, as an operator names them.
    let both = format!(
        "postgres://postgres@/conch?host={},{}&port=5432,5432",
        primary.directory().display(),
        standby.directory().display()
    );
    let following = PostgresStore::open(&both, options("c")).await.expect("opens the primary");

    let mut lost = take(&store, &fresh, A, None).await;
    write(&store, &fresh, A, &mut lost, "k1").await;
    write(&store, &old, A, &mut reign, "k2").await;
    register(&store, B).await;
    assert!(store.expel(A).await.expect("answers"));
    let stolen = take(&store, &old, B, Some((reign.epoch, Some(A)))).await;
    let log = store.log().await.expect("answers");
    assert_eq!(following.log().await.expect("answers"), log);
    assert_eq!(following.renew(B, TTL).await, Ok(Some(1)));
    primary.crash();
    standby.promote();

    assert_eq!(following.renew(B, TTL).await.unwrap_or(None), None, "the new primary has never heard of B");
    assert!(following.renew(A, TTL).await.expect("it follows the failover").is_some(), "A's death was lost too");
    assert_ne!(following.log().await.expect("answers"), log, "another history");
    let fenced = append(&following, B, batch(&old, stolen, "k3")).await;
    assert_eq!(fenced, AppendOutcome::Fenced, "the lost takeover's owner writes nothing");
    let rewound = append(&following, A, batch(&old, reign, "k3")).await;
    assert_eq!(rewound, AppendOutcome::Rewound, "nor does the old reign, in another generation");
    assert_eq!(append(&following, A, batch(&fresh, lost, "k2")).await, AppendOutcome::Fenced);

    let again = take(&following, &old, A, Some((reign.epoch, Some(A)))).await;
    assert_eq!(again.generation.0, reign.generation.0 + 1);
    assert_eq!(again.epoch.0, reign.epoch.0 + SKIP, "above every epoch that the lost history can have used");
    assert!(stolen.epoch < again.epoch && stolen.first_seq.0 + GAP < again.first_seq.0);
    assert_eq!(again.first_seq.0, 1 + SKIP + 1);
    let first = take(&following, &fresh, A, None).await;
    assert_eq!((first.epoch.0, first.first_seq.0), (SKIP + 1, SKIP + 1));
    let mut again = again;
    write(&following, &old, A, &mut again, "k2").await;
    assert_eq!(seqs(&following, &old).await, [1, again.last_seq.0], "the retry has another number than the lost one");
}
