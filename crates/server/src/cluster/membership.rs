//! The observation of other nodes: keeps the view of their rows, and declares the dead.
//!
//! Who is dead is decided by [`conch_core::death::DeathWatch`]; here it is fed with looks at the store, and its verdicts
//! are carried out: an address is asked who answers, a death is declared. The store compares beat and lifeline again.
//!
//! Invariant: a look that fails, or takes too long, is a look that proves nothing.

use std::sync::Arc;
use std::time::Duration;

use conch_core::death::{Action, Answer, Cause, Death, DeathWatch, Lease, Lines, Look, Row, Suspect};
use conch_store::{LifelinesSeen, NodeRow};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::{due, news, within};
use crate::events::{Event, WhyDead};
use crate::link::{Link, LinkError};
use crate::node::Node;
use crate::router::Router;

/// Time between two looks at lifelines and node rows, and up to a fifth less.
const LOOK: Duration = Duration::from_millis(500);
/// How long one read of a look may take.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// How long an address may take to say who answers there.
const PROBE_TIME: Duration = Duration::from_millis(300);
/// Addresses asked after one look; the others after the next.
const PROBES_MAX: usize = 16;

/// Watches the others with this judge until the router shuts down. Without a link nobody is declared dead before their lease
/// runs out.
pub async fn run_with(node: Arc<Node>, router: Router, link: Option<Arc<dyn Link>>, watch: DeathWatch) {
    let wake_due = Arc::new(Notify::new());
    node.seams.spawn("due", due::run(Arc::clone(&node), router.clone(), Arc::clone(&wake_due)));
    let mut observer = Observer { node, link, watch, wake_due };
    while !router.is_closed() {
        observer.look().await;
        observer.rest().await;
    }
}

struct Observer {
    node: Arc<Node>,
    link: Option<Arc<dyn Link>>,
    watch: DeathWatch,
    wake_due: Arc<Notify>,
}

impl Observer {
    async fn rest(&self) {
        let seams = &self.node.seams;
        let now = seams.now();
        let usual = now + (LOOK - seams.jitter(LOOK / 5));
        // A loss is judged as soon as it may be.
        let judged = self.watch.next_judgement().filter(|at| *at > now);
        seams.clock.sleep_until(judged.map_or(usual, |at| at.min(usual))).await;
    }

    async fn look(&mut self) {
        // Lifelines first: a beat that is read afterwards is not older than the loss.
        let asked_at = self.node.seams.now();
        let lifelines = self.lifelines().await;
        let rows = self.rows().await;
        let others: Option<Vec<Row>> = rows.as_ref().map(|rows| self.others(rows));
        let lines = lifelines.as_ref().map(|seen| Lines { asked_at, observer: seen.observer, held: &seen.held });
        let own = self.node.validity.own();
        let look = Look { now: self.node.seams.now(), rows: others.as_deref(), lifelines: lines, own };
        let actions = self.watch.look(&look);
        let rows = rows.unwrap_or_default();
        let mut suspects = Vec::new();
        let mut somebody_died = false;
        for action in actions {
            match action {
                Action::Declare(death) => somebody_died |= self.declare(&death, &rows).await,
                Action::Probe(suspect) => suspects.push(suspect),
            }
        }
        for death in self.probe(suspects, &rows).await {
            somebody_died |= self.declare(&death, &rows).await;
        }
        if somebody_died {
            // Whoever waits for an answer of the dead learns it from the view.
            self.rows().await;
        }
    }

    async fn lifelines(&self) -> Option<LifelinesSeen> {
        let lifelines = self.node.store.lifelines()?;
        match within(&self.node.seams, LOOK_TIME, lifelines.observe()).await? {
            Ok(seen) => Some(seen),
            Err(error) => {
                tracing::debug!(%error, "the lifelines could not be read");
                None
            }
        }
    }

