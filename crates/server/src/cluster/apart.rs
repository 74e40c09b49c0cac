//! A node without a link beside others: it cannot pass on what they own, nor they what it owns.
//!
//! Deliberately absent: a remedy. Alone such a node lacks nothing, and whether others come nobody knows at its start.

use std::collections::BTreeMap;
use std::sync::Arc;

use conch_core::ids::Incarnation;

use super::nodes::View;
use crate::node::Node;

/// Says once that others are there, as soon as it is seen. For a node without a link.
pub async fn warn(node: Arc<Node>) {
    let (mut views, mut beats) = (node.nodes.watch(), BTreeMap::new());
    loop {
        let others = beside(&views.borrow_and_update().clone(), node.me, &mut beats);
        if !others.is_empty() {
            let others = others.join(", ");
            tracing::warn!(
                others,
                "other nodes use this store, and this one has no link: what one owns cannot be written or followed \
                 through the other. Start each with --link-listen (link_listen, CONCH_LINK_LISTEN)"
            );
            return;
        }
        if views.changed().await.is_err() {
            return;
        }
    }
}

/// The other nodes that live: whose beat is another one than when they were first seen. A row alone may be that of a process
/// that was killed a moment ago.
fn beside(view: &View, me: Incarnation, beats: &mut BTreeMap<Incarnation, u64>) -> Vec<String> {
    let others = view.rows.iter().filter(|row| row.registration.incarnation != me);
    let live = others.filter(|row| *beats.entry(row.registration.incarnation).or_insert(row.beat) != row.beat);
    live.map(|row| row.registration.node.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use conch_store::{NodeRow, Registration};

    use super::*;

    fn view(rows: &[(u128, u64)]) -> View {
        let row = |&(number, beat): &(u128, u64)| NodeRow {
            registration: Registration {
                incarnation: Incarnation(number),
                node: format!("node-{number}").parse().expect("a name"),
                region: "local".parse().expect("a region"),
                addr: String::new(),
                lifeline: None,
            },
            beat,
            draining: false,
            expires_in_ms: 1_000,
        };
        View { rows: rows.iter().map(row).collect(), read_at: None }
    }

    #[test]
    fn only_another_node_whose_heart_beats_is_one() {
        let mut beats = BTreeMap::new();
        let mut seen = |rows: &[(u128, u64)]| beside(&view(rows), Incarnation(1), &mut beats);
        let none: [&str; 0] = [];
        assert_eq!(seen(&[(1, 1)]), none);
        assert_eq!(seen(&[(1, 2), (2, 7)]), none, "it may have been killed a moment ago");
        assert_eq!(seen(&[(1, 3), (2, 7)]), none);
        assert_eq!(seen(&[(1, 3), (2, 8)]), ["node-2"]);
    }
}
