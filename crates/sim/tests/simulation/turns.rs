//! Turns that outlive their owners, wait while everybody sleeps, and end when they are cancelled from anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use conch_core::conversation::{ConversationKind, SecondMessage, Settings};
use conch_core::ids::{Epoch, Seq};
use conch_core::record::{Record, RecordKind};
use conch_core::refusal::{Code, Refusal};
use conch_core::sequencer::{Outcome, Receipt};
use conch_core::turn::StepId;
use conch_core::turn::awaits::AwaitId;
use conch_core::turn::cancel::{Cancel, CancelMode, Regenerate, Resolve, TurnAsk};
use conch_sim::asker::ASKER_WAITS;
use conch_sim::scenario::TIMING;
use conch_store::LogStore as _;
use conch_store::memory::Mutant;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::scene::{Scene, Setting, play_in, whole};

/// Machines with sessions of this agent, and leases of a second and a half.
pub(crate) fn sessions(machines: usize, agent: &'static str) -> Setting {
    let mut setting = Setting { kind: ConversationKind::Session, agent, ..Setting::of(machines, whole()) };
    setting.limits.timing = TIMING;
    setting.limits.owner.hibernate_after = Duration::from_secs(5);
    setting
}

impl Scene {
    /// The receipt of what is asked for, which comes last.
    pub(crate) async fn asks(&self, node: usize, ask: TurnAsk) -> Result<Receipt, Refusal> {
        let receipts = self.nodes[node].router.turn(&self.room, ask).await?;
        Ok(*receipts.last().expect("one for each record"))
    }

    pub(crate) async fn cancel(&self, node: usize, turn: Seq, mode: CancelMode) -> Result<Receipt, Refusal> {
        let by = "bob".parse().expect("valid");
        self.asks(node, TurnAsk::Cancel(Cancel { turn, mode, by, reason: None })).await
    }

    pub(crate) async fn resolve(&self, node: usize, turn: Seq, payload: Value) -> Result<Receipt, Refusal> {
        let step = StepId::own("ask", 1).expect("a step's name");
        let resolve = Resolve { id: AwaitId::of(turn, &step), payload, by: "bob".into() };
        self.asks(node, TurnAsk::Resolve(resolve)).await
    }

    /// Sends an input and returns its turn.
    pub(crate) async fn starts(&self, node: usize, key: &str) -> Seq {
        self.send(node, key).await.expect("an answer").expect("a calm store takes it").seq
    }

    /// Waits until the log holds this kind for a turn.
    pub(crate) async fn until(&self, kind: RecordKind, turn: Seq) -> Vec<Record> {
        for _ in 0..6_000 {
            let log = self.records().await;
            if log.iter().any(|record| record.kind == kind && record.turn == Some(turn)) {
                return log;
            }
            self.wait(100).await;
        }
        panic!("no {kind} of turn {turn}: {:?}", lines(&self.records().await, turn));
    }
}

/// What the log says of a turn: kinds and keys.
pub(crate) fn lines(log: &[Record], turn: Seq) -> Vec<String> {
    let of_turn = log.iter().filter(|record| record.turn == Some(turn));
    of_turn.map(|record| format!("{} {}", record.kind, record.client_msg_id.as_ref().expect("a key"))).collect()
}

pub(crate) fn epochs(log: &[Record], turn: Seq) -> Vec<Epoch> {
    let mut epochs: Vec<Epoch> =
        log.iter().filter(|record| record.turn == Some(turn)).map(|record| record.epoch).collect();
    epochs.dedup();
    epochs
}

/// A demo turn whose owner is killed so many milliseconds after its input was acked.
fn killed_after(ms: u64) -> (Vec<String>, usize) {
    play_in(sessions(2, "demo"), move |scene| async move {
        scene.until(RecordKind::TurnCompleted, Seq(1)).await;
        let turn = scene.starts(0, "work").await;
        scene.wait(ms).await;
        scene.nodes[0].process.kill();
        let log = scene.until(RecordKind::TurnCompleted, turn).await;
        let lines = lines(&log, turn).into_iter().map(|line| line.replace(&turn.to_string(), "T")).collect();
        (lines, epochs(&log, turn).len())
    })
}

#[test]
fn a_turn_whose_owner_is_killed_finishes_with_each_step_once() {
    let whole = [
        "turn.started T",
        "step.completed T/m1",
        "step.started T/m1.t0",
        "step.completed T/m1.t0",
        "step.completed T/m2",
        "message T",
        "turn.completed T",
    ];
    let mut moved = 0;
    for ms in (0..2_400).step_by(300) {
        let (lines, epochs) = killed_after(ms);
        assert_eq!(lines, whole, "killed after {ms} ms");
        moved += usize::from(epochs > 1);
    }
    assert!(moved >= 4, "most were killed in the middle, {moved} were");
}

