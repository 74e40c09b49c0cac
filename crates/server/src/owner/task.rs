//! The owner's task: a loop around the sequencer (and, for a session, the turn machine).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use conch_core::conversation::ConversationKind;
use conch_core::ids::{ConvRef, Incarnation, Seq};
use conch_core::invariant::Broken;
use conch_core::presence::merge::{FollowerId, Heard, Merged};
use conch_core::record::Record;
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Action, CommitRequest, Input, Original, Outcome, Receipt, Sequencer, Ticket};
use conch_core::time::Monotonic;
use conch_core::turn::live::LiveEvent;
use conch_core::turn::{self, Due};
use conch_store::{AppendOutcome, Batch, Duplicate, Held, StoreError};
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::commit::Submission;
use super::turns::{Turns, due_change};
use super::{
    Charge, Command, End, Facts, Follow, FollowFrame, FollowerReport, OnEnd, OwnerHandle, Patience, PresenceNews,
    Present, Published, Reply, Reports, SetUp, Tenure, moved,
};
use crate::events::Event;
use crate::frame::{Address, Frame};
use crate::link::Handed;
use crate::metrics::{EndedTurn, Queue};
use crate::rules::Rule;

mod asks;
mod followers;
mod leaving;
mod seeking;
mod sessions;

/// Time between two position marks to followers, and between two looks at idleness.
const TICK: Duration = Duration::from_secs(1);

/// Starts an owner's task.
pub(crate) fn start(charge: Charge, on_end: OnEnd) -> OwnerHandle {
    let (commands, inbox) = mpsc::channel(charge.node.limits.commands);
    let facts = Arc::new(Facts {
        conversation: charge.tenure.conversation.clone(),
        epoch: charge.tenure.reign.epoch,
        kind: charge.tenure.kind,
        regions: Arc::clone(&charge.tenure.regions),
        home: charge.tenure.home.clone(),
        last_round: AtomicU64::new(charge.node.seams.now().0),
        last_write: AtomicU64::new(charge.node.seams.now().0),
        deposed: AtomicBool::new(false),
    });
    let handle = OwnerHandle { facts, commands, metrics: Arc::clone(&charge.node.metrics) };
    let seams = charge.node.seams.clone();
    let owner = Owner::new(charge, inbox, &handle);
    seams.spawn("owner", async move { on_end(owner.run().await) });
    handle
}

struct Owner {
    charge: Charge,
    address: Address,
    inbox: mpsc::Receiver<Command>,
    facts: Arc<Facts>,
    /// For runners; so the inbox ends only when it is closed.
    commands: mpsc::Sender<Command>,
    sequencer: Sequencer,
    replies: BTreeMap<Ticket, Reply>,
    next_ticket: u64,
    flight: Option<oneshot::Receiver<AppendOutcome>>,
    followers: Vec<(FollowerId, mpsc::Sender<FollowFrame>)>,
    next_follower: u64,
    presence: Merged,
    /// Changes of presence gather until then.
    presence_due: Option<BoxFuture<'static, ()>>,
    tick: BoxFuture<'static, ()>,
    last_use: Monotonic,
    halted: bool,
    releasing: Vec<oneshot::Sender<()>>,
    handing: Option<Handing>,
    /// A session's turns, once they are thawed.
    turns: Option<Turns>,
    /// What the turn machine has asked for and the owner has not done yet.
    turn_actions: VecDeque<turn::Action>,
    /// When the turn machine wants to be told of the time.
    turns_timer: Option<(Monotonic, BoxFuture<'static, ()>)>,
    /// The due row's change in the batch under way.
    due: Due,
    /// A batch that waits for one that changes the due row alone.
    next_commit: Option<CommitRequest>,
    /// The batch under way changes the due row and nothing else.
    due_alone: bool,
}

/// The lease is to be passed on.
struct Handing {
    to: Incarnation,
    /// A running turn keeps the lease here until then.
    by: Monotonic,
    done: oneshot::Sender<Option<Handed>>,
}

/// What wakes the loop.
enum Wake {
    Command(Option<Command>),
    Outcome(AppendOutcome),
    PresenceDue,
    TurnsDue,
    Tick,
}

impl Owner {
    fn new(charge: Charge, inbox: mpsc::Receiver<Command>, handle: &OwnerHandle) -> Self {
        let Tenure { conversation, reign, log, .. } = charge.tenure.clone();
        let address = Address::conversation(&conversation.id, log);
        let sequencer = Sequencer::new(conversation, reign, charge.node.limits.sequencer);
        let presence_threshold = charge.node.limits.presence_threshold;
        let (tick, last_use) = (charge.node.seams.sleep(TICK), charge.node.seams.now());
        Self {
            charge,
            address,
            inbox,
            facts: Arc::clone(&handle.facts),
            commands: handle.commands.clone(),
            sequencer,
            replies: BTreeMap::new(),
            next_ticket: 0,
            flight: None,
            followers: Vec::new(),
            next_follower: 0,
            presence: Merged::new(presence_threshold),
            presence_due: None,
            tick,
            last_use,
            halted: false,
            releasing: Vec::new(),
            handing: None,
            turns: None,
            turn_actions: VecDeque::new(),
            turns_timer: None,
            due: Due::Keep,
            next_commit: None,
            due_alone: false,
        }
    }

