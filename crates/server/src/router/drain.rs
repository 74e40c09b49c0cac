//! Giving away what is owned: to live peers while there are any, else back to the store.
//!
//! Invariant: a conversation changes hands with nothing in flight, in one statement of the store; what its clients send
//! meanwhile waits for that statement and is passed on, before the receiver is told. A hand-over that is lost on the way
//! costs its receiver one claim.

use conch_core::conversation::ConversationKind;
use conch_core::placement::Wish;
use conch_store::Head;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::*;
use crate::events::{Event, WhyReleased};
use crate::link::Handed;
use crate::owner::Patience;

/// Time between two looks at owners that are about to end.
const ENDING: Duration = Duration::from_millis(10);
/// How long a peer may take to answer an offer or to hear of a hand-over.
const PEER_ANSWERS: Duration = Duration::from_secs(2);
/// Conversations that change hands at once.
pub(super) const AT_ONCE: usize = 64;
/// How often a peer is told of what it owns until it has heard.
const TOLD_AT_MOST: u32 = 3;

/// A peer that takes conversations, and how many more.
struct Taker {
    peer: Peer,
    region: Region,
    room: u32,
}

/// Whether a peer knows what it was handed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Heard,
    Unheard,
}

/// Peers that take conversations, in turn.
struct Takers {
    takers: Vec<Taker>,
    next: usize,
}

impl Takers {
    /// The next one that may own a conversation of these regions.
    fn take(&mut self, regions: &[Region]) -> Option<Peer> {
        for step in 0..self.takers.len() {
            let index = (self.next + step) % self.takers.len();
            let taker = &mut self.takers[index];
            let wish = Wish { regions, home: &taker.region };
            if taker.room > 0 && wish.allows(&taker.region) {
                taker.room -= 1;
                self.next = index + 1;
                return Some(taker.peer.clone());
            }
        }
        None
    }
}

impl Router {
    /// Hands everything to peers that take it: first what is at rest, then what is in the middle of a turn, once `patience`
    /// is over or the turn. What nobody takes stays for [`Router::shut_down`]. From here on this node claims nothing new,
    /// and passes on what others own.
    pub async fn drain(&self, patience: Duration) {
        {
            let mut table = self.table();
            if table.stage == Stage::Open {
                table.stage = Stage::Draining;
            }
        }
        let give_up = self.shared.node.seams.now() + patience;
        while self.give(usize::MAX, Patience::OnlyIfIdle).await > 0 {}
        self.give(usize::MAX, Patience::Until(give_up)).await;
        // What was claimed just before, and has a task only now.
        while self.give(usize::MAX, Patience::OnlyIfIdle).await > 0 {}
    }

    /// Hands over at most so many conversations. Returns how many found a new owner.
    pub(super) async fn give(&self, most: usize, patience: Patience) -> usize {
        let mut takers = self.takers(most.min(self.owned())).await;
        if takers.takers.is_empty() {
            return 0;
        }
        let mut tried = 0;
        let sleepers = self.sleepers(|_| true).take(most).map(|sleeper| {
            tried += 1;
            (takers.take(&sleeper.tenure.regions), sleeper)
        });
        let asleep = stream::iter(sleepers).map(|(peer, sleeper)| self.give_sleeping(sleeper, peer));
        let asleep = asleep.buffer_unordered(AT_ONCE).filter(|given| std::future::ready(*given)).count().await;
        let active = self.active_owners(most.saturating_sub(tried));
        let awake: Vec<_> =
            active.into_iter().filter_map(|owner| Some((takers.take(&owner.facts.regions)?, owner))).collect();
        // An owner that waits for its turn to end keeps nobody else waiting; the store is asked for so many at once all the
        // same (`Charge::hand_overs`).
        let at_once = if matches!(patience, Patience::Until(_)) { awake.len().max(1) } else { AT_ONCE };
        let awake = stream::iter(awake).map(|(peer, owner)| self.give_awake(owner, peer, patience));
        asleep + awake.buffer_unordered(at_once).filter(|given| std::future::ready(*given)).count().await
    }

