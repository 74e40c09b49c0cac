//! The other nodes, as this one last read their rows: for forwarding, notices, draining and the operators' view.
//!
//! Invariant: it says how old it is. It is never authority: an owner's row is read again when a conversation is resolved, and
//! a death is declared by the store.

use std::sync::Arc;
use std::time::Duration;

use conch_core::ids::{Incarnation, Region};
use conch_core::time::Monotonic;
use conch_store::NodeRow;
use tokio::sync::watch;

use crate::link::Peer;

/// The rows of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Every node's row, this one's too.
    pub rows: Vec<NodeRow>,
    /// When they were asked for, on this node's clock; `None`: never yet.
    pub read_at: Option<Monotonic>,
}

impl View {
    /// How old it is; `None`: there is none yet.
    #[must_use]
    pub fn age(&self, now: Monotonic) -> Option<Duration> {
        self.read_at.map(|read_at| now.since(read_at))
    }

    /// Time left of a row's lease, in milliseconds, as far as this view knows; below 0 when it ran out.
    #[must_use]
    pub fn left_ms(&self, row: &NodeRow, now: Monotonic) -> i64 {
        let age = i64::try_from(self.age(now).unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
        row.expires_in_ms.saturating_sub(age)
    }

    /// The nodes whose lease runs, as far as this view knows; none in a view that is older than a lease.
    pub fn live(&self, now: Monotonic) -> impl Iterator<Item = &NodeRow> {
        self.rows.iter().filter(move |row| self.left_ms(row, now) > 0)
    }
}

/// The view that membership keeps. Cheap to clone; clones are the same one.
#[derive(Debug, Clone)]
pub struct Nodes(Arc<watch::Sender<Arc<View>>>);

impl Default for Nodes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Arc::default())))
    }
}

impl Nodes {
    /// The latest view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.0.borrow())
    }

    /// Wakes with each new view, which is each half second.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.0.subscribe()
    }

    /// The live nodes but `me` that have a link, draining ones too.
    #[must_use]
    pub fn peers(&self, me: Incarnation, now: Monotonic) -> Vec<Peer> {
        let view = self.view();
        let others = view.live(now).map(|row| &row.registration);
        let others = others.filter(|other| other.incarnation != me && !other.addr.is_empty());
        others.map(|other| Peer { incarnation: other.incarnation, addr: other.addr.clone() }).collect()
    }

    /// The live nodes but `me` that take conversations, and where each runs.
    #[must_use]
    pub fn takers(&self, me: Incarnation, now: Monotonic) -> Vec<(Incarnation, Region)> {
        let view = self.view();
        let takers = view.live(now).filter(|row| !row.draining).map(|row| &row.registration);
        let others = takers.filter(|other| other.incarnation != me);
        others.map(|other| (other.incarnation, other.region.clone())).collect()
    }

    /// Replaces the view. Membership's alone.
    pub(crate) fn set(&self, rows: Vec<NodeRow>, read_at: Monotonic) {
        self.0.send_replace(Arc::new(View { rows, read_at: Some(read_at) }));
    }
}

#[cfg(test)]
mod tests {
    use conch_store::Registration;

    use super::*;

    fn row(number: u128, addr: &str, expires_in_ms: i64) -> NodeRow {
        let registration = Registration {
            incarnation: Incarnation(number),
            node: format!("node-{number}").parse().expect("a name"),
            region: "local".parse().expect("a region"),
            addr: addr.to_owned(),
            lifeline: None,
        };
        NodeRow { registration, beat: 1, draining: number == 3, expires_in_ms }
    }

    #[test]
    fn peers_are_the_others_whose_lease_runs_and_an_old_view_has_none() {
        let (nodes, at) = (Nodes::default(), |ms: u64| Monotonic(ms * 1_000_000));
        assert_eq!((nodes.view().age(at(9)), nodes.peers(Incarnation(1), at(9))), (None, vec![]));
        let rows = vec![row(1, "a:1", 900), row(2, "b:1", 500), row(3, "c:1", 900), row(4, "", 900), row(5, "e:1", -1)];
        nodes.set(rows, at(1_000));
        let peers = |ms| nodes.peers(Incarnation(1), at(ms)).into_iter().map(|peer| peer.addr).collect::<Vec<_>>();
        assert_eq!(peers(1_400), ["b:1", "c:1"]);
        assert_eq!(peers(1_500), ["c:1"], "the lease of b ran out since");
        assert_eq!(peers(1_900), Vec::<String>::new());
        let takers: Vec<_> = nodes.takers(Incarnation(1), at(1_400)).into_iter().map(|(who, _)| who).collect();
        assert_eq!(takers, [Incarnation(2), Incarnation(4)]);
        assert_eq!(nodes.view().age(at(1_250)), Some(Duration::from_millis(250)));
        assert_eq!(nodes.view().left_ms(&row(2, "b:1", 500), at(1_600)), -100);
    }
}