    async fn run(mut self) -> End {
        if let Err(error) = self.thaw().await {
            let epoch = self.sequencer.epoch();
            tracing::warn!(conversation = %self.charge.tenure.conversation.id, %epoch, %error, "a session was not thawed");
            return self.ended();
        }
        loop {
            let wake = self.wake().await;
            self.facts.last_round.store(self.charge.node.seams.now().0, Ordering::Relaxed);
            if self.facts.deposed.load(Ordering::Relaxed) && self.charge.node.rules.hold(Rule::DeposedEnds) {
                return self.ended();
            }
            match wake {
                Wake::Command(Some(command)) => self.command(command),
                // Every handle is gone, the router's too: the node shuts down.
                Wake::Command(None) => self.inbox.close(),
                Wake::Outcome(outcome) => self.outcome(outcome),
                Wake::PresenceDue => self.show_presence(),
                Wake::TurnsDue => self.turns_are_due(),
                Wake::Tick => self.tick(),
            }
            self.perform_turn_actions();
            self.set_turns_timer();
            if self.halted {
                return self.ended();
            }
            if self.sequencer.is_idle() && self.flight.is_none() {
                if !self.releasing.is_empty() || self.inbox.is_closed() {
                    return self.release().await;
                }
                if self.is_leaving()
                    && let Some(handing) = self.handing.take()
                {
                    return self.hand_off(handing).await;
                }
                if self.may_hibernate() {
                    // Who keeps a lease hides its due row from the others, and nobody would see that a wait is over.
                    return if self.waits() { self.release().await } else { self.hibernate().await };
                }
            }
        }
    }

    /// Nothing more is taken from the inbox: what is there waits, and is refused with a directive once the lease is gone, so
    /// that it follows the lease. A turn may delay a hand-over, never a release.
    fn is_leaving(&self) -> bool {
        let in_a_turn = || self.turns.as_ref().is_some_and(|turns| !turns.machine.is_at_rest());
        let now = self.charge.node.seams.now();
        !self.releasing.is_empty() || self.handing.as_ref().is_some_and(|handing| now >= handing.by || !in_a_turn())
    }

