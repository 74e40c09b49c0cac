//! The heartbeat: renews the node's one lease row, whatever the node owns, and keeps its lifeline.
//!
//! It runs on a thread of its own (in production) so that no busy runtime can starve it. What it does next is decided by
//! [`conch_core::heart::Heart`]: a failed renewal never ends it; a lost lifeline freezes the node until a new one is in its
//! row; a row that is gone ends the node, for whoever deleted it has declared this incarnation dead, and a dead one never
//! registers again.
//!
//! Invariant: validity is written here and nowhere else.

use std::sync::Arc;

use conch_core::heart::{Heart, Next, Renewal};
use conch_core::time::Monotonic;
use conch_store::{HeldLifeline, Registration, StoreError};
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use super::within;
use crate::events::Event;
use crate::node::Node;

/// How the node's lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Held; whether it may be acted upon right now is [`crate::node::Validity`]'s to say.
    Held,
    /// The row is gone. The process must end.
    Lost,
}

/// Takes a lifeline where the store has them, registers the node with it, and starts its heartbeat. Validity counts from
/// before the request was sent. `address` is the advertised one of the node's link; empty without one.
///
/// # Errors
/// The store's, when the lifeline or the registration fails.
pub async fn start(node: &Arc<Node>, address: String) -> Result<watch::Receiver<LeaseState>, StoreError> {
    begin(node, address, of_process).await
}

/// With every rule.
#[cfg(not(feature = "mutants"))]
fn of_process(heart: Heart) -> Heart {
    heart
}

/// Without the rule that the variable `CONCH_MUTANT` names.
#[cfg(feature = "mutants")]
fn of_process(heart: Heart) -> Heart {
    match crate::mutants::heart() {
        Some(rule) => heart.without(rule),
        None => heart,
    }
}

/// The same with a rule removed, to show that a check catches it.
///
/// # Errors
/// As [`start`].
#[cfg(feature = "mutants")]
pub async fn start_without(
    node: &Arc<Node>,
    address: String,
    rule: conch_core::heart::Rule,
) -> Result<watch::Receiver<LeaseState>, StoreError> {
    begin(node, address, move |heart| heart.without(rule)).await
}

async fn begin(
    node: &Arc<Node>,
    address: String,
    mutate: impl FnOnce(Heart) -> Heart,
) -> Result<watch::Receiver<LeaseState>, StoreError> {
    // Held before the row exists, so that nobody sees a row without its lock.
    let line = match node.store.lifelines() {
        Some(lifelines) => Some(lifelines.hold().await?),
        None => None,
    };
    let lifeline = line.as_ref().map(|line| line.key);
    let registration = Registration {
        incarnation: node.me,
        node: node.name.clone(),
        region: node.region.clone(),
        addr: address,
        lifeline,
    };
    let sent = node.seams.now();
    node.store.register(&registration, node.timing.ttl).await?;
    let (state, observed) = watch::channel(LeaseState::Held);
    let heart = mutate(Heart::registered(node.timing, sent, lifeline));
    let beating = Beating { node: Arc::clone(node), heart, line, state, troubled_since: None };
    beating.tell();
    node.seams.spawner.spawn_dedicated("heartbeat", Box::pin(beating.run()));
    Ok(observed)
}

/// Why a pause ended.
enum Woken {
    /// The node has shut down.
    Closed,
    /// The lifeline was lost.
    Lost,
    /// It is time.
    Due,
}

struct Beating {
    node: Arc<Node>,
    heart: Heart,
    /// The session of the lifeline in the row, or of the one to be written into it.
    line: Option<HeldLifeline>,
    state: watch::Sender<LeaseState>,
    /// When it was first warned of since the last renewal.
    troubled_since: Option<Monotonic>,
}