    /// With a task, which hands over by itself.
    pub(super) async fn give_awake(&self, owner: OwnerHandle, peer: Peer, patience: Patience) -> bool {
        let Some(handed) = owner.hand_off(peer.incarnation, patience).await else { return false };
        let told = self.tell_of(&peer, handed).await;
        if told == Told::Unheard && owner.facts.kind == ConversationKind::Session {
            // Its turn must not wait for somebody who comes.
            self.look_again(&owner.facts.conversation);
        }
        true
    }

    /// Without a task: the store's statement is all there is. Where it is not given, the lease stays, asleep as before.
    pub(super) async fn give_sleeping(&self, sleeper: Sleeper, peer: Option<Peer>) -> bool {
        let Sleeper { tenure, since, settle } = sleeper;
        let node = &self.shared.node;
        let held = Held { conversation: tenure.conversation.key, epoch: tenure.reign.epoch, me: node.me };
        let outcome = match &peer {
            Some(peer) => {
                node.store.hand_off(&held, peer.incarnation, tenure.reign.first_seq, node.timing.margin).await
            }
            None => Ok(None),
        };
        match (outcome, peer) {
            (Ok(Some(armed)), Some(peer)) => {
                self.drop_entry(&tenure.conversation);
                // The store knows whose it is: who has waited need not wait until the peer knows too.
                drop(settle);
                self.tell_of(&peer, tenure.handed(armed)).await;
                true
            }
            (Ok(_), _) => {
                let key = tenure.conversation.key;
                self.table().entries.insert(key, Entry::Hibernating { tenure, since });
                false
            }
            // Of unknown fate: whoever comes next resolves.
            (Err(error), _) => {
                tracing::warn!(conversation = %tenure.conversation.id, %error, "a hand-over failed");
                self.drop_entry(&tenure.conversation);
                false
            }
        }
    }

    async fn tell_of(&self, peer: &Peer, handed: Handed) -> Told {
        self.shared.node.metrics.handed_off.inc();
        let conversation = handed.conversation.clone();
        let (epoch, to) = (handed.epoch, peer.incarnation);
        self.shared.node.events.record(Event::HandedOff { conversation: conversation.clone(), epoch, to });
        for _ in 0..TOLD_AT_MOST {
            match self.shared.link.ask(peer, Request::HandOff(handed.clone()), PEER_ANSWERS).await {
                Ok(_) => return Told::Heard,
                // The store says whose it is: the peer finds it when it is asked for it.
                Err(error) => {
                    tracing::debug!(%conversation, peer = %peer.incarnation, %error, "a peer was not told what it owns");
                }
            }
            self.shared.node.seams.sleep(ENDING).await;
        }
        Told::Unheard
    }

    /// Takes over what the peer `from` has handed to this incarnation. What is no news, or true no more, changes nothing.
    pub async fn adopt(&self, from: Incarnation, handed: Handed) {
        let conversation = ConvRef::from(handed.conversation);
        let armed = Armed {
            epoch: handed.epoch,
            generation: handed.generation,
            last_seq: handed.last_seq,
            first_seq: handed.first_seq,
        };
        let reading = self.table().next_reading();
        let Ok(Some(info)) = self.shared.node.store.conversation(&conversation).await else {
            // It is ours all the same, and nobody else takes up what is due in it.
            return self.look_again(&conversation);
        };
        // What was said long ago, to a process that stood still, may be true no more.
        let is_mine = |head: &Head| head.owner == Some(self.shared.node.me) && head.epoch == armed.epoch;
        if !info.head.as_ref().is_some_and(is_mine) {
            return;
        }
        let (settle, settled) = watch::channel(());
        {
            let mut table = self.table();
            // Whoever settles it already finds that it is ours, and claims it anew.
            if table.stage != Stage::Open || table.entries.contains_key(&conversation.key) {
                return;
            }
            table.entries.insert(conversation.key, Entry::Claiming(settled));
        }
        self.shared.node.metrics.adopted.inc();
        let (told, epoch) = (conversation.id.clone(), armed.epoch);
        self.shared.node.events.record(Event::Received { conversation: told, epoch, from });
        self.start_owner(Tenure::of(conversation, armed, handed.log, (reading, &info)));
        drop(settle);
    }

