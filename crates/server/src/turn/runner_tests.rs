//! The runner against an owner that records what it is asked, in simulated time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::body::Body;
use conch_core::ids::{Epoch, Seq};
use conch_core::record::Draft;
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::time::{Monotonic, Timestamp};
use conch_core::turn::journal::FailReason;
use conch_core::turn::live::{Applied, LiveEvent, LiveView};
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::watch;

use crate::seams::{Clock, Random, Seams, Spawn};
use crate::turn::agents::Agents;
use crate::turn::runner::{FIRST_ATTEMPT, RunOutcome, Signal, TurnPort, TurnRun, run};

/// Time that stands still but for sleeping, which takes no time at all.
#[derive(Default)]
struct Dream(Mutex<Monotonic>);

impl Clock for Dream {
    fn now(&self) -> Monotonic {
        *self.0.lock().expect("not poisoned")
    }
    fn wall(&self) -> Timestamp {
        Timestamp(0)
    }
    fn sleep_until(&self, at: Monotonic) -> BoxFuture<'static, ()> {
        let mut now = self.0.lock().expect("not poisoned");
        *now = at.max(*now);
        Box::pin(std::future::ready(()))
    }
}

struct Nothing;

impl Spawn for Nothing {
    fn spawn(&self, name: &'static str, _: BoxFuture<'static, ()>) {
        unreachable!("a runner spawns nothing, yet {name}");
    }
    fn spawn_dedicated(&self, name: &'static str, _: BoxFuture<'static, ()>) {
        unreachable!("a runner spawns nothing, yet {name}");
    }
}

impl Random for Nothing {
    fn bits(&self) -> u64 {
        7
    }
}

/// What the owner saw, in order.
#[derive(Debug, Clone)]
enum Seen {
    Live(LiveEvent),
    Appended(Vec<Draft>),
}

struct Owner {
    seams: Seams,
    seen: Mutex<Vec<Seen>>,
    inputs: Mutex<VecDeque<Result<Body, Refusal>>>,
    /// Answers to the next appends; afterwards all succeed.
    appends: Mutex<VecDeque<Result<(), Refusal>>>,
    /// Every append that was asked for, also those refused: (when, the keys).
    asked: Mutex<Vec<(Duration, String)>>,
    stop: watch::Sender<Signal>,
    /// Stops the runner at the live event of this number.
    stop_at: Option<usize>,
}

impl Owner {
    fn new(text: &str) -> Self {
        let seams = Seams { clock: Arc::new(Dream::default()), spawner: Arc::new(Nothing), random: Arc::new(Nothing) };
        Self {
            seams,
            seen: Mutex::default(),
            inputs: Mutex::new(VecDeque::from([Ok(Body::of(&json!({ "text": text })))])),
            appends: Mutex::default(),
            asked: Mutex::default(),
            stop: watch::Sender::new(Signal::Run),
            stop_at: None,
        }
    }

    fn answering(text: &str, appends: impl IntoIterator<Item = Result<(), Refusal>>) -> Self {
        Self { appends: Mutex::new(appends.into_iter().collect()), ..Self::new(text) }
    }

    async fn run(self: &Arc<Self>, agent: &str) -> RunOutcome {
        let turn =
            TurnRun { turn: Seq(7), agent: agent.parse().expect("valid"), epoch: Epoch(3), attempt: FIRST_ATTEMPT };
        let agents = Arc::new(Agents::default());
        run(self.seams.clone(), Arc::clone(self), agents, turn, self.stop.subscribe()).await
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("not poisoned").clone()
    }

    /// The kinds of what was appended, one text a commit.
    fn commits(&self) -> Vec<String> {
        let kinds = |drafts: Vec<Draft>| drafts.iter().map(|draft| draft.kind.as_str()).collect::<Vec<_>>().join("+");
        let commit = |seen| match seen {
            Seen::Appended(drafts) => Some(kinds(drafts)),
            Seen::Live(_) => None,
        };
        self.seen().into_iter().filter_map(commit).collect()
    }

    fn asked(&self) -> Vec<(Duration, String)> {
        self.asked.lock().expect("not poisoned").clone()
    }