    /// Waits for the next thing to do. Cancel safe: a receiver loses nothing, the tick is kept across calls.
    async fn wake(&mut self) -> Wake {
        let is_leaving = self.is_leaving();
        let flight = async {
            match &mut self.flight {
                // A committer that went away leaves the outcome unknown.
                Some(answer) => answer.await.unwrap_or_else(|_| {
                    AppendOutcome::Failed(StoreError::Ambiguous("the group commit stopped".to_owned()))
                }),
                None => std::future::pending().await,
            }
        };
        let presence_due = async {
            match &mut self.presence_due {
                Some(due) => due.await,
                None => std::future::pending().await,
            }
        };
        let turns_due = async {
            match &mut self.turns_timer {
                Some((_, due)) => due.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = flight => Wake::Outcome(outcome),
            command = self.inbox.recv(), if !is_leaving && (!self.inbox.is_closed() || !self.inbox.is_empty()) => {
                Wake::Command(command)
            }
            () = presence_due => Wake::PresenceDue,
            () = turns_due => Wake::TurnsDue,
            () = &mut self.tick => Wake::Tick,
        }
    }

    fn command(&mut self, command: Command) {
        self.last_use = self.charge.node.seams.now();
        if matches!(command, Command::Append { .. } | Command::RunnerAppend { .. }) {
            self.facts.last_write.store(self.last_use.0, Ordering::Relaxed);
        }
        match command {
            Command::Append { drafts, reply } => self.append(drafts, reply),
            Command::RunnerAppend { drafts, reply } => self.runner_append(drafts, reply),
            Command::RunnerGone { turn, how } => self.runner_gone(turn, how),
            Command::Join { turn, reply } => self.join(turn, reply),
            Command::Turn { ask, reply } => self.turn_ask(ask, reply),
            Command::Live(event) => self.live(event),
            Command::AgentIsNowhere { search } => self.agent_is_nowhere(search),
            Command::SetUp { read, done } => {
                self.set_up(read);
                // Whoever read it may be gone.
                let _ = done.send(());
            }
            Command::Follow { reply } => {
                // A follower that went away needs no answer.
                let _ = reply.send(self.follow());
            }
            Command::Report(from, report) => self.report_from_follower(from, report),
            // Whoever asked and went away needs no answer.
            Command::Present { reply } => drop(reply.send(self.present())),
            Command::Release { done } => self.releasing.push(done),
            Command::HandOff { to, patience, done } => self.begin_hand_off(to, patience, done),
        }
    }

    fn ticket(&mut self, reply: Reply) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.replies.insert(ticket, reply);
        ticket
    }

    fn outcome(&mut self, outcome: AppendOutcome) {
        self.flight = None;
        let due = std::mem::replace(&mut self.due, Due::Keep);
        if self.due_alone {
            return self.due_outcome(&outcome);
        }
        let landed = matches!(outcome, AppendOutcome::Landed { .. });
        let input = match outcome {
            AppendOutcome::Landed { at, duplicates } => {
                Input::Landed { at, duplicates: duplicates.into_iter().map(original).collect() }
            }
            AppendOutcome::Fenced => {
                self.charge.node.metrics.fenced_writes.inc();
                let (conversation, epoch) = (self.charge.tenure.conversation.id.clone(), self.sequencer.epoch());
                self.charge.node.events.record(Event::Fenced { conversation, epoch });
                tracing::warn!(conversation = %self.charge.tenure.conversation.id, epoch = %self.sequencer.epoch(), "a write was fenced");
                Input::Ended(moved())
            }
            AppendOutcome::Rewound => {
                tracing::warn!(conversation = %self.charge.tenure.conversation.id, epoch = %self.sequencer.epoch(), "a write was of another generation");
                Input::Ended(moved())
            }
            AppendOutcome::Failed(error) if error.is_ambiguous() => Input::Ended(moved()),
            // What cannot be trusted is not written on: the reign ends, and its log says why.
            AppendOutcome::Failed(error @ StoreError::Damaged(_)) => {
                tracing::error!(conversation = %self.charge.tenure.conversation.id, epoch = %self.sequencer.epoch(), %error, "an owner stops");
                Input::Ended(store_refusal(&error))
            }
            AppendOutcome::Failed(error) => Input::Failed(store_refusal(&error)),
        };
        self.step(input);
        if landed {
            self.tell_turns(turn::Input::DueWritten(due));
        }
    }

    /// Lets the sequencer decide, then does what it says, in its order.
    fn step(&mut self, input: Input) {
        let mut actions = Vec::new();
        self.sequencer.handle(self.charge.node.moment(), input, &mut actions);
        for action in actions {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Commit(request) if self.flight.is_some() => self.next_commit = Some(request),
            Action::Commit(request) => self.commit(request),
            Action::Ack(ticket, receipts) => {
                self.count_acks(&receipts);
                self.settle(ticket, Ok(receipts));
            }
            Action::Refuse(ticket, refusal) => {
                self.count_overload(&refusal, Queue::Owner);
                self.settle(ticket, Err(refusal));
            }
            Action::Publish { prev, record } => self.publish(prev, record),
            Action::Halt(broken) => {
                if let Some(broken) = broken {
                    self.report(&broken);
                }
                self.halted = true;
            }
        }
    }

    fn count_overload(&self, refusal: &Refusal, queue: Queue) {
        if refusal.code == Code::Overloaded {
            self.charge.node.metrics.limit_hit(queue);
        }
    }

