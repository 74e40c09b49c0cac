//! Clients that send: each message under one key, again and again inside its budget, on any node that is up.
//!
//! Invariant: a lane has one write under way at a time; what it was told is in the history before it acts on it.

use std::time::Duration;

use conch_core::body::Body;
use conch_core::history::Event;
use conch_core::ids::{ClientMsgId, ConvRef, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_core::refusal::Refusal;
use conch_core::sequencer::{Outcome, Receipt};
use conch_server::seams::Clock as _;
use conch_store::CursorOutcome;
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::Process;
use crate::history::History;
use crate::machine::{Machine, Running};
use crate::shared::{Shared, lock, shared};

/// How long a client goes on with one message.
pub const BUDGET: Duration = Duration::from_secs(20);

/// One client that sends, one message after the other.
#[derive(Clone)]
pub struct Lane {
    /// The world, for time.
    pub world: Process,
    /// Where it may connect.
    pub machines: Vec<Machine>,
    /// What it writes down.
    pub history: History,
    /// What happened.
    pub tally: Tally,
    /// Its name in the history.
    pub name: String,
    /// Whom it speaks for; several lanes may speak for one.
    pub sender: Subject,
    dice: Shared<Dice>,
    /// The machine that it tries first: a client that is turned away goes to another one.
    first: Shared<usize>,
}

/// What a client is told.
enum Told {
    Acked(Receipt),
    Refused(Refusal),
    Nothing,
}

impl Lane {
    /// A client of these machines.
    #[must_use]
    pub fn new(
        (name, sender): (String, Subject),
        machines: Vec<Machine>,
        history: History,
        tally: Tally,
        (world, mut dice): (Process, Dice),
    ) -> Self {
        let first = shared(dice.index(machines.len()));
        Self { world, machines, history, tally, name, sender, dice: shared(dice), first }
    }

    fn pause(&self, least_ms: u64, most_ms: u64) -> Duration {
        lock(&self.dice).between(Duration::from_millis(least_ms), Duration::from_millis(most_ms))
    }

    /// Sends `count` messages to conversations drawn from the list, some of them a second time after their ack.
    pub async fn chatter(&self, conversations: &[ConvRef], count: u64) {
        for number in 0..count {
            if lock(&self.dice).chance(300) {
                self.go_elsewhere();
            }
            self.world.sleep(self.pause(0, 1_200)).await;
            let conversation = conversations[lock(&self.dice).index(conversations.len())].clone();
            let key: ClientMsgId = format!("{}-{number}", self.name).parse().expect("printable");
            let Some(receipt) = self.send(&conversation, &key, BUDGET).await else { continue };
            if lock(&self.dice).chance(200) {
                self.world.sleep(self.pause(0, 5_000)).await;
                let _ = self.send(&conversation, &key, BUDGET).await;
            }
            if lock(&self.dice).chance(300) {
                self.read_up_to(&conversation, receipt).await;
            }
        }
    }

    /// Sends one message until it is acked or the budget is spent.
    pub async fn send(&self, conversation: &ConvRef, key: &ClientMsgId, budget: Duration) -> Option<Receipt> {
        let give_up = self.world.now() + budget;
        while self.world.now() < give_up {
            let Some(running) = self.connect() else {
                self.world.sleep(self.pause(50, 500)).await;
                continue;
            };
            let told = self.attempt(&running, conversation, key).await;
            if !matches!(told, Told::Acked(_)) {
                self.go_elsewhere();
            }
            match told {
                Told::Acked(receipt) => return Some(receipt),
                Told::Refused(refusal) => {
                    let Some(retry) = refusal.retry else { panic!("{} of {key}: {refusal}", self.name) };
                    self.world.sleep(self.pause(retry.after_ms / 2, retry.after_ms + 100)).await;
                }
                Told::Nothing => self.world.sleep(self.pause(10, 300)).await,
            }
        }
        None
    }

    /// The first machine that is up, from the preferred one on.
    fn connect(&self) -> Option<Running> {
        let first = *lock(&self.first);
        let count = self.machines.len();
        (0..count).find_map(|step| self.machines[(first + step) % count].running())
    }

    fn go_elsewhere(&self) {
        let mut first = lock(&self.first);
        *first = (*first + 1) % self.machines.len();
    }

    async fn attempt(&self, running: &Running, conversation: &ConvRef, key: &ClientMsgId) -> Told {
        let (client, sender, client_msg_id) = (self.name.clone(), self.sender.clone(), key.clone());
        let id = conversation.id.clone();
        self.history.add(|t_us| Event::Invoked { client, conversation: id, sender, client_msg_id, t_us });
        let patience = self.pause(100, 6_000);
        let told = match select(self.request(running, conversation, key), self.world.sleep(patience)).await {
            Either::Left((Ok(Ok(receipts)), _)) => match receipts.as_slice() {
                [receipt] => Told::Acked(*receipt),
                other => panic!("one draft has one receipt, not {other:?}"),
            },
            Either::Left((Ok(Err(refusal)), _)) => Told::Refused(refusal),
            Either::Left((Err(_), _)) | Either::Right(_) => Told::Nothing,
        };
        self.write_down(conversation, key, &told);
        told
    }

    /// One request: a task of the node's process, which dies with it, and which ends when the client hangs up.
    fn request(
        &self,
        running: &Running,
        conversation: &ConvRef,
        key: &ClientMsgId,
    ) -> oneshot::Receiver<Result<Vec<Receipt>, Refusal>> {
        let body = Body::of(&serde_json::json!({ "text": key.as_str() }));
        let draft = Draft::new(RecordKind::Message, self.sender.clone(), key.clone(), body);
        let (router, conversation) = (running.router.clone(), conversation.clone());
        let (mut answer, told) = oneshot::channel();
        running.process.spawn("request", async move {
            let append = Box::pin(router.append(&conversation, vec![draft]));
            let hung_up = Box::pin(answer.closed());
            let result = match select(append, hung_up).await {
                Either::Left((result, _)) => result,
                Either::Right(_) => return,
            };
            let _ = answer.send(result);
        });
        told
    }

    fn write_down(&self, conversation: &ConvRef, key: &ClientMsgId, told: &Told) {
        let (client, sender, client_msg_id) = (self.name.clone(), self.sender.clone(), key.clone());
        let conversation = conversation.id.clone();
        match told {
            Told::Acked(Receipt { seq, epoch, outcome, .. }) => {
                self.tally.count(|coverage| coverage.duplicates += u64::from(*outcome == Outcome::Duplicate));
                let (seq, epoch) = (*seq, *epoch);
                self.history.add(|t_us| Event::Acked { client, conversation, sender, client_msg_id, seq, epoch, t_us });
            }
            Told::Refused(refusal) => {
                self.world.note(format_args!("{} refused: {refusal}", self.name));
                self.tally.count(|coverage| coverage.refusals += 1);
                self.history.add(|t_us| Event::Refused { client, conversation, sender, client_msg_id, t_us });
            }
            Told::Nothing => {
                self.tally.count(|coverage| coverage.unknown += 1);
                self.history.add(|t_us| Event::Unknown { client, conversation, sender, client_msg_id, t_us });
            }
        }
    }

    /// Moves the sender's read cursor to what it has just sent.
    async fn read_up_to(&self, conversation: &ConvRef, receipt: Receipt) {
        let Some(running) = self.connect() else { return };
        // A read cursor needs no owner: any node writes it, and one that fails is moved by the next.
        if let Ok(CursorOutcome::At(seq)) = running.store.move_cursor(conversation, &self.sender, receipt.seq).await {
            let (client, sub, conversation) = (self.name.clone(), self.sender.clone(), conversation.id.clone());
            self.history.add(|t_us| Event::Cursor { client, sub, conversation, seq, t_us });
        }
    }
}
