//! What all nodes own and what happened on them, asked for operators at whichever node they came to.
//!
//! The nodes are asked and not the store: what a node believes that it owns is in its memory, whether leases are kept in a
//! database or in etcd, and looking there costs a store nothing while it is in trouble. What a node that does not answer owns is
//! not known, and it is named.
//!
//! Invariant: pages of all nodes are put together in the order of the keys, up to where every one of them was looked at; so page
//! after page shows each conversation that stays with its owner exactly once.
//!
//! Deliberately absent: who may ask, which is the gateway's.

use conch_core::ids::NodeName;
use conch_core::wire::link::{EventsPage, Owned, OwnedPage, OwnedQuery, Rest};
use futures_util::future::join_all;

use super::*;

/// How long a node may take to say what it is asked.
pub const SAYS_WITHIN: Duration = Duration::from_secs(1);
/// Nodes that are asked at once; those beyond are named as not asked.
pub const ASKED_MAX: usize = 64;
/// Most conversations of one page.
pub const OWNED_MAX: u32 = 500;
/// Conversations that are looked at under one hold of the table.
const LOOKED_AT_ONCE: usize = 1_024;
/// Such holds for one page.
const LOOKS_MAX: usize = 64;

/// How a node was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// It is the one that asks.
    Here,
    /// It answered over the link.
    Up,
    /// It has no link, or the one that asks has none.
    NoLink,
    /// It could not be asked.
    Unreachable,
    /// Another process answers at its address.
    OtherProcess,
    /// It was asked, and did not answer in time.
    NoAnswer,
    /// It is beyond [`ASKED_MAX`].
    NotAsked,
}

/// A node, and what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told<T> {
    /// Its name.
    pub node: NodeName,
    /// Which process.
    pub incarnation: Incarnation,
    /// How it was reached.
    pub reach: Reach,
    /// What it said, or why it did not, in words.
    pub said: Result<T, String>,
}

/// A conversation and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OwnedBy {
    /// What its node says.
    #[serde(flatten)]
    pub owned: Owned,
    /// The node.
    pub node: NodeName,
    /// Which process.
    #[serde(serialize_with = "crate::events::as_text")]
    pub incarnation: Incarnation,
}

/// A part of what all nodes own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// By ascending key. Two nodes that both believe that they own a conversation are both here.
    pub owned: Vec<OwnedBy>,
    /// Up to which key this is everything; `None`: to the end.
    pub through: Option<ConvKey>,
    /// The nodes that did not say what they own.
    pub silent: Vec<Told<()>>,
}

impl Router {
    /// How many conversations each node owns.
    pub async fn survey_counts(&self) -> Vec<Told<u64>> {
        let query = OwnedQuery::default();
        let here = self.owned_page(&query).total;
        let asked = |_| Request::Owned(query.clone());
        self.ask_everybody(here, asked, |said| match said {
            Response::Owned(page) => Some(page.total),
            _ => None,
        })
        .await
    }

    /// Which conversations are owned, by whom.
    pub async fn survey_owned(&self, query: &OwnedQuery) -> Ownership {
        let here = self.owned_page(query);
        let asked = |_| Request::Owned(query.clone());
        let told = self.ask_everybody(here, asked, |said| match said {
            Response::Owned(page) => Some(page),
            _ => None,
        });
        put_together(told.await, query.limit as usize)
    }

    /// What happened on each node after the event that `after` has for it, or lately; at most `limit` of each.
    pub async fn survey_events(&self, after: impl Fn(Incarnation) -> Option<u64>, limit: u32) -> Vec<Told<EventsPage>> {
        let node = &self.shared.node;
        let here = node.events.page(after(node.me), limit);
        let asked = |incarnation| Request::Events { after: after(incarnation), limit };
        self.ask_everybody(here, asked, |said| match said {
            Response::Events(page) => Some(page),
            _ => None,
        })
        .await
    }

