//! The owner's task: a loop around the sequencer (and, for a session, the turn machine).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::Seq;
use conch_core::record::{Draft, Record};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Action, CommitRequest, Input, Original, Sequencer, Ticket};
use conch_core::time::Monotonic;
use conch_store::{AppendOutcome, Batch, DueChange, Duplicate, Held, StoreError};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, oneshot};

use super::commit::Submission;
use super::{Charge, Command, End, Follow, FollowFrame, OnEnd, OwnerHandle, Published, Reply, Tenure, moved};
use crate::frame::{Address, Frame};

/// Time between two position marks to followers, and between two looks at idleness.
const TICK: Duration = Duration::from_secs(1);

/// Starts an owner's task.
pub(crate) fn start(charge: Charge, on_end: OnEnd) -> OwnerHandle {
    let (commands, inbox) = mpsc::channel(charge.node.limits.commands);
    let handle = OwnerHandle { epoch: charge.tenure.reign.epoch, commands };
    let seams = charge.node.seams.clone();
    let owner = Owner::new(charge, inbox);
    seams.spawn("owner", async move { on_end(owner.run().await) });
    handle
}

struct Owner {
    charge: Charge,
    address: Address,
    inbox: mpsc::Receiver<Command>,
    sequencer: Sequencer,
    replies: BTreeMap<Ticket, Reply>,
    next_ticket: u64,
    flight: Option<oneshot::Receiver<AppendOutcome>>,
    followers: Vec<mpsc::Sender<FollowFrame>>,
    tick: BoxFuture<'static, ()>,
    last_use: Monotonic,
    halted: bool,
    releasing: Vec<oneshot::Sender<()>>,
    actions: Vec<Action>,
}

/// What wakes the loop.
enum Wake {
    Command(Option<Command>),
    Outcome(AppendOutcome),
    Tick,
}

impl Owner {
    fn new(charge: Charge, inbox: mpsc::Receiver<Command>) -> Self {
        let Tenure { conversation, reign, log, .. } = charge.tenure.clone();
        let address = Address::conversation(&conversation.id, log);
        let sequencer = Sequencer::new(conversation, reign, charge.node.limits.sequencer);
        let (tick, last_use) = (charge.node.seams.sleep(TICK), charge.node.seams.now());
        Self {
            charge,
            address,
            inbox,
            sequencer,
            replies: BTreeMap::new(),
            next_ticket: 0,
            flight: None,
            followers: Vec::new(),
            tick,
            last_use,
            halted: false,
            releasing: Vec::new(),
            actions: Vec::new(),
        }
    }

    async fn run(mut self) -> End {
        loop {
            match self.wake().await {
                Wake::Command(Some(command)) => self.command(command),
                // Every handle is gone, the router's too: the node shuts down.
                Wake::Command(None) => self.inbox.close(),
                Wake::Outcome(outcome) => self.outcome(outcome),
                Wake::Tick => self.tick(),
            }
            if self.halted {
                return self.ended();
            }
            if self.sequencer.is_idle() {
                if !self.releasing.is_empty() || self.inbox.is_closed() {
                    return self.release().await;
                }
                if self.may_hibernate() {
                    return self.hibernate();
                }
            }
        }
    }

    /// Waits for the next thing to do. Cancel safe: a receiver loses nothing, the tick is kept across calls.
    async fn wake(&mut self) -> Wake {
        let flight = async {
            match &mut self.flight {
                // A committer that went away leaves the outcome unknown.
                Some(answer) => answer.await.unwrap_or_else(|_| {
                    AppendOutcome::Failed(StoreError::Ambiguous("the group commit stopped".to_owned()))
                }),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = flight => Wake::Outcome(outcome),
            command = self.inbox.recv(), if !self.inbox.is_closed() || !self.inbox.is_empty() => Wake::Command(command),
            () = &mut self.tick => Wake::Tick,
        }
    }

    fn command(&mut self, command: Command) {
        self.last_use = self.charge.node.seams.now();
        match command {
            Command::Append { drafts, reply } => self.append(drafts, reply),
            Command::Follow { reply } => {
                // A follower that went away needs no answer.
                let _ = reply.send(self.follow());
            }
            Command::Release { done } => self.releasing.push(done),
        }
    }

    fn append(&mut self, drafts: Vec<Draft>, reply: Reply) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.replies.insert(ticket, reply);
        self.step(Input::Append(ticket, drafts));
    }

    fn follow(&mut self) -> Result<Follow, Refusal> {
        let moment = self.charge.node.moment();
        if moment.now >= moment.valid_until {
            return Err(moved());
        }
        let (sender, frames) = mpsc::channel(self.charge.node.limits.follower_frames);
        self.followers.push(sender);
        Ok(Follow {
            epoch: self.sequencer.epoch(),
            incarnation: self.charge.node.me,
            log: self.address.log.clone(),
            position: self.sequencer.last_seq(),
            frames,
        })
    }

    fn outcome(&mut self, outcome: AppendOutcome) {
        self.flight = None;
        let input = match outcome {
            AppendOutcome::Landed { at, duplicates } => {
                Input::Landed { at, duplicates: duplicates.into_iter().map(original).collect() }
            }
            AppendOutcome::Fenced => {
                self.charge.node.metrics.fenced_write();
                tracing::warn!(conversation = %self.charge.tenure.conversation.id, epoch = %self.sequencer.epoch(), "fenced");
                Input::Ended(moved())
            }
            AppendOutcome::Rewound => {
                tracing::warn!(conversation = %self.charge.tenure.conversation.id, epoch = %self.sequencer.epoch(), "rewound");
                Input::Ended(moved())
            }
            AppendOutcome::Failed(error) if error.is_ambiguous() => Input::Ended(moved()),
            AppendOutcome::Failed(error) => Input::Failed(store_refusal(&error)),
        };
        self.step(input);
    }