impl Beating {
    async fn run(mut self) {
        loop {
            match self.rest().await {
                Woken::Closed => return,
                Woken::Lost => self.lose_lifeline(),
                Woken::Due => {}
            }
            let (me, ttl, store) = (self.node.me, self.node.timing.ttl, Arc::clone(&self.node.store));
            let renewal = match self.heart.next() {
                Next::Renew => self.renew(Box::pin(async move { store.renew(me, ttl).await })).await,
                Next::Replace(key) => {
                    self.renew(Box::pin(async move { store.replace_lifeline(me, ttl, key).await })).await
                }
                Next::Hold => {
                    self.hold().await;
                    continue;
                }
                Next::End => return,
            };
            self.tell();
            if renewal == Renewal::NoRow && self.heart.next() == Next::End {
                tracing::error!(incarnation = %me, "the node's lease row is gone; this process ends");
                self.node.events.record(Event::LeaseLost);
                let _ = self.state.send(LeaseState::Lost);
                return;
            }
        }
    }

    async fn rest(&mut self) -> Woken {
        // All branches are cancel safe.
        tokio::select! {
            biased;
            () = self.state.closed() => Woken::Closed,
            () = lost(&mut self.line) => Woken::Lost,
            () = self.node.seams.sleep(self.heart.pause()) => Woken::Due,
        }
    }

    /// Sends a renewal and awaits it for a beat at most: one that hangs must not keep the next one from being sent.
    async fn renew(&mut self, mut call: BoxFuture<'static, Result<Option<u64>, StoreError>>) -> Renewal {
        let sent = self.node.seams.now();
        let mut give_up = self.node.seams.sleep(self.node.timing.beat);
        let answer = loop {
            // All branches are cancel safe; a call that is given up may still be applied, which harms nothing.
            tokio::select! {
                biased;
                () = lost(&mut self.line) => self.lose_lifeline(),
                answer = &mut call => break answer,
                () = &mut give_up => break Err(StoreError::Unavailable("no answer within a beat".to_owned())),
            }
        };
        let renewal = match answer {
            Ok(Some(_beat)) => {
                self.recover();
                Renewal::Renewed
            }
            Ok(None) => Renewal::NoRow,
            Err(error) => {
                self.warn(&error);
                Renewal::Failed
            }
        };
        self.heart.renewed(sent, self.node.seams.now(), renewal);
        renewal
    }

    async fn hold(&mut self) {
        let Some(lifelines) = self.node.store.lifelines() else { return self.heart.failed() };
        match within(&self.node.seams, self.node.timing.beat, lifelines.hold()).await {
            Some(Ok(line)) => {
                self.heart.holds(line.key);
                self.line = Some(line);
            }
            Some(Err(error)) => {
                self.warn(&error);
                self.heart.failed();
            }
            None => {
                self.warn(&StoreError::Unavailable("no lifeline within a beat".to_owned()));
                self.heart.failed();
            }
        }
    }

    fn lose_lifeline(&mut self) {
        tracing::warn!(incarnation = %self.node.me, "the lifeline was lost; the node waits until it has a new one");
        self.troubled_since.get_or_insert(self.node.seams.now());
        self.line = None;
        self.heart.lost_lifeline();
        self.node.events.record(Event::LifelineLost);
        self.tell();
    }

    /// Says that what was warned of is over.
    fn recover(&mut self) {
        if let Some(since) = self.troubled_since.take() {
            let troubled_ms = self.node.seams.now().since(since).as_millis();
            tracing::info!(incarnation = %self.node.me, troubled_ms, "the lease is renewed again: the store answers");
        }
    }

    fn warn(&mut self, error: &StoreError) {
        self.troubled_since.get_or_insert(self.node.seams.now());
        self.node.metrics.heartbeat_failures.inc();
        let failures = self.heart.failures() + 1;
        // The first, and then ever more seldom: a store that refuses at once is asked ten times a second.
        if failures.is_power_of_two() {
            tracing::warn!(%error, failures, "a lease renewal failed");
        }
    }

    /// Tells the node how it stands.
    fn tell(&self) {
        let own = self.heart.own();
        self.node.validity.stand(own);
        let left = if own.valid_until == Monotonic(0) {
            Default::default()
        } else {
            own.valid_until.since(self.node.seams.now())
        };
        self.node.metrics.lease_valid_for(left);
    }
}

/// Completes when the session of a lifeline is lost; never without one. Cancel safe.
async fn lost(line: &mut Option<HeldLifeline>) {
    match line {
        // An error is the loss: nothing is ever sent.
        Some(line) => drop((&mut line.lost).await),
        None => std::future::pending().await,
    }
}
