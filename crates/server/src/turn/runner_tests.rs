//! The runner against an owner that records what it is asked, in simulated time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::body::Body;
use conch_core::ids::{Epoch, Seq};
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::time::{Monotonic, Timestamp};
use conch_core::turn::awaits::{AwaitId, Resolution};
use conch_core::turn::journal::{self, FailReason};
use conch_core::turn::live::{Applied, LiveEvent, LiveView};
use conch_core::turn::{Begin, StepId};
use conch_store::Direction;
use futures_util::future::BoxFuture;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::seams::{Clock, Random, Seams, Spawn};
use crate::turn::agent::{Answer, Halt, TurnAgent};
use crate::turn::agents::{AgentLimits, Agents};
use crate::turn::context::{Await, OnUnknown, StepBegin, ToolCall, TurnContext};
use crate::turn::port::Records;
use crate::turn::runner::{RunOutcome, Signal, TurnPort, TurnRun, run};
use conch_core::turn::result::{AskedCall, StepResult, ToolStatus, Usage};

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
    agents: Arc<Agents>,
    seen: Mutex<Vec<Seen>>,
    /// The log, the input first.
    log: Mutex<Vec<Record>>,
    /// Refusals of the next reads; afterwards all succeed.
    unread: Mutex<VecDeque<Refusal>>,
    /// Inputs that join when they are asked for.
    waiting: Mutex<Vec<Seq>>,
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
            agents: Arc::new(Agents::default()),
            seen: Mutex::default(),
            log: Mutex::new(vec![input(7, text)]),
            unread: Mutex::default(),
            waiting: Mutex::default(),
            appends: Mutex::default(),
            asked: Mutex::default(),
            stop: watch::Sender::new(Signal::Run),
            stop_at: None,
        }
    }

    fn answering(text: &str, appends: impl IntoIterator<Item = Result<(), Refusal>>) -> Self {
        Self { appends: Mutex::new(appends.into_iter().collect()), ..Self::new(text) }
    }

    /// With an agent of the test's own, by the name of `own`.
    fn with_own(text: &str, agent: impl TurnAgent) -> Self {
        let limits = AgentLimits { tokens: Some(10), ..AgentLimits::default() };
        let agents = Agents::default().with("own".parse().expect("valid"), limits, Arc::new(agent));
        Self { agents: Arc::new(agents), ..Self::new(text) }
    }

    async fn run(self: &Arc<Self>, agent: &str) -> RunOutcome {
        self.run_as(turn_run(agent, Begin::First)).await
    }

    async fn run_as(self: &Arc<Self>, turn: TurnRun) -> RunOutcome {
        let port: Arc<dyn TurnPort> = self.clone();
        run(self.seams.clone(), port, Arc::clone(&self.agents), turn, self.stop.subscribe(), mpsc::channel(1).1).await
    }

    /// The owner goes away once so many groups are appended: the next append finds another one.
    async fn run_until(self: &Arc<Self>, agent: &str, begin: Begin, appends: usize) -> RunOutcome {
        let answers = std::iter::repeat_n(Ok(()), appends).chain([Err(gone())]);
        *self.appends.lock().expect("not poisoned") = answers.collect();
        let outcome = self.run_as(turn_run(agent, begin)).await;
        self.appends.lock().expect("not poisoned").clear();
        outcome
    }

    /// Somebody else appends this.
    fn land(&self, draft: Draft) {
        let mut log = self.log.lock().expect("not poisoned");
        let seq = log.last().expect("the input").seq.next();
        log.push(Record::from_draft("room".parse().expect("valid"), seq, Epoch(3), Timestamp(0), draft));
    }

    fn live(&self) -> Vec<LiveEvent> {
        let live = |seen| match seen {
            Seen::Live(event) => Some(event),
            Seen::Appended(_) => None,
        };
        self.seen().into_iter().filter_map(live).collect()
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
    async fn range(&self, direction: Direction, kinds: &[RecordKind], limit: usize) -> Result<Records, Refusal> {
        if let Some(refusal) = self.unread.lock().expect("not poisoned").pop_front() {
            return Err(refusal);
        }
        let Direction::After(after) = direction else { panic!("{direction:?} is not read here") };
        let log = self.log.lock().expect("not poisoned");
        let wanted = |record: &&Record| record.seq > after && (kinds.is_empty() || kinds.contains(&record.kind));
        let records: Vec<Record> = log.iter().filter(wanted).take(limit).cloned().collect();
        let more = log.iter().filter(wanted).count() > records.len();
        Ok(Records { records, more })
    }

    async fn append(&self, drafts: Vec<Draft>) -> Result<(), Refusal> {
        let keys: Vec<&str> = drafts.iter().map(|draft| draft.client_msg_id.as_str()).collect();
        let since_start = self.seams.now().since(Monotonic(0));
        self.asked.lock().expect("not poisoned").push((since_start, keys.join("+")));
        let answer = self.appends.lock().expect("not poisoned").pop_front().unwrap_or(Ok(()));
        if answer.is_ok() {
            drafts.iter().for_each(|draft| self.land(draft.clone()));
            self.seen.lock().expect("not poisoned").push(Seen::Appended(drafts));
        }
        answer
    }

    async fn join(&self) -> Result<Vec<Seq>, Refusal> {
        let joining = std::mem::take(&mut *self.waiting.lock().expect("not poisoned"));
        joining.iter().for_each(|input| self.land(journal::joined(*input, Seq(7))));
        Ok(joining)
    }

    fn live(&self, event: LiveEvent) {
        let mut seen = self.seen.lock().expect("not poisoned");
        seen.push(Seen::Live(event));
        if self.stop_at == Some(seen.len()) {
            self.stop.send_replace(Signal::Stop);
        }
    }

    fn next_attempt(&self) -> u32 {
        unreachable!("none of these agents begins a step again")
    }
}