#[test]
fn a_turn_outlives_the_restarts_of_its_only_node() {
    let restarts = play_in(sessions(1, "demo"), |scene| async move {
        scene.until(RecordKind::TurnCompleted, Seq(1)).await;
        let turn = scene.starts(0, "work").await;
        let mut restarts = 0;
        while restarts < 3 {
            scene.wait(700).await;
            scene.machines[0].running().expect("it runs").process.kill();
            scene.machines[0].start();
            scene.wait(3_000).await;
            restarts += 1;
        }
        let log = scene.until(RecordKind::TurnCompleted, turn).await;
        assert_eq!(log.iter().filter(|record| record.kind.ends_turn() && record.turn == Some(turn)).count(), 1);
        restarts
    });
    assert_eq!(restarts, 3);
}

#[test]
fn a_cancel_through_another_node_ends_the_turn_and_nothing_follows() {
    play_in(sessions(2, "demo"), |scene| async move {
        scene.until(RecordKind::TurnCompleted, Seq(1)).await;
        let turn = scene.starts(0, "work").await;
        scene.wait(900).await;
        let receipt = scene.cancel(1, turn, CancelMode::Keep).await.expect("it runs");
        let log = scene.records().await;
        assert_eq!(log.last().map(|end| (end.kind, end.seq)), Some((RecordKind::TurnCancelled, receipt.seq)));
        let answer = log.iter().rfind(|record| record.kind == RecordKind::Message).expect("what was said");
        // Of the step that ran; what came before is in the journal.
        assert!(answer.body.as_str().starts_with(r#"{"text":"You wrote: “work” My"#), "{:?}", answer.body);
        assert_eq!(answer.turn, Some(turn));
        let again = scene.cancel(0, turn, CancelMode::Keep).await.expect("the same once more");
        assert_eq!((again.seq, again.outcome), (receipt.seq, Outcome::Duplicate));
        let other = scene.cancel(1, turn, CancelMode::Rollback).await.expect_err("it has ended");
        assert_eq!((other.code, other.retry), (Code::Conflict, None));
        assert!(other.detail.contains("turn.cancelled"), "{other}");
        let none = scene.cancel(1, Seq(99_999), CancelMode::Keep).await.expect_err("there is none");
        assert_eq!(none.code, Code::NotFound);
        scene.wait(5_000).await;
        assert_eq!(scene.records().await.len(), log.len(), "nothing follows");
    });
}

#[test]
fn a_turn_waits_while_everybody_sleeps_and_many_answers_have_one_effect() {
    play_in(sessions(2, "asker"), |scene| async move {
        let turn = Seq(1);
        scene.until(RecordKind::AwaitOpened, turn).await;
        scene.wait(30_000).await;
        let info = scene.site.recorder.conversation(&scene.room).await.expect("no failure").expect("it exists");
        assert_eq!(info.head.and_then(|head| head.owner), None, "nobody holds what only waits");
        let misfit = scene.resolve(0, turn, json!("secret")).await.expect_err("it is no integer");
        assert_eq!((misfit.code, misfit.retry), (Code::UnprocessableRequest, None), "{misfit}");
        let asked = (0..50_usize).map(|n| scene.resolve(n % 2, turn, json!(n % 3)));
        let answers = join_all(asked.collect::<Vec<_>>()).await;
        let log = scene.until(RecordKind::TurnCompleted, turn).await;
        let resolved: Vec<&Record> = log.iter().filter(|record| record.kind == RecordKind::AwaitResolved).collect();
        assert_eq!(resolved.len(), 1);
        assert_eq!(resolved[0].name.as_deref(), Some("bob"));
        let payload = resolved[0].body.to_value()["payload"].as_u64().expect("a number");
        for (n, answer) in answers.iter().enumerate() {
            match answer {
                Ok(receipt) => assert_eq!((receipt.seq, (n % 3) as u64), (resolved[0].seq, payload)),
                Err(refusal) => assert_eq!((refusal.code, refusal.retry), (Code::Conflict, None), "{refusal}"),
            }
        }
        let same = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!((16..=17).contains(&same), "all that said the same are told so: {same}");
        let expected = [
            "turn.started 1",
            "step.completed 1/prepare",
            "await.opened 1-ask",
            "await.resolved 1-ask",
            "step.completed 1/conclude",
            "message 1",
            "turn.completed 1",
        ];
        assert_eq!(lines(&log, turn), expected);
    });
}

#[test]
fn an_await_expires_on_time_though_nobody_is_there() {
    play_in(sessions(2, "asker"), |scene| async move {
        let turn = Seq(1);
        let log = scene.until(RecordKind::AwaitOpened, turn).await;
        let opened = log.last().expect("the await").at;
        let log = scene.until(RecordKind::TurnCompleted, turn).await;
        let resolved = log.iter().find(|record| record.kind == RecordKind::AwaitResolved).expect("it expired");
        assert!(resolved.body.as_str().contains(r#""expired":true"#));
        let waited = Duration::from_millis(u64::try_from(resolved.at.0 - opened.0).expect("later"));
        assert!(waited >= ASKER_WAITS - Duration::from_millis(10), "{waited:?}");
        assert!(waited < ASKER_WAITS + Duration::from_secs(3), "{waited:?}");
        let late = scene.resolve(0, turn, json!(1)).await.expect_err("it is over");
        assert_eq!(late.code, Code::Conflict);
    });
}

/// An await whose owner is killed so long after it was opened. The turn's records a little after the time is over.
fn expires_after_a_death(ms: u64, mutant: Option<Mutant>) -> Vec<Record> {
    play_in(Setting { mutant, ..sessions(2, "asker") }, move |scene| async move {
        scene.until(RecordKind::AwaitOpened, Seq(1)).await;
        scene.wait(ms).await;
        scene.nodes[0].process.kill();
        let rest = ASKER_WAITS - Duration::from_millis(ms) + Duration::from_secs(5);
        scene.wait(u64::try_from(rest.as_millis()).expect("a few minutes")).await;
        scene.records().await
    })
}

#[test]
fn an_await_expires_on_time_though_its_owner_died() {
    // While somebody still has the conversation, and when it sleeps.
    for ms in [500, 30_000] {
        let log = expires_after_a_death(ms, None);
        let expected = [
            "turn.started 1",
            "step.completed 1/prepare",
            "await.opened 1-ask",
            "await.resolved 1-ask",
            "step.completed 1/conclude",
            "message 1",
            "turn.completed 1",
        ];
        assert_eq!(lines(&log, Seq(1)), expected, "killed after {ms} ms");
        let at = |kind| log.iter().find(|record| record.kind == kind).expect("it is there");
        let (opened, resolved) = (at(RecordKind::AwaitOpened), at(RecordKind::AwaitResolved));
        assert!(resolved.body.as_str().contains(r#""expired":true"#) && resolved.epoch > opened.epoch);
        let waited = Duration::from_millis(u64::try_from(resolved.at.0 - opened.at.0).expect("later"));
        assert!(waited >= ASKER_WAITS - Duration::from_millis(10), "{waited:?}");
        assert!(waited < ASKER_WAITS + Duration::from_secs(3), "{waited:?}");
    }
    let log = expires_after_a_death(500, Some(Mutant::DueIgnored));
    assert!(log.iter().all(|record| record.kind != RecordKind::AwaitResolved), "the due row is needed");
}

#[test]
fn the_last_turn_is_run_again_once() {
    play_in(sessions(2, "demo"), |scene| async move {
        let turn = Seq(1);
        scene.until(RecordKind::TurnCompleted, turn).await;
        let again = |key: &str| {
            TurnAsk::Regenerate(Regenerate {
                turn,
                by: "alice".parse().expect("valid"),
                name: None,
                client_msg_id: key.parse().expect("valid"),
            })
        };
        let receipts = scene.nodes[1].router.turn(&scene.room, again("r1")).await.expect("it is the last one");
        let new = receipts[1].seq;
        let retry = scene.asks(0, again("r1")).await.expect("the same once more");
        assert_eq!((retry.seq, retry.outcome), (new, Outcome::Duplicate));
        assert_eq!(scene.asks(0, again("r2")).await.expect_err("it is not any more").code, Code::Conflict);
        let log = scene.until(RecordKind::TurnCompleted, new).await;
        let replaced = log.iter().filter(|record| record.kind == RecordKind::TurnSuperseded).count();
        assert_eq!(replaced, 1);
    });
}

/// How the turns of three quick messages end under a setting.
fn three_under(second_message: SecondMessage) -> (BTreeMap<&'static str, usize>, usize) {
    let settings = Settings { second_message: Some(second_message), ..Settings::default() };
    play_in(Setting { settings, ..sessions(2, "demo") }, |scene| async move {
        scene.until(RecordKind::TurnCompleted, Seq(1)).await;
        let mut accepted = 0;
        for key in ["one", "two", "three"] {
            accepted += usize::from(scene.say(1, key).await);
            scene.wait(300).await;
        }
        scene.wait(30_000).await;
        let mut ends = BTreeMap::new();
        for record in scene.records().await.iter().filter(|record| record.seq > Seq(1) && record.kind.ends_turn()) {
            *ends.entry(record.kind.as_str()).or_insert(0) += 1;
        }
        (ends, accepted)
    })
}

#[test]
fn a_second_message_is_treated_as_the_settings_say() {
    // The first turn of the scene ended well, too.
    let ends = |well: usize, other: Option<(&'static str, usize)>| {
        [("turn.completed", well)].into_iter().chain(other).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(three_under(SecondMessage::Queue), (ends(4, None), 3));
    assert_eq!(three_under(SecondMessage::Reject), (ends(2, None), 1));
    assert_eq!(three_under(SecondMessage::Interrupt), (ends(2, Some(("turn.cancelled", 2))), 3));
    assert_eq!(three_under(SecondMessage::Steer), (ends(2, Some(("turn.superseded", 2))), 3));
    assert_eq!(three_under(SecondMessage::Merge), (ends(2, Some(("turn.superseded", 2))), 3));
}