    /// Lets the sequencer decide, then does what it says, in its order.
    fn step(&mut self, input: Input) {
        let mut actions = std::mem::take(&mut self.actions);
        self.sequencer.handle(self.charge.node.moment(), input, &mut actions);
        for action in actions.drain(..) {
            self.perform(action);
        }
        self.actions = actions;
    }

    fn perform(&mut self, action: Action) {
        let metrics = &self.charge.node.metrics;
        match action {
            Action::Commit(request) => self.commit(request),
            Action::Ack(ticket, receipts) => {
                metrics.acked(&receipts);
                if let Some(reply) = self.replies.remove(&ticket) {
                    reply(Ok(receipts));
                }
            }
            Action::Refuse(ticket, refusal) => {
                metrics.refused(refusal.code);
                if let Some(reply) = self.replies.remove(&ticket) {
                    reply(Err(refusal));
                }
            }
            Action::Publish { prev, record } => self.publish(prev, record),
            Action::Halt(broken) => {
                if let Some(broken) = broken {
                    tracing::error!(conversation = %self.charge.tenure.conversation.id, %broken, "an owner stops");
                }
                self.halted = true;
            }
        }
    }

    fn commit(&mut self, request: CommitRequest) {
        let Tenure { conversation, generation, .. } = &self.charge.tenure;
        let batch = Batch {
            conversation: conversation.clone(),
            epoch: self.sequencer.epoch(),
            generation: *generation,
            prev: request.prev,
            hi: request.hi,
            reserve: request.reserve,
            due: DueChange::Keep,
            records: request.records,
        };
        let (answer, outcome) = oneshot::channel();
        // The queue holds a batch for each owned conversation at most; when it is full or gone, `answer` is dropped and
        // the outcome is definite: nothing was written.
        match self.charge.committer.try_send(Submission { batch, answer }) {
            Ok(()) => self.flight = Some(outcome),
            Err(error) => {
                let (failed, outcome) = oneshot::channel();
                let _ = failed.send(AppendOutcome::Failed(StoreError::Unavailable(error.to_string())));
                self.flight = Some(outcome);
            }
        }
    }

    fn publish(&mut self, prev: Seq, record: Record) {
        let seq = record.seq;
        if !self.followers.is_empty() {
            let frame = Arc::new(Frame::record(&self.address, &record));
            self.send_to_followers(&FollowFrame::Record(Arc::new(Published { prev, record, frame })));
        }
        (self.charge.on_published)(&self.charge.tenure.conversation, seq);
    }

    /// A follower whose queue is full is dropped: its stream ends and it comes back with its position.
    fn send_to_followers(&mut self, frame: &FollowFrame) {
        self.followers.retain(|follower| follower.try_send(frame.clone()).is_ok());
    }

    fn tick(&mut self) {
        self.tick = self.charge.node.seams.sleep(TICK);
        let moment = self.charge.node.moment();
        if moment.now < moment.valid_until {
            self.send_to_followers(&FollowFrame::Position(self.sequencer.last_seq()));
        }
    }

    fn may_hibernate(&self) -> bool {
        let idle = self.charge.node.seams.now().since(self.last_use);
        self.followers.is_empty() && self.inbox.is_empty() && idle >= self.charge.node.limits.hibernate_after
    }

    fn hibernate(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        let tenure = Tenure { reign: self.sequencer.reign(), ..self.charge.tenure };
        End::Hibernated(tenure)
    }

    /// Gives the lease up with nothing under way; followers see the end of their stream (F6).
    async fn release(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        let Tenure { conversation, .. } = &self.charge.tenure;
        let reign = self.sequencer.reign();
        let held = Held { conversation: conversation.key, epoch: reign.epoch, me: self.charge.node.me };
        match self.charge.node.store.release(&held, reign.first_seq).await {
            Ok(_) => {}
            Err(error) => tracing::warn!(conversation = %conversation.id, %error, "a lease was not released"),
        }
        self.followers.clear();
        for done in self.releasing.drain(..) {
            let _ = done.send(());
        }
        End::Gone
    }

    /// After a halt: the fate of what was under way is not ours to tell any more.
    fn ended(mut self) -> End {
        self.inbox.close();
        self.refuse_inbox();
        End::Gone
    }

    /// Everything that was still waiting in the inbox gets a directive; the router sends it again.
    fn refuse_inbox(&mut self) {
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Append { reply, .. } => reply(Err(moved())),
                Command::Follow { reply } => drop(reply.send(Err(moved()))),
                Command::Release { done } => self.releasing.push(done),
            }
        }
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
    match error {
        StoreError::Collision => Refusal::new(Code::Conflict, error.to_string()),
        StoreError::Damaged(_) => Refusal::new(Code::StoreUnavailable, error.to_string()),
        StoreError::Unavailable(_) | StoreError::Ambiguous(_) | StoreError::Full(_) => {
            Refusal::retry(Code::StoreUnavailable, error.to_string(), retry)
        }
    }
}
