//! Failures of agents, named by their classes. Each is played with everything in place, and again without what carries it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use conch_core::body::Body;
use conch_core::conversation::{SecondMessage, Settings};
use conch_core::heart;
use conch_core::ids::{Epoch, Seq, Subject};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::turn::cancel::CancelMode;
use conch_server::rules::Rule;
use conch_sim::executor::Halt;
use conch_sim::machine::Removed;
use conch_sim::outside::{Call, READER_WORDS, SMITH_CALLS};
use conch_sim::recorder::Traffic;
use conch_store::memory::Mutant;
use futures_util::future::join_all;
use serde_json::json;

use crate::scene::{Scene, Setting, play_in, whole, without_routing, without_rule};
use crate::turns::{epochs, sessions};

/// The first turn of every scene: its first message is the input.
const FIRST: Seq = Seq(1);

/// Machines with sessions of this agent, from which this is removed.
fn sessions_without(machines: usize, agent: &'static str, removed: Removed) -> Setting {
    Setting { removed, ..sessions(machines, agent) }
}

/// The end of a turn.
fn end_of(log: &[Record], turn: Seq) -> Option<RecordKind> {
    log.iter().find(|record| record.turn == Some(turn) && record.kind.ends_turn()).map(|record| record.kind)
}

/// Records of this kind.
fn count(log: &[Record], kind: RecordKind) -> usize {
    log.iter().filter(|record| record.kind == kind).count()
}

impl Scene {
    /// Waits until a turn has ended, in whatever way.
    async fn ended(&self, turn: Seq) -> Vec<Record> {
        for _ in 0..3_000 {
            let log = self.records().await;
            if end_of(&log, turn).is_some() {
                return log;
            }
            self.wait(100).await;
        }
        panic!("turn {turn} has no end");
    }

    /// Waits until tools were called so often.
    async fn called(&self, times: usize) {
        while self.site.outside.calls().len() < times {
            self.wait(10).await;
        }
    }
}

/// Somebody starts a turn, watches it for a while and goes away. What is the whole answer, in words?
fn after_the_page_is_gone(removed: Removed) -> u64 {
    let mut setting = sessions_without(2, "reader", removed);
    setting.limits.hub.linger = Duration::from_secs(1);
    play_in(setting, |scene| async move {
        let (viewer, session) = scene.watch(1).await;
        scene.wait(500).await;
        assert!(viewer.saw_events("delta") > 0, "it is in the middle of its answer");
        drop(session);
        let log = scene.ended(FIRST).await;
        let answer = log.iter().find(|record| record.kind == RecordKind::Message && record.turn == Some(FIRST));
        answer.map_or(0, |answer| answer.body.as_str().matches("word").count() as u64)
    })
}

#[test]
fn refresh_loses_the_answer() {
    assert_eq!(after_the_page_is_gone(whole()), READER_WORDS);
    let words = after_the_page_is_gone(without_routing(Rule::TurnsNeedNoViewer));
    assert_ne!(words, READER_WORDS, "the rule is needed");
}

/// The page is loaded while a second turn runs: history first, then the rest from there. How often was each message shown?
fn history_and_the_rest(removed: Removed) -> Vec<usize> {
    play_in(sessions_without(2, "demo", removed), |scene| async move {
        scene.ended(FIRST).await;
        let turn = scene.starts(0, "again").await;
        scene.wait(500).await;
        let history = scene.records().await;
        let after = history.last().expect("two inputs").seq;
        let (viewer, _session) = scene.watch_after(&scene.room, 1, after).await;
        let log = scene.ended(turn).await;
        scene.wait(1_000).await;
        assert!(viewer.saw_events("delta") > 0, "it is the running turn");
        let mut shown = BTreeMap::<String, usize>::new();
        let before = history.iter().filter(|record| record.kind == RecordKind::Message);
        let before = before.map(|record| record.client_msg_id.as_ref().expect("a key").to_string());
        before.chain(viewer.saw()).for_each(|key| *shown.entry(key).or_default() += 1);
        assert_eq!(shown.len(), count(&log, RecordKind::Message), "two inputs and two answers");
        shown.into_values().collect()
    })
}

#[test]
fn resume_duplicates_the_last_answer() {
    assert_eq!(history_and_the_rest(whole()), [1; 4]);
    let shown = history_and_the_rest(without_routing(Rule::ResumeIsAfter));
    assert_ne!(shown, [1; 4], "the rule is needed");
}

