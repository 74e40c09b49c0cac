//! Evening out: hands idle conversations to nodes that own fewer, and to the nodes of their home, a few at a time.
//!
//! What goes where is decided by [`conch_core::balance`], whose invariants E1 to E4 hold here too. Each node tells the others
//! how much it owns, as a notice; whoever gives asks the receivers first, and marks a conversation only when its turn
//! has come, so that a sender waits for its own conversation's hand-over at most.
//!
//! Deliberately absent: any look at the store to find out who owns how much, and a plan that outlives its round.

use conch_core::balance::{ANY_LEVEL, Ask, Load, Loads, Promises, Round};
use conch_core::placement::Wish;
use conch_store::NodeRow;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use super::*;
use crate::link::Notice;
use crate::node::OwnerLimits;
use crate::owner::Patience;
use crate::rules::Rules;

/// Conversations looked at in one round; the next one goes on behind them.
const LOOKS_MOST: usize = 1_024;
/// Conversations that change hands at once.
const AT_ONCE: usize = 8;
/// How long a peer may take to say how many it takes.
const PEER_ANSWERS: Duration = Duration::from_secs(2);

/// What a router keeps for it.
pub(super) struct Balance {
    loads: Loads,
    promises: Promises,
}

impl Balance {
    pub(super) fn new(limits: &OwnerLimits, rules: &Rules) -> Self {
        let (per_second, at_once) = match rules.hold(Rule::EveningOutIsGradual) {
            true => (limits.rebalance_per_s, in_one_round(limits)),
            false => (u32::MAX, u32::MAX),
        };
        Self { loads: Loads::default(), promises: Promises::new(per_second, at_once) }
    }
}

/// Most conversations of one round; 0: there are none.
fn in_one_round(limits: &OwnerLimits) -> u32 {
    let in_round = u128::from(limits.rebalance_per_s) * limits.rebalance_every.as_millis() / 1_000;
    u32::try_from(in_round).unwrap_or(u32::MAX).max(u32::from(limits.rebalance_per_s > 0))
}

/// A conversation that may go, and to whom.
struct Chosen {
    key: ConvKey,
    to: Incarnation,
}

/// A conversation that may go, its regions and its home.
type Candidate = (ConvKey, Arc<[Region]>, Region);

/// A conversation that is about to be handed over.
enum Idle {
    Asleep(Sleeper),
    Awake(OwnerHandle),
}

