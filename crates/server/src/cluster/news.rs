//! What two looks at the nodes' rows differ in, as events for operators: who came, who drains, who is gone.
//!
//! Every node that looks says so itself; whoever shows the events of all puts those of one process together.
//!
//! Deliberately absent: why a row is gone. Who declared a death says so in an event of its own.

use conch_core::ids::Incarnation;
use conch_store::NodeRow;

use super::nodes::View;
use crate::events::Event;

/// What is new in these rows. A first look has nothing to differ from, and a node does not tell of its own coming and going.
pub(super) fn between(before: &View, rows: &[NodeRow], me: Incarnation) -> Vec<Event> {
    if before.read_at.is_none() {
        return Vec::new();
    }
    let find = |rows: &[NodeRow], incarnation| {
        rows.iter().find(|row| row.registration.incarnation == incarnation).map(|row| row.draining)
    };
    let mut news = Vec::new();
    for row in rows {
        let (incarnation, node) = (row.registration.incarnation, row.registration.node.clone());
        let known = find(&before.rows, incarnation);
        if known.is_none() && incarnation != me {
            news.push(Event::NodeCame { incarnation, node: node.clone() });
        }
        if row.draining && known != Some(true) {
            news.push(Event::NodeDrains { incarnation, node });
        }
    }
    let gone = before.rows.iter().map(|row| &row.registration);
    let gone = gone.filter(|gone| gone.incarnation != me && find(rows, gone.incarnation).is_none());
    news.extend(gone.map(|gone| Event::NodeGone { incarnation: gone.incarnation, node: gone.node.clone() }));
    news
}

#[cfg(test)]
mod tests {
    use conch_core::time::Monotonic;
    use conch_store::Registration;

    use super::*;

    fn row(number: u128, draining: bool) -> NodeRow {
        let registration = Registration {
            incarnation: Incarnation(number),
            node: format!("node-{number}").parse().expect("a name"),
            region: "local".parse().expect("a region"),
            addr: String::new(),
            lifeline: None,
        };
        NodeRow { registration, beat: 1, draining, expires_in_ms: 1_000 }
    }

    fn kinds(before: &[NodeRow], after: &[NodeRow]) -> Vec<String> {
        let view = View { rows: before.to_vec(), read_at: Some(Monotonic(1)) };
        let told = between(&view, after, Incarnation(1));
        told.iter()
            .map(|event| serde_json::to_value(event).expect("JSON"))
            .map(|event| {
                format!("{} {}", event["kind"].as_str().expect("a kind"), event["node"].as_str().expect("a name"))
            })
            .collect()
    }

    #[test]
    fn a_look_tells_what_changed_since_the_last_one() {
        let (me, other, drains) = (row(1, false), row(2, false), row(2, true));
        assert_eq!(kinds(std::slice::from_ref(&me), &[me.clone(), other.clone()]), ["node_came node-2"]);
        assert_eq!(kinds(&[me.clone(), other.clone()], &[me.clone(), drains.clone()]), ["node_drains node-2"]);
        assert_eq!(kinds(&[me.clone(), drains.clone()], &[me.clone(), drains.clone()]), Vec::<String>::new());
        assert_eq!(
            kinds(std::slice::from_ref(&me), &[me.clone(), drains.clone()]),
            ["node_came node-2", "node_drains node-2"]
        );
        assert_eq!(kinds(&[me.clone(), drains], std::slice::from_ref(&me)), ["node_gone node-2"]);
        assert_eq!(kinds(std::slice::from_ref(&me), &[row(1, true)]), ["node_drains node-1"], "its own drain, too");
        assert_eq!(kinds(&[], std::slice::from_ref(&me)), Vec::<String>::new(), "but not its own coming");
        assert_eq!(kinds(std::slice::from_ref(&me), &[]), Vec::<String>::new(), "nor going");
        assert_eq!(between(&View::default(), &[me, other], Incarnation(1)), [], "a first look differs from nothing");
    }
}