    fn bodies(&self) -> Vec<String> {
        let drafts = self.seen().into_iter().flat_map(|seen| match seen {
            Seen::Appended(drafts) => drafts,
            Seen::Live(_) => Vec::new(),
        });
        drafts.map(|draft| draft.body.as_str().to_owned()).collect()
    }
}

#[async_trait]
impl TurnPort for Owner {
    async fn input(&self, turn: Seq) -> Result<Body, Refusal> {
        assert_eq!(turn, Seq(7));
        self.inputs.lock().expect("not poisoned").pop_front().expect("it asks no more often than it must")
    }

    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal> {
        let keys: Vec<&str> = drafts.iter().map(|draft| draft.client_msg_id.as_str()).collect();
        let since_start = self.seams.now().since(Monotonic(0));
        self.asked.lock().expect("not poisoned").push((since_start, keys.join("+")));
        let answer = self.appends.lock().expect("not poisoned").pop_front().unwrap_or(Ok(()));
        if answer.is_ok() {
            self.seen.lock().expect("not poisoned").push(Seen::Appended(drafts));
        }
        answer
    }

    fn live(&self, event: LiveEvent) {
        let mut seen = self.seen.lock().expect("not poisoned");
        seen.push(Seen::Live(event));
        if self.stop_at == Some(seen.len()) {
            self.stop.send_replace(Signal::Stop);
        }
    }
}

fn later() -> Refusal {
    Refusal::retry(Code::StoreUnavailable, "later", Retry { after_ms: 1000, budget_ms: 20_000 })
}