    /// Asks all nodes of the view at once; this one first.
    async fn ask_everybody<T>(
        &self,
        here: T,
        request: impl Fn(Incarnation) -> Request,
        read: impl Fn(Response) -> Option<T>,
    ) -> Vec<Told<T>> {
        let node = &self.shared.node;
        let view = node.nodes.view();
        let me = Told { node: node.name.clone(), incarnation: node.me, reach: Reach::Here, said: Ok(here) };
        let others = view.rows.iter().map(|row| &row.registration).filter(|other| other.incarnation != node.me);
        let asked = others.enumerate().map(|(index, other)| {
            let (request, read) = (request(other.incarnation), &read);
            let peer = Peer { incarnation: other.incarnation, addr: other.addr.clone() };
            async move {
                let (reach, said) = match index < ASKED_MAX {
                    true => self.ask_one(&peer, request, read).await,
                    false => (Reach::NotAsked, Err(format!("at most {ASKED_MAX} nodes are asked"))),
                };
                Told { node: other.node.clone(), incarnation: other.incarnation, reach, said }
            }
        });
        let asked: Vec<_> = asked.collect();
        std::iter::once(me).chain(join_all(asked).await).collect()
    }

    async fn ask_one<T>(
        &self,
        peer: &Peer,
        request: Request,
        read: impl Fn(Response) -> Option<T>,
    ) -> (Reach, Result<T, String>) {
        if peer.addr.is_empty() {
            return (Reach::NoLink, Err("it has no link".to_owned()));
        }
        match self.shared.link.ask(peer, request, SAYS_WITHIN).await {
            Ok(said) => match read(said) {
                Some(said) => (Reach::Up, Ok(said)),
                None => (Reach::Up, Err("it answered something else".to_owned())),
            },
            // Nothing was to be done, so there is no outcome that might not be known.
            Err(LinkError::Unreachable(why)) => (Reach::Unreachable, Err(why)),
            Err(LinkError::Ambiguous(why)) => (Reach::NoAnswer, Err(why)),
            Err(error @ LinkError::OtherIncarnation(_)) => (Reach::OtherProcess, Err(error.to_string())),
        }
    }

    /// A part of what this node owns. What is being claimed is left out. The table is held for a bounded time, again and again; a
    /// page ends when enough was looked at, whatever it has.
    #[must_use]
    pub fn owned_page(&self, query: &OwnedQuery) -> OwnedPage {
        let limit = query.limit.min(OWNED_MAX) as usize;
        let mut page = OwnedPage { total: 0, owned: Vec::new(), through: query.after };
        for _ in 0..LOOKS_MAX {
            let table = self.table();
            page.total = table.entries.len() as u64;
            if limit == 0 {
                page.through = None;
                return page;
            }
            let from = page.through.map_or(Bound::Unbounded, Bound::Excluded);
            let mut looked_at = 0;
            for (key, entry) in table.entries.range((from, Bound::Unbounded)).take(LOOKED_AT_ONCE) {
                if page.owned.len() == limit {
                    return page;
                }
                looked_at += 1;
                page.through = Some(*key);
                page.owned.extend(shown(entry).filter(|owned| contains(owned.conversation.as_str(), &query.contains)));
            }
            if looked_at < LOOKED_AT_ONCE {
                page.through = None;
                return page;
            }
        }
        page
    }
}

/// An entry as operators are shown it.
fn shown(entry: &Entry) -> Option<Owned> {
    match entry {
        Entry::Active(handle) if !handle.is_gone() => Some(Owned {
            conversation: handle.facts.conversation.id.clone(),
            epoch: handle.epoch(),
            rest: Rest::Active,
        }),
        Entry::Hibernating { tenure, .. } => Some(Owned {
            conversation: tenure.conversation.id.clone(),
            epoch: tenure.reign.epoch,
            rest: Rest::Hibernating,
        }),
        Entry::Active(_) | Entry::Claiming(_) => None,
    }
}

