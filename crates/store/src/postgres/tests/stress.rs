//! Appends of many conversations and steals from live owners, all at once.
//!
//! Right: no deadlock, no epoch falls, nothing that was acknowledged is lost or doubled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use conch_core::ids::{ConvRef, Incarnation};

use super::super::PostgresStore;
use super::fixture::{Clock, database, options};
use super::rig::{batch, claim, create, register, seqs};
use crate::{AppendOutcome, Armed, ClaimOutcome, LeaseStore, LogStore, StoreError};

const NODES: u128 = 3;
const CONVERSATIONS: usize = 24;
const ROUNDS: usize = 60;

/// What was acknowledged, by conversation, and the highest epoch that a claim won.
#[derive(Default)]
struct Seen {
    acked: BTreeMap<(usize, u64), String>,
    epochs: BTreeMap<usize, u64>,
}

async fn node(
    store: PostgresStore,
    me: Incarnation,
    conversations: Arc<Vec<ConvRef>>,
    seen: Arc<Mutex<Seen>>,
) -> Vec<StoreError> {
    let mut owned: BTreeMap<usize, Armed> = BTreeMap::new();
    let mut errors = Vec::new();
    for round in 0..ROUNDS {
        // Steals one from whoever has it, as nobody may who follows the rules.
        let index = (round * 7 + usize::try_from(me.0).expect("small") * 5) % conversations.len();
        let resolution = store.resolve(&conversations[index]).await.expect("answers").expect("exists");
        let view = resolution.epoch.map(|epoch| (epoch, resolution.owner.map(|owner| owner.incarnation)));
        match store.claim(&claim(&conversations[index], me, view)).await {
            Ok(ClaimOutcome::Won(armed)) => {
                let mut seen = seen.lock().expect("not poisoned");
                let highest = seen.epochs.entry(index).or_default();
                assert_ne!(armed.epoch.0, *highest, "an epoch is given once");
                *highest = armed.epoch.0.max(*highest);
                owned.insert(index, armed);
            }
            Ok(ClaimOutcome::Lost) => {}
            Err(error) => errors.push(error),
        }
        let order: Vec<usize> = owned.keys().copied().collect();
        let key = |index: usize| format!("{me}-{round}-{index}");
        let batches = order.iter().rev().map(|index| batch(&conversations[*index], owned[index], &key(*index)));
        let batches: Vec<_> = batches.collect();
        let his: Vec<_> = batches.iter().map(|batch| batch.hi).collect();
        let outcomes = store.append(me, batches).await.expect("answers");
        for ((index, hi), outcome) in order.iter().rev().zip(his).zip(outcomes) {
            match outcome {
                AppendOutcome::Landed { .. } => {
                    owned.get_mut(index).expect("it was owned").last_seq = hi;
                    let doubled = seen.lock().expect("not poisoned").acked.insert((*index, hi.0), key(*index));
                    assert_eq!(doubled, None, "a number is given once");
                }
                AppendOutcome::Fenced | AppendOutcome::Rewound => drop(owned.remove(index)),
                AppendOutcome::Failed(error) => errors.push(error),
            }
        }
    }
    errors
}

#[tokio::test]
async fn appends_and_steals_do_not_deadlock_and_lose_nothing() {
    let (database, client) = database(Clock::Real).await;
    let store = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
    let mut conversations = Vec::new();
    for number in 0..CONVERSATIONS {
        conversations.push(create(&store, &format!("c{number}")).await);
    }
    let (conversations, seen) = (Arc::new(conversations), Arc::new(Mutex::new(Seen::default())));
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        let me = Incarnation(number);
        register(&store, me).await;
        let own = PostgresStore::open(&database.url(), options("a")).await.expect("opens");
        nodes.push(tokio::spawn(node(own, me, Arc::clone(&conversations), Arc::clone(&seen))));
    }
    for node in nodes {
        let errors = node.await.expect("does not panic");
        assert!(errors.is_empty(), "no statement fails: {errors:?}");
    }
    let seen = std::mem::take(&mut *seen.lock().expect("not poisoned"));
    assert!(seen.acked.len() > CONVERSATIONS, "the stress wrote something: {}", seen.acked.len());
    let mut acked: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for (index, seq) in seen.acked.keys() {
        acked.entry(*index).or_default().push(*seq);
    }
    for (index, conversation) in conversations.iter().enumerate() {
        let log = seqs(&store, conversation).await;
        assert_eq!(log, acked.remove(&index).unwrap_or_default(), "the log is what was acknowledged");
    }
    let sql = "SELECT count(*) FROM (SELECT epoch < lag(epoch) OVER (PARTITION BY conv_id ORDER BY seq) AS fell FROM record) t
               WHERE fell";
    let fell: i64 = client.query_one(sql, &[]).await.expect("answers").get(0);
    assert_eq!(fell, 0, "epochs never fall along a log");
}