impl Router {
    fn balance(&self) -> MutexGuard<'_, Balance> {
        self.shared.balance.lock().expect("no holder of the balance panics")
    }

    /// Evens out until this node leaves. A node that is set to take no part does not even tell.
    pub(super) async fn even_out(self) {
        let (node, mut behind) = (Arc::clone(&self.shared.node), None);
        let every = node.limits.rebalance_every;
        if node.limits.rebalance_per_s == 0 {
            return;
        }
        loop {
            node.seams.sleep(every - node.seams.jitter(every / 5)).await;
            if self.table().stage != Stage::Open {
                return;
            }
            let owned = self.load();
            self.shared.link.tell(&node.peers(), &Notice::Load { owned });
            behind = self.round(behind, owned).await;
        }
    }

    fn load(&self) -> u32 {
        u32::try_from(self.owned()).unwrap_or(u32::MAX)
    }

    /// A peer tells how much it owns.
    pub fn heard_load(&self, from: Incarnation, owned: u32) {
        let now = self.shared.node.seams.now();
        self.balance().loads.hear(now, from, owned);
    }

    /// How many conversations this node takes of a peer that evens out, so that it owns no more than `level` because of it.
    #[must_use]
    pub fn takes_share(&self, from: Incarnation, conversations: u32, level: u32) -> u32 {
        let node = &self.shared.node;
        if self.table().stage != Stage::Open || node.limits.rebalance_per_s == 0 {
            return 0;
        }
        let level = if node.rules.hold(Rule::EveningOutStops) { level } else { ANY_LEVEL };
        let (ask, owned) = (Ask { to: node.me, conversations, level }, self.load());
        self.balance().promises.promise(node.seams.now(), ask, from, owned)
    }

    /// One round, which looks at what comes behind a key. Returns where the next one goes on.
    async fn round(&self, behind: Option<ConvKey>, owned: u32) -> Option<ConvKey> {
        let node = &self.shared.node;
        let rows = self.known_takers();
        let load =
            |(row, owned): &(NodeRow, u32)| (row.registration.incarnation, row.registration.region.clone(), *owned);
        let told: Vec<_> = rows.iter().map(load).collect();
        let peers: Vec<Load<'_>> = told
            .iter()
            .map(|(incarnation, region, owned)| Load { incarnation: *incarnation, region, owned: *owned })
            .collect();
        let me = Load { incarnation: node.me, region: &node.region, owned };
        let gradual = node.rules.hold(Rule::EveningOutIsGradual);
        let most = if gradual { in_one_round(&node.limits) } else { u32::MAX };
        let mut round = Round::new(me, &peers, most);
        if round.is_over() {
            return None;
        }
        let (chosen, next) = self.choose(&mut round, behind);
        let takers = self.ask_for_room(&round.asks(), &rows).await;
        self.hand_over_all(chosen, takers).await;
        next
    }

    /// The live peers that take conversations and have told how many they own.
    fn known_takers(&self) -> Vec<(NodeRow, u32)> {
        let (now, every) = (self.shared.node.seams.now(), self.shared.node.limits.rebalance_every);
        let rows = self.peer_rows(None);
        let mut balance = self.balance();
        balance.loads.forget_old(now, every);
        let takers = rows.into_iter().filter(|row| !row.draining);
        takers
            .filter_map(|row| balance.loads.of(now, row.registration.incarnation, every).map(|owned| (row, owned)))
            .collect()
    }

    /// What of the conversations behind a key would go, what sleeps before what is awake; and the last one looked at.
    fn choose(&self, round: &mut Round<'_>, behind: Option<ConvKey>) -> (Vec<Chosen>, Option<ConvKey>) {
        let rules = &self.shared.node.rules;
        let (idle, last) = self.idle_behind(behind);
        let wishes: Vec<_> = idle.iter().map(|(key, regions, home)| (*key, Wish { regions, home })).collect();
        let mut chosen = Vec::new();
        if rules.hold(Rule::HomeIsReturnedTo) {
            let home =
                wishes.iter().filter_map(|(key, wish)| Some(Chosen { key: *key, to: round.return_home(*wish)? }));
            chosen.extend(home);
        }
        // Who is at home here is not among the former.
        chosen.extend(wishes.iter().filter_map(|(key, wish)| Some(Chosen { key: *key, to: round.even_out(*wish)? })));
        (chosen, last)
    }

    /// The conversations behind a key that may go, what sleeps first; and the last one looked at, if there may be more. Copied, so that whoever sends waits for the table no longer than a look takes.
    fn idle_behind(&self, behind: Option<ConvKey>) -> (Vec<Candidate>, Option<ConvKey>) {
        let (now, rules) = (self.shared.node.seams.now(), &self.shared.node.rules);
        let idle_after = self.shared.node.limits.rebalance_idle;
        let table = self.table();
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut asleep, mut awake, mut looks, mut last) = (Vec::new(), Vec::new(), 0, None);
        for (key, entry) in table.entries.range((from, Bound::Unbounded)).take(LOOKS_MOST) {
            looks += 1;
            last = Some(*key);
            match entry {
                Entry::Hibernating { tenure, .. } => {
                    asleep.push((*key, tenure.regions.clone(), tenure.home.clone()));
                }
                Entry::Active(owner) if !owner.is_gone() => {
                    let quiet = now.since(owner.last_write()) >= idle_after || !rules.hold(Rule::IdleAloneMoves);
                    let facts = &owner.facts;
                    awake.extend(quiet.then(|| (*key, facts.regions.clone(), facts.home.clone())));
                }
                Entry::Active(_) | Entry::Claiming(_) => {}
            }
        }
        asleep.extend(awake);
        (asleep, last.filter(|_| looks == LOOKS_MOST))
    }

    /// Asks all of them at once; those that take some, and how many.
    async fn ask_for_room(&self, asks: &[Ask], rows: &[(NodeRow, u32)]) -> Vec<(Peer, u32)> {
        let asked = asks.iter().filter_map(|ask| {
            let (row, _) = rows.iter().find(|(row, _)| row.registration.incarnation == ask.to)?;
            let peer = Peer { incarnation: ask.to, addr: row.registration.addr.clone() };
            let request = Request::Share { conversations: ask.conversations, level: ask.level };
            Some(async move {
                match self.shared.link.ask(&peer, request, PEER_ANSWERS).await {
                    Ok(Response::Takes(room)) if room > 0 => Some((peer, room)),
                    _ => None,
                }
            })
        });
        join_all(asked.collect::<Vec<_>>()).await.into_iter().flatten().collect()
    }

    async fn hand_over_all(&self, chosen: Vec<Chosen>, mut takers: Vec<(Peer, u32)>) {
        let given = chosen.into_iter().filter_map(|Chosen { key, to }| {
            let (peer, room) = takers.iter_mut().find(|(peer, room)| peer.incarnation == to && *room > 0)?;
            *room -= 1;
            Some((key, peer.clone()))
        });
        let given: Vec<(ConvKey, Peer)> = given.collect();
        let handed = stream::iter(given).map(|(key, peer)| async move { self.hand_over(key, peer).await });
        let handed = handed.buffer_unordered(AT_ONCE).filter(|handed| std::future::ready(*handed)).count().await;
        self.shared.node.metrics.rebalanced.inc_by(handed as u64);
    }

    /// False if it was not handed over: it is not idle any more, or the peer cannot take it.
    async fn hand_over(&self, key: ConvKey, peer: Peer) -> bool {
        // A name of its own, so that the table is free again before the first wait.
        let idle = self.take_idle(key);
        match idle {
            None => false,
            Some(Idle::Asleep(sleeper)) => self.give_sleeping(sleeper, Some(peer)).await,
            Some(Idle::Awake(owner)) => {
                let node = &self.shared.node;
                let idle_alone = node.rules.hold(Rule::IdleAloneMoves);
                let patience = if idle_alone { Patience::OnlyIfIdle } else { Patience::Until(node.seams.now()) };
                self.give_awake(owner, peer, patience).await
            }
        }
    }

    fn take_idle(&self, key: ConvKey) -> Option<Idle> {
        if self.is_closed() {
            return None;
        }
        let mut table = self.table();
        match table.entries.get_mut(&key)? {
            Entry::Active(owner) if !owner.is_gone() => Some(Idle::Awake(owner.clone())),
            entry => entry.take_sleeper().map(Idle::Asleep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_hands_over_at_least_one_where_any_may_go() {
        let round = |rebalance_per_s, ms| {
            let rebalance_every = Duration::from_millis(ms);
            in_one_round(&OwnerLimits { rebalance_per_s, rebalance_every, ..OwnerLimits::default() })
        };
        assert_eq!([round(20, 1_000), round(20, 5_000), round(3, 50), round(0, 1_000)], [20, 100, 1, 0]);
    }
}
