//! Nodes that lack an agent, as while a cluster's nodes get another configuration one after the other.

use std::time::Duration;

use conch_core::ids::{Epoch, Seq};
use conch_core::record::{Record, RecordKind};
use conch_core::turn::cancel::CancelMode;
use conch_server::rules::Rule;
use conch_sim::machine::Removed;

use crate::scene::{Scene, Setting, play_in, whole};
use crate::turns::{lines, sessions};

/// The scene's first turn.
const FIRST: Seq = Seq(1);

fn lacking(machines: usize, agent: &'static str, removed: Removed) -> Setting {
    Setting { removed, ..sessions(machines, agent) }
}

fn without(agents: &[(&'static str, &'static str)]) -> Removed {
    Removed { agents: agents.to_vec(), ..whole() }
}

impl Scene {
    /// The log once the first turn has ended in whatever way.
    async fn over(&self) -> Vec<Record> {
        for _ in 0..3_000 {
            let log = self.records().await;
            if log.iter().any(|record| record.kind.ends_turn() && record.turn == Some(FIRST)) {
                return log;
            }
            self.wait(100).await;
        }
        panic!("turn 1 has no end: {:?}", lines(&self.records().await, FIRST));
    }
}

fn of(log: &[Record], kind: RecordKind) -> &Record {
    log.iter().find(|record| record.kind == kind).unwrap_or_else(|| panic!("no {kind}: {:?}", lines(log, FIRST)))
}

/// A message through the node that lacks its session's agent.
fn said_where_the_agent_is_not(removed: Removed) -> Vec<Record> {
    play_in(lacking(2, "echo", removed), |scene| async move { scene.over().await })
}

#[test]
fn a_turn_is_run_by_a_node_that_has_its_agent_whoever_took_the_message() {
    let log = said_where_the_agent_is_not(without(&[("node-0", "echo")]));
    assert_eq!(lines(&log, FIRST), ["turn.started 1", "message 1", "turn.completed 1"]);
    let (said, started) = (of(&log, RecordKind::Message), of(&log, RecordKind::TurnStarted));
    assert!(said.epoch < started.epoch, "the one that took it has not started it");
    let removed = Removed { routing: vec![Rule::AgentIsSought], ..without(&[("node-0", "echo")]) };
    let log = said_where_the_agent_is_not(removed);
    assert!(of(&log, RecordKind::TurnFailed).body.as_str().contains("agent_unknown"), "the rule is needed");
}

#[test]
fn a_turn_whose_owner_died_goes_on_where_its_agent_is() {
    for lacks in ["node-1", "node-2"] {
        let log = play_in(lacking(3, "walker", without(&[(lacks, "walker")])), |scene| async move {
            scene.until(RecordKind::StepCompleted, FIRST).await;
            scene.nodes[0].process.kill();
            scene.over().await
        });
        assert_eq!(of(&log, RecordKind::TurnCompleted).turn, Some(FIRST), "{lacks} lacks it");
        assert_eq!(log.iter().filter(|record| record.kind == RecordKind::TurnStarted).count(), 1);
    }
}

#[test]
fn a_turn_whose_agent_no_node_has_fails_after_a_while_and_says_so() {
    let nobody = || without(&[("node-0", "echo"), ("node-1", "echo")]);
    let log = play_in(lacking(2, "echo", nobody()), |scene| async move { scene.over().await });
    assert_eq!(lines(&log, FIRST), ["turn.started 1", "turn.failed 1"]);
    let failed = of(&log, RecordKind::TurnFailed);
    assert_eq!(failed.body.as_str(), r#"{"detail":"no node has the agent echo","reason":"agent_unknown"}"#);
    let waited = Duration::from_millis(u64::try_from(failed.at.0 - log[0].at.0).expect("later"));
    assert!(waited >= Duration::from_secs(59) && waited < Duration::from_secs(70), "{waited:?}");
}

#[test]
fn a_turn_that_waits_for_its_agent_can_be_cancelled() {
    let nobody = without(&[("node-0", "echo"), ("node-1", "echo")]);
    let log = play_in(lacking(2, "echo", nobody), |scene| async move {
        scene.wait(2_000).await;
        scene.cancel(1, FIRST, CancelMode::Keep).await.expect("it is open");
        scene.wait(90_000).await;
        scene.records().await
    });
    assert_eq!(lines(&log, FIRST), ["turn.cancelled 1"]);
}

/// The node that has the agent is there a little later.
#[test]
fn a_turn_starts_when_a_node_with_its_agent_comes() {
    let setting = Setting { late: 1, ..lacking(2, "echo", without(&[("node-0", "echo")])) };
    let log = play_in(setting, |mut scene| async move {
        scene.wait(20_000).await;
        assert_eq!(lines(&scene.records().await, FIRST), Vec::<String>::new(), "nothing is started meanwhile");
        scene.start(1).await;
        scene.over().await
    });
    assert_eq!(lines(&log, FIRST), ["turn.started 1", "message 1", "turn.completed 1"]);
}

/// The epochs of two messages. The turn of the first is cancelled while its agent is looked for, a node that has it comes, and then the second
/// is said.
fn epochs_around_a_cancelled_search(removed: Removed) -> Vec<Epoch> {
    let setting = Setting { late: 1, ..lacking(2, "echo", removed) };
    play_in(setting, |mut scene| async move {
        scene.wait(2_000).await;
        scene.cancel(0, FIRST, CancelMode::Keep).await.expect("it is open");
        scene.start(1).await;
        scene.wait(20_000).await;
        assert!(scene.say(0, "again").await);
        let log = scene.records().await;
        log.iter().filter(|record| record.kind == RecordKind::Message).map(|record| record.epoch).take(2).collect()
    })
}

#[test]
fn a_search_that_is_not_needed_any_more_hands_nothing_over() {
    let epochs = epochs_around_a_cancelled_search(without(&[("node-0", "echo")]));
    assert_eq!(epochs[0], epochs[1], "its owner kept it");
    let removed = Removed { routing: vec![Rule::SearchesAreCalledOff], ..without(&[("node-0", "echo")]) };
    let epochs = epochs_around_a_cancelled_search(removed);
    assert!(epochs[0] < epochs[1], "the rule is needed");
}