fn input(seq: u64, text: &str) -> Record {
    let (sender, key) = ("alice".parse().expect("valid"), format!("k{seq}").parse().expect("valid"));
    let draft = Draft::new(RecordKind::Message, sender, key, Body::of(&json!({ "text": text })));
    Record::from_draft("room".parse().expect("valid"), Seq(seq), Epoch(3), Timestamp(0), draft)
}

fn turn_run(agent: &str, begin: Begin) -> TurnRun {
    TurnRun {
        conversation: "room".parse().expect("valid"),
        turn: Seq(7),
        agent: agent.parse().expect("valid"),
        epoch: Epoch(3),
        attempt: 1,
        begin,
        deadline: Timestamp(1_000_000),
    }
}

fn gone() -> Refusal {
    Refusal::new(Code::Conflict, "turn: 7 is not running")
}

fn later() -> Refusal {
    Refusal::retry(Code::StoreUnavailable, "later", Retry { after_ms: 1000, budget_ms: 20_000 })
}

#[tokio::test]
async fn a_turn_streams_its_steps_and_ends_with_the_answer_in_one_commit() {
    let owner = Arc::new(Owner::new("What is 6 * 7?"));
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let expected = ["step.completed", "step.started", "step.completed", "step.completed", "message+turn.completed"];
    assert_eq!(owner.commits(), expected);
    let bodies = owner.bodies();
    assert!(
        bodies[0].starts_with(r#"{"step":"m1","type":"model","output":"Hello, I am the demo agent."#),
        "{}",
        bodies[0]
    );
    assert_eq!(
        bodies[2],
        r#"{"step":"m1.t0","type":"tool","name":"calculator","input":{"expression":"6 * 7"},"output":{"exact":true,"result":"42"}}"#
    );
    assert!(bodies[4].starts_with(r#"{"text":"I asked my calculator: 6 * 7 is 42, exactly."#), "{}", bodies[4]);
    assert_eq!(bodies[5], "{}");
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
    owner.unread.lock().expect("not poisoned").push_front(later());
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let asked = owner.asked();
    let keys: Vec<&str> = asked.iter().map(|(_, key)| key.as_str()).collect();
    assert_eq!(keys, ["7/m1", "7/m1", "7/m1", "7/m1.t0", "7/m1.t0", "7/m2", "7+7"]);
    for pair in asked[..3].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_secs(1), "not before the directive says");
    }
}

#[tokio::test]
async fn a_directive_is_followed_for_its_budget_and_then_the_turn_fails() {
    // At least a second between two attempts: at most 20 fit into the budget, the first one aside.
    let refusals = std::iter::repeat_with(|| Err(later())).take(1000);
    let owner = Arc::new(Owner::answering("hi", refusals));
    assert_eq!(owner.run("demo").await, RunOutcome::Unfinished(later().to_string()));
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
    assert_eq!(owner.bodies(), [r#"{"detail":"overloaded: no","reason":"append_refused"}"#]);
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
    assert_eq!(owner.bodies(), [r#"{"detail":"no node has the agent other","reason":"agent_unknown"}"#]);
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
    let port: Arc<dyn TurnPort> = owner.clone();
    let turn = turn_run("demo", Begin::First);
    let outcome = run(owner.seams.clone(), port, Arc::new(Agents::default()), turn, signal, mpsc::channel(1).1).await;
    assert_eq!(outcome, RunOutcome::Stopped);
    assert_eq!((owner.seen().len(), owner.asked().len()), (0, 0));
}

#[tokio::test]
async fn whoever_goes_on_repeats_nothing_and_shows_nothing_again() {
    for appends in 0..5 {
        let owner = Arc::new(Owner::new("What is 6 * 7?"));
        assert_eq!(owner.run_until("demo", Begin::First, appends).await, RunOutcome::Stopped);
        let before = owner.live().len();
        let resumed = TurnRun { epoch: Epoch(4), ..turn_run("demo", Begin::TakenOver) };
        assert_eq!(owner.run_as(resumed).await, RunOutcome::Completed);
        let expected = ["step.completed", "step.started", "step.completed", "step.completed", "message+turn.completed"];
        assert_eq!(owner.commits(), expected, "each once, after {appends}");
        let live = owner.live().split_off(before);
        assert_eq!(live[0], LiveEvent::TurnResumed { turn: Seq(7), epoch: Epoch(4) });
        let done = ["m1", "m1.t0", "m1.t0", "m2", "m2"][..appends].to_vec();
        let is_done = |step: &StepId| done.contains(&step.as_str()) && !(appends == 2 && step.as_str() == "m1.t0");
        for event in &live {
            if let LiveEvent::Delta(piece) = event {
                assert!(appends < 4 && (piece.step.as_str() == "m2" || !is_done(&piece.step)), "{piece:?} again");
            }
        }
        let resets: Vec<&LiveEvent> =
            live.iter().filter(|event| matches!(event, LiveEvent::StepReset { .. })).collect();
        assert_eq!(resets.len(), usize::from(appends < 4), "what was streamed of the step is retracted, once");
        let mut view = LiveView::default();
        for event in owner.live() {
            assert_ne!(view.apply(&event), Applied::Gap, "a viewer from the start keeps up: {event:?}");
        }
    }
}

#[tokio::test]
async fn a_turn_waits_for_its_approval_and_goes_on_with_it() {
    for (payload, tools) in [(json!({ "approve": true }), 1), (json!({ "approve": false }), 0)] {
        let owner = Arc::new(Owner::new("With my approval: what is 6 * 7?"));
        assert_eq!(owner.run("demo").await, RunOutcome::Waiting);
        assert_eq!(owner.commits(), ["step.completed", "await.opened"]);
        assert_eq!(owner.run_as(turn_run("demo", Begin::Again)).await, RunOutcome::Waiting, "still");
        let id = AwaitId::of(Seq(7), &StepId::tool(1, 0));
        owner.land(journal::await_resolved(&id, &Resolution::Payload(payload)));
        assert_eq!(owner.run_as(turn_run("demo", Begin::Again)).await, RunOutcome::Completed);
        let intents = owner.commits().iter().filter(|kinds| *kinds == "step.started").count();
        assert_eq!(intents, tools);
        assert_eq!(owner.bodies().last().map(String::as_str), Some("{}"));
    }
}

#[tokio::test]
async fn inputs_that_wait_join_before_the_answer() {
    let owner = Arc::new(Owner::new("hello"));
    owner.log.lock().expect("not poisoned").push(input(8, "and goodbye"));
    owner.waiting.lock().expect("not poisoned").push(Seq(8));
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    let answer = owner.bodies().into_iter().rev().nth(1).expect("the answer");
    assert!(answer.contains("Meanwhile you wrote: “and goodbye”"), "{answer}");
}

/// Pays, once.
struct Payer {
    on_unknown: OnUnknown,
    calls: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl TurnAgent for Payer {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let (step, name) = (StepId::tool(1, 0), "pay".to_owned());
        let call = ToolCall { step: step.clone(), name: name.clone(), input: json!(5), on_unknown: self.on_unknown };
        let status = match turn.begin_tool(&call).await? {
            StepBegin::Done(StepResult::Tool { status, .. }) => status,
            StepBegin::Done(other) => return Err(Halt::failed(format!("{other:?}"))),
            StepBegin::Run => {
                self.calls.lock().expect("not poisoned").push(turn.idempotency_key(&step));
                let status = ToolStatus::Done;
                turn.complete(StepResult::Tool { name, input: json!(5), output: json!("paid"), status }).await?;
                status
            }
        };
        Ok(Answer(format!("{status:?}")))
    }
}

/// The calls of a payer whose owner goes away after the call and before its result, and what came of it.
async fn paid(on_unknown: OnUnknown) -> (Arc<Owner>, Arc<Mutex<Vec<String>>>, RunOutcome) {
    let calls = Arc::new(Mutex::default());
    let owner = Arc::new(Owner::with_own("pay", Payer { on_unknown, calls: Arc::clone(&calls) }));
    assert_eq!(owner.run_until("own", Begin::First, 1).await, RunOutcome::Stopped);
    assert_eq!(owner.commits(), ["step.started"], "the intent comes before the call");
    let outcome = owner.run_as(turn_run("own", Begin::TakenOver)).await;
    (owner, calls, outcome)
}

fn count(calls: &Mutex<Vec<String>>) -> usize {
    calls.lock().expect("not poisoned").len()
}

#[tokio::test]
async fn a_call_that_may_have_happened_is_not_made_again_unless_it_may_be() {
    let (owner, calls, outcome) = paid(OnUnknown::Fail).await;
    assert_eq!((outcome, count(&calls)), (RunOutcome::Completed, 1));
    assert!(owner.bodies()[1].contains(r#""status":"unknown""#), "{:?}", owner.bodies());
    let (_, calls, outcome) = paid(OnUnknown::Retry).await;
    assert_eq!((outcome, count(&calls)), (RunOutcome::Completed, 2));
    let calls = calls.lock().expect("not poisoned");
    assert_eq!(calls[0], calls[1], "under the same key");
}

#[tokio::test]
async fn a_person_decides_about_a_call_that_may_have_happened_each_time() {
    let (owner, calls, outcome) = paid(OnUnknown::Ask).await;
    assert_eq!((outcome, count(&calls)), (RunOutcome::Waiting, 1));
    let decide = |await_id: &str, decision: &str| {
        let id: AwaitId = await_id.parse().expect("valid");
        owner.land(journal::await_resolved(&id, &Resolution::Payload(json!({ "decision": decision }))));
    };
    decide("7-m1.t0", "retry");
    assert_eq!(owner.run_until("own", Begin::Again, 1).await, RunOutcome::Stopped);
    assert_eq!(count(&calls), 2, "it is made again, after another intent");
    assert_eq!(owner.run_as(turn_run("own", Begin::TakenOver)).await, RunOutcome::Waiting, "and asked about again");
    decide("7-m1.t0~2", "fail");
    assert_eq!(owner.run_as(turn_run("own", Begin::Again)).await, RunOutcome::Completed);
    assert_eq!(count(&calls), 2);
}

/// Does one thing.
struct Does(fn(u32) -> Deed, std::sync::atomic::AtomicU32);

enum Deed {
    Step(serde_json::Value),
    Tokens(u64),
    Wait(serde_json::Value),
    Panic,
}

#[async_trait]
impl TurnAgent for Does {
    async fn run(&self, turn: &mut TurnContext) -> Result<Answer, Halt> {
        let run = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        match (self.0)(run) {
            Deed::Step(input) => {
                let output = turn.step("note", Some(input), async { Ok(json!("noted")) }).await?;
                turn.step("note", None, async { Ok(json!("again")) }).await?;
                Ok(Answer(output.to_string()))
            }
            Deed::Tokens(input_tokens) => {
                for call in 1..=3 {
                    if turn.begin_model(call).await? == StepBegin::Run {
                        let asks = AskedCall { name: "t".to_owned(), input: json!({}), id: None };
                        let usage = Usage { input_tokens, output_tokens: 0 };
                        let result = StepResult::Model { output: String::new(), calls: vec![asks], usage };
                        turn.complete(result).await?;
                    }
                }
                Ok(Answer(turn.spent().tokens.to_string()))
            }
            Deed::Wait(schema) => {
                let step = turn.own_step("ask")?;
                let within = Duration::from_secs(60);
                turn.wait(&Await { step, schema, prompt: None, within }).await?;
                Ok(Answer("it was answered".to_owned()))
            }
            Deed::Panic => panic!("an agent's mistake"),
        }
    }
}

fn does(deed: fn(u32) -> Deed) -> Arc<Owner> {
    Arc::new(Owner::with_own("hi", Does(deed, std::sync::atomic::AtomicU32::new(0))))
}

#[tokio::test]
async fn a_step_of_ones_own_is_named_by_its_occurrence_and_never_done_with_another_input() {
    let owner = does(|run| Deed::Step(json!(run)));
    assert_eq!(owner.run_until("own", Begin::First, 2).await, RunOutcome::Stopped);
    let keys: Vec<String> = owner.asked().into_iter().map(|(_, key)| key).collect();
    assert_eq!(keys, ["7/note", "7/note#2", "7+7"]);
    let outcome = owner.run_as(turn_run("own", Begin::TakenOver)).await;
    assert_eq!(outcome, RunOutcome::Failed(FailReason::JournalMismatch));
    let owner = does(|_| Deed::Step(json!(1)));
    assert_eq!(owner.run_until("own", Begin::First, 1).await, RunOutcome::Stopped);
    assert_eq!(owner.run_as(turn_run("own", Begin::TakenOver)).await, RunOutcome::Completed);
    assert_eq!(owner.commits(), ["step.completed", "step.completed", "message+turn.completed"]);
}

#[tokio::test]
async fn tokens_are_counted_over_all_owners_and_end_the_turn() {
    let owner = does(|_| Deed::Tokens(5));
    assert_eq!(owner.run_until("own", Begin::First, 1).await, RunOutcome::Stopped);
    let outcome = owner.run_as(turn_run("own", Begin::TakenOver)).await;
    assert_eq!(outcome, RunOutcome::Failed(FailReason::TooManyTokens));
    assert_eq!(owner.commits(), ["step.completed", "step.completed", "turn.failed"]);
    let end = owner.bodies().pop().expect("an end");
    assert!(end.contains("has used 10 tokens; at most 10 are allowed"), "{end}");
    assert_eq!(does(|_| Deed::Tokens(3)).run("own").await, RunOutcome::Completed);
}

#[tokio::test]
async fn nobody_is_asked_for_what_nothing_can_fit_or_nobody_could_read() {
    let owner = does(|_| Deed::Wait(json!({ "type": "thing" })));
    assert_eq!(owner.run("own").await, RunOutcome::Failed(FailReason::AgentFailed));
    assert_eq!(owner.commits(), ["turn.failed"]);
    assert!(owner.bodies().concat().contains("step ask: schema/type: "), "{:?}", owner.bodies());
    let owner = does(|_| Deed::Wait(json!({ "description": "x".repeat(1024 * 1024) })));
    assert_eq!(owner.run("own").await, RunOutcome::Failed(FailReason::AgentFailed));
    assert!(owner.bodies().pop().expect("an end").contains("65536"), "{:?}", owner.bodies());
    assert_eq!(does(|_| Deed::Wait(json!({}))).run("own").await, RunOutcome::Waiting);
}

#[tokio::test]
async fn a_panic_ends_the_run_and_nothing_else() {
    let outcome = does(|_| Deed::Panic).run("own").await;
    assert_eq!(outcome, RunOutcome::Unfinished("the agent panicked".to_owned()));
}

#[tokio::test]
async fn a_turn_that_is_run_again_answers_what_the_first_one_was_asked() {
    let again = |seq: u64, of: u64| Record {
        kind: RecordKind::Event,
        body: journal::regenerate_body(Seq(of)),
        ..input(seq, "")
    };
    let owner =
        Arc::new(Owner { log: Mutex::new(vec![input(3, "6 * 7"), again(5, 3), again(7, 5)]), ..Owner::new("") });
    assert_eq!(owner.run("demo").await, RunOutcome::Completed);
    assert!(owner.log.lock().expect("not poisoned").iter().any(|record| record.body.as_str().contains("6 * 7 is 42")));
}
