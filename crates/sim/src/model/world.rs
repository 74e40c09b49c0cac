//! Everything that is, at one moment: the store, its standby, the processes, what is under way, and what happened so far.

use conch_core::head::{Fence, HeadRow};
use conch_core::ids::{Epoch, Generation, Incarnation, Seq};
use conch_core::sequencer::Reign;

use super::rules::{Rule, Rules};

/// One of the three processes; each is one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// Node `a`.
    A,
    /// Another process of node `a`, started while the first may be merely stopped.
    Twin,
    /// Node `b`.
    B,
}

impl Who {
    /// All three.
    pub const ALL: [Self; 3] = [Self::A, Self::Twin, Self::B];

    /// Ownership belongs to this.
    #[must_use]
    pub fn incarnation(self) -> Incarnation {
        Incarnation(self as u128 + 1)
    }

    /// Ownership never belongs to this.
    #[must_use]
    pub fn node(self) -> &'static str {
        if self == Self::B { "b" } else { "a" }
    }
}

/// A client message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u8);

/// Which reign, as the world counts them: told by nothing that a flaw could falsify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReignId(pub usize);

/// A node's row. That a lease ran out and nobody has said so yet needs no state: the row may be renewed as any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Row {
    /// Never there, or deleted: the incarnation is dead.
    Absent,
    /// Registered.
    Present,
}

/// A committed record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Entry {
    /// Its number.
    pub seq: Seq,
    /// The epoch it was committed under.
    pub epoch: Epoch,
    /// Its client message id.
    pub key: Key,
}

/// The store of leases and records, as its primary has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store {
    /// The node rows.
    pub rows: [Row; 3],
    /// The conversation's head; `None`: never owned.
    pub head: Option<HeadRow>,
    /// The reign in force; `None`: released, or ended by a failover.
    pub in_force: Option<ReignId>,
    /// The records, ascending.
    pub log: Vec<Entry>,
    /// What the store says that its generation is.
    pub generation: Generation,
}

/// What an owner believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tenure {
    /// Where its numbering stands.
    pub reign: Reign,
    /// The generation that it claimed in.
    pub generation: Generation,
    /// Which reign it is.
    pub id: ReignId,
}

/// An append as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Append {
    /// What it proves.
    pub fence: Fence,
    /// The reserved mark that it sets.
    pub reserve: Seq,
    /// Its only record.
    pub key: Key,
    /// The reign that numbered it.
    pub id: ReignId,
    /// The highest acked number when it was numbered.
    pub floor: Seq,
}

/// What a process asks of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// Compare the head with what was seen, an epoch and an owner, and take it.
    Claim(Option<Epoch>, Option<Incarnation>),
    /// One record under the fence.
    Append(Append),
    /// Give up the reign of this epoch, with nothing under way and this number the next to be given.
    Release(Epoch, Seq),
    /// Pass it on likewise.
    HandOff(Epoch, Seq, Who),
}

/// What the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// A claim or a hand-off that succeeded, and for whom.
    Granted(Who, Tenure),
    /// A claim, hand-off or release that changed nothing.
    Lost,
    /// The conversation is released.
    Released,
    /// The key is in the log at this number, which may be an earlier append's.
    Landed(Entry),
    /// Another reign is in force, or another generation.
    Fenced,
}

/// A request that its sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// What was asked.
    pub request: Request,
    /// The key is in the log at this place, which the process has not heard yet; `None`: the request has not arrived.
    pub landed: Option<Entry>,
}

/// How far a process has come. There is no way back: whoever starts again is another incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// It was not started yet.
    Unborn,
    /// It runs; one that takes no step may as well be stopped.
    Running,
    /// It exited.
    Over,
}

/// A process, as it is in its own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process {
    /// How far it has come.
    pub life: Life,
    /// By its own clock, its lease may be acted upon.
    pub valid: bool,
    /// What it believes to own.
    pub tenure: Option<Tenure>,
    /// What it waits for; an owner has one append under way at a time.
    pub call: Option<Call>,
}

/// An acked key and the number that its sender was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Acked {
    /// The number.
    pub seq: Seq,
    /// The key.
    pub key: Key,
}

/// See the module's description.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The primary.
    pub store: Store,
    /// What a failover would leave; `None` when none is to come.
    pub standby: Option<Box<Store>>,
    /// The processes, in the order of [`Who::ALL`].
    pub processes: [Process; 3],
    /// Requests under way that nobody waits for.
    pub late: Vec<(Who, Request)>,
    /// Everything that was ever acked, ascending.
    pub acked: Vec<Acked>,
    /// Records that a failover lost, ascending.
    pub lost: Vec<Entry>,
    /// The epochs of all reigns, in the order in which they were granted; a [`ReignId`] is an index.
    pub granted: Vec<Epoch>,
    /// Failovers and restores that may still come.
    pub failovers_left: u8,
    /// Certain failures that may still come.
    pub failures_left: u8,
    /// What broke in the step that led here.
    pub broken: Rules,
}

impl World {
    /// A process.
    #[must_use]
    pub fn process(&self, who: Who) -> &Process {
        &self.processes[who as usize]
    }

    pub(super) fn process_mut(&mut self, who: Who) -> &mut Process {
        &mut self.processes[who as usize]
    }

    /// A process's row.
    #[must_use]
    pub fn row(&self, who: Who) -> Row {
        self.store.rows[who as usize]
    }

    pub(super) fn set_row(&mut self, who: Who, row: Row) {
        self.store.rows[who as usize] = row;
    }

    /// Writes down that a rule broke, if it did.
    pub(super) fn check(&mut self, holds: bool, rule: Rule) {
        if !holds {
            self.broken.add(rule);
        }
    }

    /// Every record that was ever committed.
    pub fn committed(&self) -> impl Iterator<Item = &Entry> {
        self.store.log.iter().chain(&self.lost)
    }

    /// Every append that may still land.
    pub fn under_way(&self) -> impl Iterator<Item = &Append> {
        let waited = self.processes.iter().filter_map(|process| process.call.as_ref());
        let waited = waited.filter(|call| call.landed.is_none()).map(|call| &call.request);
        waited.chain(self.late.iter().map(|(_, request)| request)).filter_map(|request| match request {
            Request::Append(append) => Some(append),
            _ => None,
        })
    }

    /// The highest number that was acked and is not lost.
    pub(super) fn acked_up_to(&self) -> Seq {
        let there = |acked: &&Acked| self.store.log.iter().any(|entry| entry.seq == acked.seq);
        self.acked.iter().filter(there).map(|acked| acked.seq).max().unwrap_or_default()
    }
}

impl Process {
    /// One that has nothing yet, or nothing any more.
    #[must_use]
    pub fn idle(life: Life) -> Self {
        Self { life, valid: life == Life::Running, tenure: None, call: None }
    }

    /// It takes steps.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.life == Life::Running
    }
}

impl Store {
    /// The incarnation is registered, whether its lease ran out or not.
    #[must_use]
    pub fn is_registered(&self, incarnation: Incarnation) -> bool {
        Who::ALL.iter().any(|who| who.incarnation() == incarnation && self.rows[*who as usize] != Row::Absent)
    }
}