/// A turn that runs on one node is cancelled through another. How many words of the model were read when that was answered, and
/// how many in the end?
fn stopped_from_elsewhere(removed: Removed) -> (u64, u64) {
    play_in(sessions_without(2, "reader", removed), |scene| async move {
        scene.wait(1_500).await;
        scene.cancel(1, FIRST, CancelMode::Keep).await.expect("it runs");
        let at_the_ack = scene.site.outside.read();
        scene.wait(5_000).await;
        (at_the_ack, scene.site.outside.read())
    })
}

#[test]
fn stop_does_nothing() {
    let (at_the_ack, later) = stopped_from_elsewhere(whole());
    assert!(at_the_ack > 0 && at_the_ack < READER_WORDS, "{at_the_ack}");
    assert_eq!(later, at_the_ack, "nothing more is read");
    let (at_the_ack, later) = stopped_from_elsewhere(without_routing(Rule::CancelStops));
    assert!(later > at_the_ack, "the rule is needed");
}

/// All that ends a turn is lost on its way to a viewer on another node. Does it still learn of the end?
fn the_end_is_lost(removed: Removed) -> bool {
    play_in(sessions_without(2, "asker", removed), |scene| async move {
        let (viewer, _session) = scene.watch(1).await;
        scene.until(RecordKind::AwaitOpened, FIRST).await;
        scene.wait(500).await;
        let before = scene.records().await.len();
        // What is there when it is answered: the resolution, the last step, the answer, the end.
        let lost = 4;
        (0..lost).for_each(|_| scene.site.network.lose_a_record());
        scene.resolve(0, FIRST, json!(1)).await.expect("it waits");
        let log = scene.ended(FIRST).await;
        assert_eq!(log.len() - before, lost);
        scene.wait(2_500).await;
        viewer.saw_events("turn.completed") == 1
    })
}

#[test]
fn stream_never_ends() {
    assert!(the_end_is_lost(whole()));
    assert!(!the_end_is_lost(without_routing(Rule::PositionFills)), "the rule is needed");
}

/// An owner is killed while it calls the third of many tools. The calls of the whole turn.
fn killed_among_tools(removed: Removed) -> Vec<Call> {
    play_in(sessions_without(2, "smith", removed), |scene| async move {
        scene.called(3).await;
        scene.nodes[0].process.kill();
        scene.ended(FIRST).await;
        scene.site.outside.calls()
    })
}

#[test]
fn tool_runs_twice_after_a_retry() {
    let calls = killed_among_tools(whole());
    let keys: BTreeSet<&str> = calls.iter().map(|call| &*call.key).collect();
    assert_eq!(keys.len(), SMITH_CALLS as usize, "each effect once");
    assert_eq!(calls.len(), keys.len() + 1, "only what was under way is asked for again");
    assert!(calls[2].key == calls[3].key && calls[2].epoch < calls[3].epoch, "{calls:?}");
    let calls = killed_among_tools(without_routing(Rule::KeysOutliveOwners));
    let keys: BTreeSet<String> = calls.into_iter().map(|call| call.key).collect();
    assert!(keys.len() > SMITH_CALLS as usize, "the rule is needed");
    let calls = killed_among_tools(without_routing(Rule::StepsAreReplayed));
    let again = calls.iter().filter(|call| call.key == calls[0].key).count();
    assert!(again > 1, "the rule is needed");
}

/// An owner is killed in the middle of a turn that nobody watches. The turn's end a minute later.
fn killed_unseen(mutant: Option<Mutant>) -> Option<RecordKind> {
    play_in(Setting { mutant, ..sessions(2, "demo") }, |scene| async move {
        scene.wait(900).await;
        scene.nodes[0].process.kill();
        assert_eq!(end_of(&scene.records().await, FIRST), None, "it dies in the middle");
        scene.wait(60_000).await;
        end_of(&scene.records().await, FIRST)
    })
}

#[test]
fn running_for_ever() {
    assert_eq!(killed_unseen(None), Some(RecordKind::TurnCompleted));
    assert_eq!(killed_unseen(Some(Mutant::DueIgnored)), None, "the due row is needed");
}