#[tokio::test]
async fn a_turn_streams_its_steps_and_ends_with_the_answer_in_one_commit() {
    let owner = Arc::new(Owner::new("What is 6 * 7?"));
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let expected = ["step.completed", "step.completed", "step.completed", "message+turn.completed"];
    assert_eq!(owner.commits(), expected);
    let bodies = owner.bodies();
    assert!(
        bodies[0].starts_with(r#"{"step":"m1","type":"model","output":"Hello, I am the demo agent."#),
        "{}",
        bodies[0]
    );
    assert_eq!(
        bodies[1],
        r#"{"step":"m1.t0","type":"tool","name":"calculator","input":{"expression":"6 * 7"},"output":{"exact":true,"result":"42"}}"#
    );
    assert!(bodies[3].starts_with(r#"{"text":"I asked my calculator: 6 * 7 is 42, exactly."#), "{}", bodies[3]);
    assert_eq!(bodies[4], "{}");
    let took = owner.seams.now().since(Monotonic(0));
    assert!((8..13).contains(&took.as_secs()), "{took:?} of simulated time");
}

#[tokio::test]
async fn every_delta_fits_and_a_step_is_in_the_log_before_the_next_streams() {
    let owner = Arc::new(Owner::new("count 🌍 these words"));
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let (mut view, mut outputs) = (LiveView::default(), Vec::new());
    for seen in owner.seen() {
        match seen {
            Seen::Live(event) => assert_eq!(view.apply(&event), Applied::Fits, "{event:?}"),
            Seen::Appended(drafts) => {
                let body = drafts[0].body.to_value();
                if body["type"] == "model" {
                    let Some(LiveEvent::Snapshot(shown)) = view.snapshot() else { panic!("something was streamed") };
                    assert_eq!(body["output"].as_str(), Some(&*shown.text), "the record holds what was streamed");
                    assert_eq!(body["step"].as_str(), Some(shown.step.as_str()));
                    outputs.push(shown.text.to_string());
                }
            }
        }
    }
    assert_eq!(outputs.len(), 2);
    assert!(outputs[1].contains("“count 🌍 these words” My tool counted 4 words and 19 characters"), "{}", outputs[1]);
}

#[tokio::test]
async fn a_refusal_with_a_directive_is_tried_again_under_the_same_key() {
    let owner = Arc::new(Owner::answering("hi", [Err(later()), Err(later()), Ok(())]));
    owner.inputs.lock().expect("not poisoned").push_front(Err(later()));
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let asked = owner.asked();
    let keys: Vec<&str> = asked.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(keys, ["7/m1", "7/m1", "7/m1", "7/m1.t0", "7/m2", "7+7"]);
    for pair in asked[..3].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_secs(1), "not before the directive says");
    }
}

#[tokio::test]
async fn a_directive_is_followed_for_its_budget_and_then_the_turn_fails() {
    // At least a second between two attempts: at most 20 fit into the budget, the first one aside.
    let refusals = std::iter::repeat_with(|| Err(later())).take(1000);
    let owner = Arc::new(Owner::answering("hi", refusals));
    assert_eq!(owner.run("demo").await, RunOutcome::Unfinished(later()));
    let asked = owner.asked();
    let step = asked.iter().filter(|(_, key)| key == "7/m1").count();
    let end = asked.iter().filter(|(_, key)| key == "7").count();
    assert!((15..=21).contains(&step), "{step} attempts");
    assert!((15..=21).contains(&end), "{end} attempts to fail");
    assert_eq!(step + end, asked.len());
    let mut once = vec![Err(Refusal::retry(Code::Overloaded, "no", Retry { after_ms: 50, budget_ms: 10 }))];
    once.push(Ok(()));
    let owner = Arc::new(Owner::answering("hi", once));
    assert_eq!(owner.run("demo").await, RunOutcome::Failed(FailReason::AppendRefused));
    assert_eq!(owner.bodies(), [r#"{"reason":"append_refused"}"#]);
}

#[tokio::test]
async fn a_refusal_without_a_directive_fails_the_turn() {
    let owner = Arc::new(Owner::answering("hi", [Ok(()), Err(Refusal::new(Code::TooLarge, "too large"))]));
    assert_eq!(owner.run("demo").await, RunOutcome::Failed(FailReason::AppendRefused));
    assert_eq!(owner.commits(), ["step.completed", "turn.failed"]);
    assert!(
        !owner
            .seen()
            .iter()
            .any(|seen| matches!(seen, Seen::Live(LiveEvent::Delta(piece)) if piece.step.as_str() == "m2"))
    );
}

#[tokio::test]
async fn a_turn_that_is_not_its_own_any_more_is_left_alone() {
    let owner = Arc::new(Owner::answering("hi", [Err(Refusal::new(Code::Conflict, "turn: 7 is not running"))]));
    assert_eq!(owner.run("demo").await, RunOutcome::Stopped);
    assert_eq!(owner.asked().len(), 1);
}

#[tokio::test]
async fn an_agent_that_this_node_does_not_have_fails_the_turn() {
    let owner = Arc::new(Owner::new("hi"));
    assert_eq!(owner.run("other").await, RunOutcome::Failed(FailReason::AgentUnknown));
    assert_eq!(owner.bodies(), [r#"{"reason":"agent_unknown"}"#]);
}

#[tokio::test]
async fn after_a_stop_nothing_is_streamed_and_nothing_appended() {
    let owner = Arc::new(Owner { stop_at: Some(5), ..Owner::new("hi") });
    assert_eq!(owner.run("demo").await, RunOutcome::Stopped);
    assert_eq!(owner.seen().len(), 5);
    let owner = Arc::new(Owner::new("hi"));
    owner.stop.send_replace(Signal::Stop);
    assert_eq!(owner.run("demo").await, RunOutcome::Stopped);
    assert_eq!((owner.seen().len(), owner.asked().len()), (0, 0));
}

#[tokio::test]
async fn an_owner_that_is_gone_stops_its_runner() {
    let owner = Arc::new(Owner::new("hi"));
    let (sender, signal) = watch::channel(Signal::Run);
    drop(sender);
    let turn = TurnRun { turn: Seq(7), agent: "demo".parse().expect("valid"), epoch: Epoch(3), attempt: FIRST_ATTEMPT };
    let outcome = run(owner.seams.clone(), Arc::clone(&owner), Arc::new(Agents::default()), turn, signal).await;
    assert_eq!(outcome, RunOutcome::Stopped);
    assert_eq!((owner.seen().len(), owner.asked().len()), (0, 0));
}