    fn count_acks(&self, receipts: &[Receipt]) {
        let metrics = &self.charge.node.metrics;
        let duplicates = receipts.iter().filter(|receipt| receipt.outcome == Outcome::Duplicate).count() as u64;
        metrics.duplicates.inc_by(duplicates);
        metrics.acks.inc_by(receipts.len() as u64);
    }

    fn report(&self, broken: &Broken) {
        let epoch = self.sequencer.epoch();
        tracing::error!(conversation = %self.charge.tenure.conversation.id, %epoch, %broken, "an owner stops");
    }

    fn settle(&mut self, ticket: Ticket, result: Result<Vec<Receipt>, Refusal>) {
        let reply = self.replies.remove(&ticket);
        if let Some(reply) = self.settle_turns(ticket, reply, &result) {
            reply(result);
        }
    }

    fn commit(&mut self, request: CommitRequest) {
        self.due = self.turns.as_ref().map_or(Due::Keep, |turns| turns.due_after(&request.records));
        self.submit(request);
    }

    fn submit(&mut self, request: CommitRequest) {
        let Tenure { conversation, generation, .. } = &self.charge.tenure;
        let batch = Batch {
            conversation: conversation.clone(),
            epoch: self.sequencer.epoch(),
            generation: *generation,
            prev: request.prev,
            hi: request.hi,
            reserve: request.reserve,
            due: due_change(self.due, self.charge.node.seams.clock.wall()),
            records: request.records,
        };
        let (answer, outcome) = oneshot::channel();
        self.flight = Some(outcome);
        let sent = self.charge.committer.try_send(Submission { batch, answer });
        if sent.is_ok() {
            self.charge.node.metrics.commit_queue.inc();
        }
        if let Err(error) = sent {
            // The queue is full or gone: nothing was written, for certain.
            if matches!(error, TrySendError::Full(_)) {
                self.charge.node.metrics.limit_hit(Queue::Commit);
            }
            let detail = error.to_string();
            let (TrySendError::Full(submission) | TrySendError::Closed(submission)) = error;
            let _ = submission.answer.send(AppendOutcome::Failed(StoreError::Unavailable(detail)));
        }
    }

    fn publish(&mut self, prev: Seq, record: Record) {
        let seq = record.seq;
        if let Some(turns) = &mut self.turns {
            turns.committed(&record);
            if let Some(ended) = EndedTurn::of(record.kind) {
                self.charge.node.metrics.turn_ended(ended);
            }
        }
        self.tell_turns(turn::Input::Committed(&record));
        if !self.followers.is_empty() {
            let frame = Arc::new(Frame::record(&self.address, &record));
            self.send_to_followers(&FollowFrame::Record(Arc::new(Published { prev, record, frame })));
        }
        (self.charge.on_published)(&self.charge.tenure.conversation, seq);
    }

    fn tick(&mut self) {
        self.tick = self.charge.node.seams.sleep(TICK);
        self.tell_turns(turn::Input::Tick);
        if self.followers.is_empty() && !self.charge.node.rules.hold(Rule::TurnsNeedNoViewer) {
            self.stop_runner();
        }
        let moment = self.charge.node.moment();
        if moment.now < moment.valid_until {
            self.send_to_followers(&FollowFrame::Position(self.sequencer.last_seq()));
        }
        self.show_presence();
    }
}

fn original(duplicate: Duplicate) -> (Seq, Original) {
    let Duplicate { seq, original } = duplicate;
    let original =
        Original { seq: original.seq, body_hash: original.body_hash, epoch: original.epoch, at: original.at };
    (seq, original)
}

/// What a client is told when the store did not take a write, for certain.
pub(crate) fn store_refusal(error: &StoreError) -> Refusal {
    let retry = Retry { after_ms: 1_000, budget_ms: 20_000 };
    let later = |detail: &str| Refusal::retry(Code::StoreUnavailable, detail, retry);
    if !matches!(error, StoreError::Collision) {
        tracing::debug!(%error, "the store refuses");
    }
    match error {
        StoreError::Collision => Refusal::new(Code::Conflict, error.to_string()),
        StoreError::Damaged(_) => Refusal::new(Code::StoreUnavailable, "the store is damaged"),
        StoreError::Unavailable(_) => later("the store is unavailable"),
        StoreError::Ambiguous(_) => later("the store's answer was lost"),
        StoreError::Full(_) => later("the store is full"),
    }
}