/// Many answer one await at once, through both nodes and in three ways. How many resolutions are in the log?
fn resolved_by_many(removed: Removed) -> usize {
    play_in(sessions_without(2, "asker", removed), |scene| async move {
        scene.until(RecordKind::AwaitOpened, FIRST).await;
        scene.wait(500).await;
        let asked = (0..50_usize).map(|n| scene.resolve(n % 2, FIRST, json!(n % 3)));
        join_all(asked.collect::<Vec<_>>()).await;
        scene.wait(10_000).await;
        count(&scene.records().await, RecordKind::AwaitResolved)
    })
}

#[test]
fn concurrent_resumes() {
    assert_eq!(resolved_by_many(whole()), 1);
    assert!(resolved_by_many(without_routing(Rule::OneKeyForEachAwait)) > 1, "the rule is needed");
}

/// A message comes while a turn waits for an answer. Was it taken, was the answer, and how did the waiting turn end?
fn posted_to_a_waiting_turn(second_message: SecondMessage) -> (bool, bool, Option<RecordKind>) {
    let settings = Settings { second_message: Some(second_message), ..Settings::default() };
    play_in(Setting { settings, ..sessions(2, "asker") }, |scene| async move {
        scene.until(RecordKind::AwaitOpened, FIRST).await;
        let taken = scene.say(1, "second").await;
        scene.wait(5_000).await;
        let answered = scene.resolve(1, FIRST, json!(1)).await.is_ok();
        (taken, answered, end_of(&scene.ended(FIRST).await, FIRST))
    })
}

#[test]
fn a_new_message_discards_a_parked_approval() {
    let kept = Some(RecordKind::TurnCompleted);
    for second_message in [SecondMessage::Queue, SecondMessage::Steer, SecondMessage::Merge] {
        assert_eq!(posted_to_a_waiting_turn(second_message), (true, true, kept), "{second_message:?}");
    }
    assert_eq!(posted_to_a_waiting_turn(SecondMessage::Reject), (false, true, kept));
    let interrupted = posted_to_a_waiting_turn(SecondMessage::Interrupt);
    assert_eq!(interrupted, (true, false, Some(RecordKind::TurnCancelled)), "and the log says so");
}

/// Bytes that the first and the second half of so many turns wrote: records and checkpoints.
fn halves_of(turns: usize, removed: Removed) -> (u64, u64) {
    play_in(sessions_without(1, "echo", removed), move |scene| async move {
        let mut written = vec![scene.site.recorder.traffic().bytes_written];
        for half in 0..2 {
            for number in 0..turns / 2 {
                assert!(scene.say(0, &format!("{half}-{number:04}")).await);
                scene.wait(200).await;
            }
            scene.wait(1_000).await;
            written.push(scene.site.recorder.traffic().bytes_written);
        }
        let log = scene.whole_log().await;
        assert_eq!(count(&log, RecordKind::TurnCompleted), turns + 1);
        (written[1] - written[0], written[2] - written[1])
    })
}

#[test]
fn checkpoints_grow_without_bound() {
    let (first, second) = halves_of(2_000, whole());
    assert!(second * 100 <= first * 105, "{first} and {second} bytes");
    let (first, second) = halves_of(200, without_routing(Rule::CheckpointsForget));
    assert!(second * 100 > first * 105, "the rule is needed: {first} and {second} bytes");
}

/// Rows that the next owner of a conversation of 50,000 records reads before it has answered.
fn thawed_after_many_records(removed: Removed) -> u64 {
    play_in(sessions_without(2, "echo", removed), |scene| async move {
        for page in 0..500 {
            let note = |number: usize| {
                let (sender, key) = (Subject::system("@notes"), format!("{page}-{number}").parse().expect("valid"));
                Draft::new(RecordKind::Message, sender, key, Body::of(&json!({ "text": "a note" })))
            };
            let appended = scene.nodes[0].router.append(&scene.room, (0..100).map(note).collect()).await;
            appended.expect("a calm store takes it");
        }
        let turn = scene.starts(0, "last").await;
        assert!(turn > Seq(50_000));
        scene.wait(1_000).await;
        scene.nodes[0].process.kill();
        scene.wait(20_000).await;
        let Traffic { rows_read: before, .. } = scene.site.recorder.traffic();
        let thawed = scene.starts(1, "hello").await;
        scene.wait(1_000).await;
        let rows = scene.site.recorder.traffic().rows_read - before;
        assert!(end_of(&scene.whole_log().await, thawed).is_some(), "it was answered");
        rows
    })
}

