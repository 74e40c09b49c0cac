//! The fenced append.

use conch_core::ids::{Epoch, Seq};
use conch_core::time::Timestamp;

use super::*;
use crate::{Direction, DueQuery, DueWhy, RangeQuery, StoreError};

fn everything(conversation: &ConvRef) -> RangeQuery {
    RangeQuery {
        conversation: conversation.clone(),
        direction: Direction::After(Seq(0)),
        limit: 1000,
        kinds: Vec::new(),
    }
}

#[tokio::test]
async fn what_is_appended_is_read_back() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let drafts = vec![message("alice", "k1", "one"), message("bob", "k2", "two")];
    assert_eq!(landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), drafts)).await), vec![]);
    let page = bench.store().range(&everything(&room)).await.expect("reads").expect("exists");
    assert_eq!(page.head_seq, Seq(2));
    assert!(!page.more);
    let seen: Vec<_> = page.records.iter().map(|r| (r.seq.0, r.sender.as_str(), r.body.as_str(), r.at.0)).collect();
    assert_eq!(seen, [(1, "alice", r#"{"text":"one"}"#, START_MS), (2, "bob", r#"{"text":"two"}"#, START_MS)]);
    let found = bench.store().find(&room, &subject("bob"), &"k2".parse().expect("valid")).await.expect("finds");
    assert_eq!(found.map(|landed| (landed.seq, landed.epoch)), Some((Seq(2), Epoch(1))));
}

#[tokio::test]
async fn a_duplicate_keeps_its_first_number_and_leaves_a_hole() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k", "one")])).await);
    bench.advance(10);
    let again = vec![message("alice", "k", "changed"), message("alice", "n", "new"), message("alice", "n", "new")];
    let duplicates = landed(bench.append(me, batch(&room, &armed, Seq(1), Seq(2), again)).await);
    let seen: Vec<_> = duplicates.iter().map(|d| (d.seq.0, d.original.seq.0, d.original.at.0)).collect();
    assert_eq!(seen, [(2, 1, START_MS), (4, 3, START_MS + 10)]);
    assert_eq!(duplicates[0].original.body_hash, message("alice", "k", "one").body_hash);
    let page = bench.store().range(&everything(&room)).await.expect("reads").expect("exists");
    assert_eq!(page.records.iter().map(|record| record.seq.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(page.head_seq, Seq(4));
}

#[tokio::test]
async fn another_epoch_owner_generation_or_head_writes_nothing() {
    let bench = Bench::new();
    let (me, other, room) = (bench.register(1).await, bench.register(2).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    let good = batch(&room, &armed, Seq(1), Seq(2), vec![message("alice", "k2", "two")]);
    let mut epoch = good.clone();
    epoch.epoch = Epoch(armed.epoch.0 + 1);
    let mut generation = good.clone();
    generation.generation = conch_core::ids::Generation(2);
    let behind = batch(&room, &armed, Seq(5), Seq(6), vec![message("alice", "k2", "two")]);
    assert_eq!(bench.append(me, epoch).await, AppendOutcome::Fenced);
    assert_eq!(bench.append(other, good.clone()).await, AppendOutcome::Fenced);
    assert_eq!(bench.append(me, generation).await, AppendOutcome::Rewound);
    assert_eq!(bench.append(me, behind).await, AppendOutcome::Rewound);
    let elsewhere = bench.create("never-claimed").await;
    let unclaimed = batch(&elsewhere, &armed, Seq(0), Seq(1), vec![message("alice", "k", "x")]);
    assert_eq!(bench.append(me, unclaimed).await, AppendOutcome::Fenced);
    assert_eq!(bench.store().count_after(&room, Seq(0), 10).await.expect("counts"), 1);
    landed(bench.append(me, good).await);
}

#[tokio::test]
async fn a_batch_that_had_landed_says_so() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let first = batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one"), message("bob", "k2", "two")]);
    landed(bench.append(me, first.clone()).await);
    bench.advance(1000);
    assert_eq!(bench.append(me, first).await, AppendOutcome::Landed { at: Timestamp(START_MS), duplicates: vec![] });
    let impostor = batch(&room, &armed, Seq(0), Seq(2), vec![message("alice", "k9", "other")]);
    assert_eq!(bench.append(me, impostor).await, AppendOutcome::Rewound);
    assert_eq!(bench.store().count_after(&room, Seq(0), 10).await.expect("counts"), 2);
}

#[tokio::test]
async fn a_bad_batch_harms_no_other() {
    let bench = Bench::new();
    let (me, other) = (bench.register(1).await, bench.register(2).await);
    let (a, b, c) = (bench.create("a").await, bench.create("b").await, bench.create("c").await);
    let (on_a, on_b, on_c) = (bench.won(&a, me).await, bench.won(&b, me).await, bench.won(&c, other).await);
    let mut out_of_order = batch(&b, &on_b, Seq(0), Seq(1), vec![message("bob", "k1", "x"), message("bob", "k2", "y")]);
    out_of_order.records.swap(0, 1);
    let batches = vec![
        batch(&a, &on_a, Seq(0), Seq(1), vec![message("alice", "k", "good")]),
        out_of_order,
        batch(&c, &on_c, Seq(0), Seq(1), vec![message("carol", "k", "not ours")]),
    ];
    let outcomes = bench.store().append(me, batches).await.expect("answers");
    assert!(matches!(outcomes[0], AppendOutcome::Landed { .. }), "{outcomes:?}");
    let AppendOutcome::Failed(StoreError::Damaged(reason)) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert!(reason.contains("invariant 2"), "{reason}");
    assert_eq!(outcomes[2], AppendOutcome::Fenced);
    for (room, records) in [(&a, 1), (&b, 0), (&c, 0)] {
        assert_eq!(bench.store().count_after(room, Seq(0), 10).await.expect("counts"), records);
    }
}

#[tokio::test]
async fn a_number_that_is_taken_is_never_given_again() {
    let mut bench = Bench::new();
    bench.register(1).await;
    let (a, b) = (bench.create("a").await, bench.create("b").await);
    bench.won(&b, Incarnation(1)).await;
    bench.close();
    // Damage that no append can cause: a record above its head.
    let file = bench.path().join(crate::sqlite::DATABASE_FILE);
    let connection = rusqlite::Connection::open(file).expect("opens");
    let sql = "INSERT INTO record(conv_id, seq, epoch, kind, sender, client_msg_id, at, body_hash, body)
               VALUES (?1, 2001, 1, 1, 'x', 'x', 0, zeroblob(16), '{}')";
    connection.execute(sql, [b.key.0]).expect("inserts");
    drop(connection);
    bench.reopen();
    let me = bench.register(2).await;
    let (on_a, on_b) = (bench.won(&a, me).await, bench.won(&b, me).await);
    let batches = vec![
        batch(&b, &on_b, Seq(0), Seq(2000), vec![message("bob", "k1", "one"), message("bob", "k2", "two")]),
        batch(&a, &on_a, Seq(0), Seq(1), vec![message("alice", "k", "good")]),
    ];
    let outcomes = bench.store().append(me, batches).await.expect("answers");
    assert!(matches!(outcomes[0], AppendOutcome::Failed(StoreError::Damaged(_))), "{outcomes:?}");
    assert!(matches!(outcomes[1], AppendOutcome::Landed { .. }), "{outcomes:?}");
    assert_eq!(bench.store().count_after(&b, Seq(0), 10).await, Ok(1), "the batch is undone as a whole");
    assert_eq!(bench.store().count_after(&a, Seq(0), 10).await, Ok(1));
}

#[tokio::test]
async fn calls_that_wait_together_have_outcomes_of_their_own() {
    let bench = Bench::new();
    let me = bench.register(1).await;
    let mut calls = Vec::new();
    for number in 0..50_u64 {
        let room = bench.create(&format!("room-{number}")).await;
        let armed = bench.won(&room, me).await;
        let stale = number % 10 == 3;
        let mut one = batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k", "hi")]);
        one.epoch = Epoch(armed.epoch.0 + u64::from(stale));
        if number % 10 == 7 {
            one.hi = Seq(0);
        }
        calls.push((number, one));
    }
    let calls = calls.into_iter().map(|(number, one)| {
        let store = bench.store();
        async move { (number, store.append(me, vec![one]).await) }
    });
    for (number, result) in join_all(calls).await {
        match number % 10 {
            3 => assert_eq!(result, Ok(vec![AppendOutcome::Fenced])),
            7 => {
                assert!(matches!(result.as_deref(), Ok([AppendOutcome::Failed(StoreError::Damaged(_))])), "{result:?}");
            }
            _ => assert!(matches!(result.as_deref(), Ok([AppendOutcome::Landed { .. }])), "{result:?}"),
        }
    }
}

/// Polls all futures from one task until each is ready.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut waiting: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        for (future, output) in &mut waiting {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(context)
            {
                *output = Some(value);
            }
        }
        if waiting.iter().any(|(_, output)| output.is_none()) {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(waiting.iter_mut().filter_map(|(_, output)| output.take()).collect())
    })
    .await
}