/// Ids are ASCII.
fn contains(id: &str, part: &str) -> bool {
    let (id, part) = (id.as_bytes(), part.as_bytes());
    part.is_empty() || id.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

/// One page of all nodes' pages, with about `limit` conversations: all that share the last one's key are in it.
fn put_together(told: Vec<Told<OwnedPage>>, limit: usize) -> Ownership {
    let mut ownership = Ownership { owned: Vec::new(), through: None, silent: Vec::new() };
    let mut keyed: Vec<(ConvKey, OwnedBy)> = Vec::new();
    for Told { node, incarnation, reach, said } in told {
        match said {
            Ok(page) => {
                // Behind this nobody knows yet whether there is one of this node's.
                ownership.through = ownership.through.into_iter().chain(page.through).min();
                let by = |owned: Owned| OwnedBy { owned, node: node.clone(), incarnation };
                keyed.extend(page.owned.into_iter().map(|owned| (ConvKey::of(&owned.conversation), by(owned))));
            }
            Err(why) => ownership.silent.push(Told { node, incarnation, reach, said: Err(why) }),
        }
    }
    keyed.sort_by(|(one, by), (other, by_other)| (one, &by.node).cmp(&(other, &by_other.node)));
    if let Some(through) = ownership.through {
        keyed.retain(|(key, _)| *key <= through);
    }
    if limit > 0
        && let Some((last, _)) = keyed.get(limit - 1)
    {
        let last = *last;
        let all = keyed.len();
        keyed.retain(|(key, _)| *key <= last);
        if keyed.len() < all {
            ownership.through = Some(last);
        }
    }
    ownership.owned = keyed.into_iter().map(|(_, by)| by).collect();
    ownership
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use conch_core::ids::ConversationId;

    use super::*;

    fn id(number: usize) -> ConversationId {
        format!("room-{number}").parse().expect("valid")
    }

    fn owned(number: usize) -> Owned {
        Owned { conversation: id(number), epoch: Epoch(1), rest: Rest::Active }
    }

    fn told(name: &str, said: Result<OwnedPage, String>) -> Told<OwnedPage> {
        Told { node: name.parse().expect("a name"), incarnation: Incarnation(1), reach: Reach::Up, said }
    }

    /// What a node that owns these answers.
    fn page(mut all: Vec<Owned>, after: Option<ConvKey>, limit: usize) -> OwnedPage {
        let total = all.len() as u64;
        all.sort_by_key(|owned| ConvKey::of(&owned.conversation));
        all.retain(|owned| Some(ConvKey::of(&owned.conversation)) > after);
        let more = all.len() > limit;
        all.truncate(limit);
        let through = all.last().filter(|_| more).map(|owned| ConvKey::of(&owned.conversation));
        OwnedPage { total, owned: all, through }
    }

    #[test]
    fn pages_of_all_nodes_together_show_each_conversation_once() {
        // Node `a` has most; `b` few, one of which (7) `a` believes its own, too; `c` none.
        let of_a: Vec<usize> = (0..40).collect();
        let of_b = [7, 100, 101];
        for limit in [1, 3, 10, 100] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let ask = |numbers: &[usize]| page(numbers.iter().map(|number| owned(*number)).collect(), after, limit);
                let answers = vec![told("a", Ok(ask(&of_a))), told("b", Ok(ask(&of_b))), told("c", Ok(ask(&[])))];
                let ownership = put_together(answers, limit);
                assert!(ownership.owned.len() <= limit + 1, "{limit}: {}", ownership.owned.len());
                seen.extend(ownership.owned.iter().map(|by| (by.owned.conversation.clone(), by.node.clone())));
                match ownership.through {
                    None => break,
                    through => {
                        assert!(through > after, "it goes on");
                        after = through;
                    }
                }
            }
            let once: BTreeSet<_> = seen.iter().cloned().collect();
            assert_eq!((once.len(), seen.len()), (43, 43), "pages of {limit}");
            assert_eq!(seen.iter().filter(|(conversation, _)| *conversation == id(7)).count(), 2);
        }
    }

    #[test]
    fn nothing_is_shown_beyond_what_every_node_was_looked_at() {
        let keys: BTreeSet<ConvKey> = (0..10).map(|number| ConvKey::of(&id(number))).collect();
        let fourth = *keys.iter().nth(3).expect("ten");
        let whole = page((0..10).map(owned).collect(), None, 100);
        // The other one looked at many, none of which matched.
        let empty = OwnedPage { total: 1_000_000, owned: Vec::new(), through: Some(fourth) };
        let ownership = put_together(vec![told("a", Ok(whole)), told("b", Ok(empty))], 100);
        assert_eq!((ownership.owned.len(), ownership.through), (4, Some(fourth)));
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let answers = vec![told("a", Ok(page(vec![owned(1)], None, 5))), told("b", Err("no answer".to_owned()))];
        let ownership = put_together(answers, 5);
        assert_eq!((ownership.owned.len(), ownership.through), (1, None));
        let [silent] = &ownership.silent[..] else { panic!("{ownership:?}") };
        assert_eq!((silent.node.as_str(), &silent.said), ("b", &Err("no answer".to_owned())));
    }

    #[test]
    fn a_part_of_an_id_is_found_in_either_case() {
        assert!(contains("Tide:Pool-7", "pool") && contains("Tide:Pool-7", "") && contains("Tide:Pool-7", "TIDE:"));
        assert!(!contains("Tide:Pool-7", "pool7") && !contains("ab", "abc"));
    }
}