#[test]
fn slow_thaw() {
    let rows = thawed_after_many_records(whole());
    assert!(rows < 1_000, "{rows} rows");
    let rows = thawed_after_many_records(without_routing(Rule::CheckpointsAreUsed));
    assert!(rows > 50_000, "the rule is needed: {rows} rows");
}

impl Scene {
    /// The log, however long it is.
    async fn whole_log(&self) -> Vec<Record> {
        self.records_after(Seq(0), usize::MAX).await
    }

    /// A webhook's delivery.
    async fn delivers(&self, node: usize) {
        let (sender, key) = ("hooks".parse().expect("valid"), "evt_1".parse().expect("valid"));
        let event = Draft::new(RecordKind::Event, sender, key, Body::of(&json!({ "paid": true })));
        self.nodes[node].router.append(&self.room, vec![event]).await.expect("it is taken, or was");
    }
}

/// One event over an hour, through three nodes, before and after its owner died. How often is it in the log, and how many turns
/// did it start beside the scene's first?
fn delivered_again_and_again(mutant: Option<Mutant>) -> (usize, usize) {
    play_in(Setting { mutant, ..sessions(3, "echo") }, |scene| async move {
        scene.delivers(0).await;
        scene.delivers(1).await;
        scene.wait(60_000).await;
        scene.delivers(2).await;
        scene.nodes[0].process.kill();
        scene.wait(20_000).await;
        scene.delivers(1).await;
        scene.wait(3_600_000).await;
        scene.delivers(2).await;
        scene.delivers(1).await;
        scene.wait(5_000).await;
        let log = scene.records().await;
        (count(&log, RecordKind::Event), count(&log, RecordKind::TurnStarted) - 1)
    })
}

#[test]
fn webhook_delivered_three_times() {
    assert_eq!(delivered_again_and_again(None), (1, 1));
    let (events, turns) = delivered_again_and_again(Some(Mutant::DedupOff));
    assert!(events > 1 && turns > 1, "the key is needed");
}

/// An owner stands still in the middle of a tool's call, is replaced, and goes on while the next one still works. The epochs of the
/// log in order, what the old one had called, and what it called after all that.
fn an_orphan_wakes(setting: Setting) -> (Vec<Epoch>, usize, usize) {
    play_in(setting, |scene| async move {
        scene.called(3).await;
        let orphan = scene.nodes[0].process.clone();
        orphan.halt(Halt::Process);
        let old = scene.site.outside.calls()[0].epoch;
        let of_the_orphan = |scene: &Scene| scene.site.outside.calls().iter().filter(|call| call.epoch == old).count();
        let before = of_the_orphan(&scene);
        // The next owner's first call: it is in the middle of the turn, too.
        scene.called(4).await;
        // It does not even look whether it is still registered.
        orphan.halt(Halt::Named("heartbeat"));
        orphan.resume(Halt::Process);
        scene.wait(20_000).await;
        let log = scene.records().await;
        (epochs(&log, FIRST), before, of_the_orphan(&scene))
    })
}

#[test]
fn orphan_goes_on_calling_tools() {
    let (epochs, before, after) = an_orphan_wakes(sessions(2, "smith"));
    assert!(epochs.len() == 2 && epochs.is_sorted(), "the old one appends nothing more: {epochs:?}");
    assert_eq!(after, before, "none is past its check: the intent of the next one is refused");
    let removed = without_rule(heart::Rule::ValidityEnds);
    let mutant = Some(Mutant::FenceGone);
    let (_, before, after) = an_orphan_wakes(Setting { mutant, ..sessions_without(2, "smith", removed) });
    assert!(after > before, "validity and fence are needed: {before} and {after}");
}

#[test]
fn deploys_eat_the_retry_budget() {
    /// Rolling restarts, node after node.
    const RESTARTS: usize = 10;
    let (end, owners) = play_in(sessions(2, "walker"), |mut scene| async move {
        for restart in 0..RESTARTS {
            let node = restart % 2;
            let machine = scene.machines[node].clone();
            machine.drain(Duration::ZERO).await;
            machine.shut_down(Duration::from_secs(10)).await;
            scene.start(node).await;
            scene.wait(1_500).await;
        }
        assert_eq!(end_of(&scene.records().await, FIRST), None, "all of them were in the middle of it");
        let log = scene.ended(FIRST).await;
        (end_of(&log, FIRST), epochs(&log, FIRST).len())
    });
    assert_eq!(end, Some(RecordKind::TurnCompleted));
    assert!(owners >= RESTARTS / 2, "{owners} owners");
}