#[tokio::test]
async fn times_never_go_back_within_a_log() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    bench.advance(-60_000);
    let second = bench.append(me, batch(&room, &armed, Seq(1), Seq(2), vec![message("alice", "k2", "two")])).await;
    assert_eq!(second, AppendOutcome::Landed { at: Timestamp(START_MS), duplicates: vec![] });
}

fn due_query() -> DueQuery {
    DueQuery { region: "north".parse().expect("valid"), after: None, limit: 10 }
}

#[tokio::test]
async fn due_rows_change_with_the_batch_and_show_when_the_owner_is_gone() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let mut first = batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")]);
    first.due = DueChange::Set(DueWhy::Turn, Duration::from_secs(5));
    landed(bench.append(me, first).await);
    assert!(bench.store().expel(me).await.expect("expels"));
    assert_eq!(bench.store().due(&due_query()).await.expect("reads"), vec![], "not due yet");
    bench.advance(5000);
    let due = bench.store().due(&due_query()).await.expect("reads");
    assert_eq!(
        due.iter().map(|row| (row.conversation.as_str(), row.why)).collect::<Vec<_>>(),
        [("room", DueWhy::Turn)]
    );
    let next = bench.register(2).await;
    let armed = bench.won(&room, next).await;
    assert_eq!(bench.store().due(&due_query()).await.expect("reads"), vec![], "the owner lives");
    let mut done = batch(&room, &armed, armed.last_seq, armed.first_seq, vec![message("alice", "k2", "two")]);
    done.due = DueChange::Clear;
    landed(bench.append(next, done).await);
    assert!(bench.store().expel(next).await.expect("expels"));
    assert_eq!(bench.store().due(&due_query()).await.expect("reads"), vec![]);
}