    /// Those peers that take some of so many conversations; asked all at once.
    async fn takers(&self, conversations: usize) -> Takers {
        let offer = Request::Offer { conversations: u32::try_from(conversations).unwrap_or(u32::MAX) };
        let rows = self.peer_rows(None);
        let asked = rows.into_iter().filter(|row| !row.draining).map(|row| {
            let registration = row.registration;
            let peer = Peer { incarnation: registration.incarnation, addr: registration.addr };
            let offer = offer.clone();
            async move {
                match self.shared.link.ask(&peer, offer, PEER_ANSWERS).await {
                    Ok(Response::Takes(room)) if room > 0 => Some(Taker { peer, region: registration.region, room }),
                    _ => None,
                }
            }
        });
        Takers { takers: join_all(asked).await.into_iter().flatten().collect(), next: 0 }
    }

    fn active_owners(&self, most: usize) -> Vec<OwnerHandle> {
        let table = self.table();
        let active = table.entries.values().filter_map(|entry| match entry {
            Entry::Active(handle) if !handle.is_gone() => Some(handle.clone()),
            _ => None,
        });
        active.take(most).collect()
    }

    /// How many conversations of a peer's offer this node takes: all, unless it is on its way out itself.
    #[must_use]
    pub fn takes(&self, offered: u32) -> u32 {
        if self.table().stage == Stage::Open { offered } else { 0 }
    }

    /// Refuses whatever comes from now on, lets every owner finish what is under way and releases all leases.
    pub async fn shut_down(&self) {
        self.table().stage = Stage::Closed;
        loop {
            let Unfinished { active, mut claiming, ending } = self.unfinished();
            if active.is_empty() && claiming.is_empty() && ending == 0 {
                break;
            }
            // Many at once, so that they share the store's commits.
            stream::iter(&active).for_each_concurrent(AT_ONCE, OwnerHandle::release).await;
            for settled in &mut claiming {
                // An error means that the claim was settled; its owner is found at the next look.
                let _ = settled.changed().await;
            }
            if ending > 0 {
                self.shared.node.seams.sleep(ENDING).await;
            }
        }
        let released = stream::iter(self.sleepers(|_| true)).for_each_concurrent(
            AT_ONCE,
            |Sleeper { tenure, settle, .. }| async move {
                self.release(&tenure, WhyReleased::Draining).await;
                drop(settle);
            },
        );
        released.await;
    }

    /// What a shutdown still waits for.
    fn unfinished(&self) -> Unfinished {
        let mut unfinished = Unfinished::default();
        for entry in self.table().entries.values() {
            match entry {
                Entry::Active(handle) if handle.is_gone() => unfinished.ending += 1,
                Entry::Active(handle) => unfinished.active.push(handle.clone()),
                Entry::Claiming(settled) if settled.has_changed().is_ok() => unfinished.claiming.push(settled.clone()),
                // The latter: a claim whose task is gone.
                Entry::Hibernating { .. } | Entry::Claiming(_) => {}
            }
        }
        unfinished
    }
}

/// See [`Router::unfinished`].
#[derive(Default)]
struct Unfinished {
    /// Owners that run.
    active: Vec<OwnerHandle>,
    /// Claims under way.
    claiming: Vec<watch::Receiver<()>>,
    /// Owners that accept nothing more and are about to say how they ended.
    ending: usize,
}