    /// All rows; they become the node's view.
    async fn rows(&self) -> Option<Vec<NodeRow>> {
        let asked_at = self.node.seams.now();
        match within(&self.node.seams, LOOK_TIME, self.node.store.nodes()).await? {
            Ok(rows) => {
                for event in news::between(&self.node.nodes.view(), &rows, self.node.me) {
                    self.node.events.record(event);
                }
                self.node.nodes.set(rows.clone(), asked_at);
                Some(rows)
            }
            Err(error) => {
                tracing::debug!(%error, "the node rows could not be read");
                None
            }
        }
    }

    fn others(&self, rows: &[NodeRow]) -> Vec<Row> {
        let others = rows.iter().filter(|row| row.registration.incarnation != self.node.me);
        let as_seen = |row: &NodeRow| Row {
            incarnation: row.registration.incarnation,
            beat: row.beat,
            lifeline: row.registration.lifeline,
            lease: Lease::with_left(row.expires_in_ms, &self.node.timing),
        };
        others.map(as_seen).collect()
    }

    /// Asks at the suspects' addresses. Returns the deaths that the answers prove.
    async fn probe(&mut self, suspects: Vec<Suspect>, rows: &[NodeRow]) -> Vec<Death> {
        let Some(link) = &self.link else { return Vec::new() };
        let asked: Vec<Suspect> = suspects.into_iter().take(PROBES_MAX).collect();
        let addr = |suspect: &Suspect| find(rows, suspect.incarnation).map(|row| row.registration.addr.clone());
        let questions = asked.iter().map(|suspect| {
            let (addr, seams) = (addr(suspect).unwrap_or_default(), &self.node.seams);
            async move {
                // A link that keeps to its time answers first.
                within(seams, PROBE_TIME * 2, who_answers(&**link, &addr)).await.unwrap_or(Answer::Unknown)
            }
        });
        let answers = join_all(questions.collect::<Vec<_>>()).await;
        let (now, own) = (self.node.seams.now(), self.node.validity.own());
        let answered = asked.iter().zip(answers);
        answered.filter_map(|(suspect, answer)| self.watch.answered(suspect, answer, now, &own)).collect()
    }

    /// True if it was declared now.
    async fn declare(&self, death: &Death, rows: &[NodeRow]) -> bool {
        let Death { incarnation, beat, cause } = *death;
        let (store, timing) = (&self.node.store, &self.node.timing);
        let declared = match cause {
            Cause::Expired => store.declare_expired(incarnation, beat, timing.ttl, timing.margin).await,
            Cause::ProcessDied(lifeline) => store.declare_process_dead(incarnation, beat, lifeline).await,
        };
        let (why, reason) = match cause {
            Cause::Expired => (WhyDead::LeaseRanOut, "its lease ran out"),
            Cause::ProcessDied(_) => (WhyDead::ProcessDied, "its process is gone"),
        };
        match declared {
            Ok(true) => {
                let node = find(rows, incarnation).map(|row| row.registration.node.clone());
                let shown = node.as_ref().map_or("?", |node| node.as_str());
                tracing::warn!(node = shown, %incarnation, "declared dead: {reason}");
                self.node.events.record(Event::DeathDeclared { incarnation, node, why });
                self.wake_due.notify_one();
                return true;
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "a death could not be declared"),
        }
        false
    }
}

fn find(rows: &[NodeRow], incarnation: conch_core::ids::Incarnation) -> Option<&NodeRow> {
    rows.iter().find(|row| row.registration.incarnation == incarnation)
}

async fn who_answers(link: &dyn Link, addr: &str) -> Answer {
    if addr.is_empty() {
        return Answer::Unknown;
    }
    match link.who_answers(addr, PROBE_TIME).await {
        Ok(incarnation) | Err(LinkError::OtherIncarnation(incarnation)) => Answer::Incarnation(incarnation),
        Err(LinkError::Unreachable(_)) => Answer::Refused,
        Err(LinkError::Ambiguous(_)) => Answer::Unknown,
    }
}
