//! Leases, claims and restarts.

use conch_core::ids::{Epoch, Generation, Seq};

use super::*;
use crate::Held;

#[tokio::test]
async fn a_restart_deletes_its_predecessors_and_raises_the_epoch() {
    let mut bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let before = bench.won(&room, me).await;
    assert_eq!((before.epoch, before.generation, before.first_seq), (Epoch(1), Generation(1), Seq(1)));
    let first = batch(&room, &before, Seq(0), Seq(1), vec![message("alice", "k1", "one")]);
    landed(bench.append(me, first).await);
    let log = bench.store().log().await.expect("answers");
    bench.reopen();
    assert_eq!(bench.store().log().await.expect("answers"), log);
    assert_eq!(bench.store().nodes().await.expect("reads"), vec![]);
    assert_eq!(bench.store().renew(me, TTL).await.expect("answers"), None, "a dead incarnation exits");
    let next = bench.register(2).await;
    let seen = bench.store().resolve(&room).await.expect("resolves").expect("exists");
    assert_eq!(seen.owner.map(|owner| (owner.incarnation, owner.node)), Some((me, None)));
    let after = bench.won(&room, next).await;
    assert_eq!((after.epoch, after.last_seq), (Epoch(2), Seq(1)));
    assert_eq!(after.first_seq, Seq(1000 + GAP + 1), "after the rest of the block and the gap");
    let late = batch(&room, &before, Seq(1), Seq(2), vec![message("alice", "k2", "two")]);
    assert_eq!(bench.append(me, late).await, AppendOutcome::Fenced);
    let now = batch(&room, &after, Seq(1), after.first_seq, vec![message("alice", "k2", "two")]);
    landed(bench.append(next, now).await);
}

#[tokio::test]
async fn a_clean_release_leaves_no_hole() {
    let bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    let held = Held { conversation: room.key, epoch: armed.epoch, me };
    assert!(bench.store().release(&held, Seq(2)).await.expect("releases"));
    assert!(!bench.store().release(&held, Seq(2)).await.expect("answers"), "it is released already");
    let again = bench.won(&room, me).await;
    assert_eq!((again.epoch, again.first_seq), (Epoch(2), Seq(2)));
    let held = Held { epoch: again.epoch, ..held };
    assert!(bench.store().release_wedged(&held, GAP).await.expect("releases"));
    assert_eq!(bench.won(&room, me).await.first_seq, Seq(1 + GAP + 1), "something may have been in flight");
}

#[tokio::test]
async fn a_claim_is_lost_when_the_head_or_the_claimant_is_not_as_it_should_be() {
    let bench = Bench::new();
    let (me, other, room) = (bench.register(1).await, bench.register(2).await, bench.create("room").await);
    let request =
        ClaimRequest { conversation: room.key, me, seen_epoch: None, seen_owner: None, margin: MARGIN, gap: GAP };
    let claim = async |request: ClaimRequest| bench.store().claim(&request).await.expect("answers");
    let unregistered = ClaimRequest { me: Incarnation(9), ..request.clone() };
    assert_eq!(claim(unregistered).await, ClaimOutcome::Lost);
    assert_eq!(claim(ClaimRequest { seen_epoch: Some(Epoch(1)), ..request.clone() }).await, ClaimOutcome::Lost);
    assert!(matches!(claim(request.clone()).await, ClaimOutcome::Won(_)));
    assert_eq!(claim(ClaimRequest { me: other, ..request.clone() }).await, ClaimOutcome::Lost, "seen before the first");
    // Mine without a task: also while draining, which refuses everything else.
    assert!(bench.store().set_draining(me).await.expect("answers"));
    let mine = ClaimRequest { seen_epoch: Some(Epoch(1)), seen_owner: Some(me), ..request.clone() };
    assert!(matches!(claim(mine).await, ClaimOutcome::Won(armed) if armed.epoch == Epoch(2)));
    let elsewhere = bench.create("elsewhere").await;
    assert_eq!(bench.claim(&elsewhere, me).await, ClaimOutcome::Lost);
    bench.advance(12_000);
    assert_eq!(bench.claim(&elsewhere, other).await, ClaimOutcome::Lost, "inside the margin");
    assert_eq!(bench.store().renew(other, TTL).await.expect("renews"), Some(1));
    assert!(matches!(bench.claim(&elsewhere, other).await, ClaimOutcome::Won(_)));
}

#[tokio::test]
async fn a_hand_off_needs_a_live_peer() {
    let bench = Bench::new();
    let (me, peer, room) = (bench.register(1).await, bench.register(2).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    let held = Held { conversation: room.key, epoch: armed.epoch, me };
    let hand_off = async |to: Incarnation| bench.store().hand_off(&held, to, Seq(2), MARGIN).await.expect("answers");
    assert_eq!(hand_off(Incarnation(9)).await, None);
    bench.advance(12_000);
    assert_eq!(hand_off(peer).await, None, "inside the margin");
    bench.store().renew(peer, TTL).await.expect("renews");
    let handed = hand_off(peer).await.expect("it may");
    assert_eq!((handed.epoch, handed.last_seq, handed.first_seq), (Epoch(2), Seq(1), Seq(2)));
    assert_eq!(hand_off(peer).await, None, "it is not ours any more");
}

#[tokio::test]
async fn only_an_expired_unchanged_row_is_declared_dead() {
    let bench = Bench::new();
    let me = bench.register(1).await;
    let declare = async |beat| bench.store().declare_expired(me, beat, TTL, MARGIN).await.expect("answers");
    assert!(!declare(0).await, "it lives");
    bench.advance(15_001);
    assert!(!declare(1).await, "another beat");
    assert_eq!(bench.store().renew(me, TTL).await.expect("renews"), Some(1), "expired, but nobody deleted it");
    assert!(!declare(1).await);
    // The clock is set back so far that no renewal can have reached this end.
    bench.advance(-3_001);
    assert!(declare(1).await);
    assert!(!declare(1).await, "it is gone");
}

#[tokio::test]
async fn a_restored_store_skips_a_generation_of_numbers() {
    let mut bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    bench.close();
    let file = bench.path().join(crate::sqlite::DATABASE_FILE);
    let connection = rusqlite::Connection::open(file).expect("opens");
    connection.execute("UPDATE cluster_meta SET restores = 1", []).expect("updates");
    drop(connection);
    bench.reopen();
    let next = bench.register(2).await;
    let after = bench.won(&room, next).await;
    assert_eq!(after.generation, Generation(65_537));
    assert_eq!(after.epoch, Epoch(1 + 65_536_000_000));
    assert_eq!(after.first_seq, Seq(1000 + 65_536_000_000 + 1));
    let fresh = bench.create("fresh").await;
    let fresh = bench.won(&fresh, next).await;
    assert_eq!((fresh.epoch, fresh.first_seq), (Epoch(65_536_000_001), Seq(65_536_000_001)));
}
