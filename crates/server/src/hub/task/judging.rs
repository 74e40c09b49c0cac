//! What a join has to know of the store before it is answered: whether a position is beyond the log's head, or too far behind it.
//!
//! Invariants: the store is asked beside the hub, which goes on showing meanwhile; one question at a time, and what it says is
//! said to all who wait for the same. A join is put off for each kind of question once at most: where the store does not answer, it
//! is judged by what the hub knows.
//!
//! Deliberately absent: the reads by which a hub fills gaps of its own; nothing may be shown before those.

use super::*;

/// What is not known of a join's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// A session that caught up from the store may have seen a record that this hub has not been sent yet.
    Head,
    /// How many records lie above it, below this head.
    Distance { after: Seq, head: Seq },
}

/// What the store said.
pub(super) struct Judged {
    doubt: Doubt,
    log: LogId,
    /// The head's number, or how many records there are. `None`: it did not answer.
    number: Option<u64>,
}

/// A question to the store, and the joins that wait for it.
#[derive(Default)]
pub(super) struct Judging {
    asked: Option<BoxFuture<'static, Judged>>,
    /// Questions that were asked.
    count: u64,
    /// When the question began that is asked, or was asked last.
    began: Monotonic,
    /// When the last look at the head began that succeeded. It shows all that those can have seen who asked before it.
    looked_at_head: Option<Monotonic>,
}

/// What a join has heard of the store.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    /// Questions that were asked before it came to wait.
    since: u64,
    head: bool,
    distance: bool,
}

impl Judging {
    /// Completes when the store has answered. Cancel safe: the question is kept.
    pub(super) fn judged(&mut self) -> impl Future<Output = Judged> {
        let asked = &mut self.asked;
        async move {
            match asked {
                Some(asked) => asked.await,
                None => std::future::pending().await,
            }
        }
    }
}

impl Hub {
    /// Puts a join off if the store has to be asked first; gives it back if it can be judged.
    pub(super) fn judge(&mut self, mut waiting: Waiting) -> Option<Waiting> {
        let Some(doubt) = self.doubt(&waiting) else { return Some(waiting) };
        waiting.heard.since = self.judging.count;
        self.waiting.push(waiting);
        if self.judging.asked.is_none() {
            self.ask(doubt);
        }
        None
    }

    fn doubt(&mut self, waiting: &Waiting) -> Option<Doubt> {
        let at = self.at.as_ref()?;
        let after = waiting.join.after?;
        if self.is_of_another_log(&waiting.join) {
            return None;
        }
        if after > at.seq {
            let is_looked_at = self.judging.looked_at_head.is_some_and(|looked| looked > waiting.asked);
            return (!waiting.heard.head && !is_looked_at).then_some(Doubt::Head);
        }
        let (log, head) = (at.address.log.clone(), at.seq);
        let is_known =
            self.ring.covers(after) || self.reach.is_too_far(&log, after, head, self.reach_limit()).is_some();
        (!is_known && !waiting.heard.distance).then_some(Doubt::Distance { after, head })
    }

    fn ask(&mut self, doubt: Doubt) {
        let Some(log) = self.at.as_ref().map(|at| at.address.log.clone()) else { return };
        self.judging.count += 1;
        self.judging.began = self.shared.node.seams.now();
        let (shared, conversation) = (Arc::clone(&self.shared), self.conversation.clone());
        self.judging.asked = Some(Box::pin(async move {
            let store = &shared.node.store;
            let number = match doubt {
                Doubt::Head => {
                    let query = RangeQuery { conversation, direction: Direction::Latest, limit: 1, kinds: Vec::new() };
                    store.range(&query).await.ok().flatten().filter(|page| page.log == log).map(|page| page.head_seq.0)
                }
                Doubt::Distance { after, .. } => {
                    let limit = shared.limits.catch_up_records.saturating_add(1);
                    let counted = store.count_after(&conversation, after, limit).await.ok();
                    counted.map(|records| u64::try_from(records).unwrap_or(u64::MAX))
                }
            };
            Judged { doubt, log, number }
        }));
    }

    /// The store has answered, or has not: those who waited for it are judged.
    pub(super) async fn judged(&mut self, judged: Judged) {
        self.judging.asked = None;
        let Judged { doubt, log, number } = judged;
        if self.at.as_ref().is_some_and(|at| at.address.log == log) {
            self.mark(doubt);
            match (doubt, number) {
                (Doubt::Head, Some(head)) => {
                    if self.fill_to(Seq(head)).await {
                        self.judging.looked_at_head = Some(self.judging.began);
                    }
                }
                (Doubt::Distance { after, head }, Some(records)) => {
                    self.reach.note(after, head, records, self.reach_limit());
                }
                (_, None) => {}
            }
        }
        if self.follow.is_some() {
            self.join_waiting();
        }
    }

    /// Those who came to wait before the question was asked have heard the answer.
    fn mark(&mut self, doubt: Doubt) {
        let Some(head) = self.at.as_ref().map(|at| at.seq) else { return };
        let asked = self.judging.count;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.heard.since < asked) {
            match doubt {
                Doubt::Head => waiting.heard.head |= waiting.join.after.is_some_and(|after| after > head),
                Doubt::Distance { after, .. } => waiting.heard.distance |= waiting.join.after == Some(after),
            }
        }
    }

    /// Takes those in who wait.
    pub(super) fn join_waiting(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.join(waiting);
        }
    }
}
