//! The promotion of a standby that lacks what was acknowledged last.

use std::collections::BTreeSet;

use conch_core::history::Event;
use conch_core::ids::{ConversationId, Seq};
use conch_store::postgres::testing::{Disk, TestServer};

use super::load::{Load, judge};
use super::rig::{Cluster, rows};
use crate::node::until;

/// What was acknowledged and is not in the log.
fn lost(history: &[Event]) -> BTreeSet<(ConversationId, Seq)> {
    let kept: BTreeSet<_> = history
        .iter()
        .filter_map(|event| match event {
            Event::Final { conversation, sender, client_msg_id, .. } => {
                Some((conversation, sender, client_msg_id.as_ref()?))
            }
            _ => None,
        })
        .collect();
    let acked = history.iter().filter_map(|event| match event {
        Event::Acked { conversation, sender, client_msg_id, seq, .. } => {
            (!kept.contains(&(conversation, sender, client_msg_id))).then(|| (conversation.clone(), *seq))
        }
        _ => None,
    });
    acked.collect()
}

#[test]
fn takeover_itself_lost_in_a_failover() {
    let primary = TestServer::start(Disk::Synced, &[]);
    let standby = primary.standby(Disk::Synced, &[]);
    let (first, second) = (primary.directory().display(), standby.directory().display());
    let store = format!("postgres://postgres@/postgres?host={first},{second}&port=5432,5432");
    let mut cluster = Cluster::planned_on(&store, 3);
    cluster.start_all();
    let load = Load::start(&cluster, 2, 3);
    load.go_on(60);
    let generation = "SELECT store_gen()";
    let before = cluster.rows(generation);
    // The standby stops following, and what is acknowledged from here on is the primary's alone: a takeover among it.
    rows(&standby.url("postgres"), "ALTER SYSTEM SET primary_conninfo = ''");
    rows(&standby.url("postgres"), "SELECT pg_reload_conf()");
    let followers = "SELECT pid FROM pg_stat_replication";
    until("the standby to stop", || rows(&primary.url("postgres"), followers).is_empty().then_some(()));
    let owner = cluster.owned(&load.rooms[0]);
    cluster.take(owner).kill();
    cluster.taken_from(&load.rooms[0], owner);
    load.go_on(60);
    primary.crash();
    standby.promote();
    load.go_on(60);
    let after = rows(&standby.url("postgres"), generation);
    assert_ne!(before, after, "another generation");
    let others: Vec<usize> = (0..3).filter(|node| *node != owner).collect();
    let lines = load.end(&cluster, &others);
    let history: Vec<Event> = lines.iter().map(|line| Event::parse(line).expect("an event")).collect();
    let lost = lost(&history);
    assert!(lost.len() > 10, "the standby lacked what was acknowledged last");
    let is_lost = |conversation: &ConversationId, seq: Seq| lost.contains(&(conversation.clone(), seq));
    let returned = history.iter().find(|event| match event {
        Event::Final { conversation, seq, .. } => is_lost(conversation, *seq),
        _ => false,
    });
    assert_eq!(returned, None, "a number that was lost is never given again");
    // All else holds as ever.
    let rest = history.iter().filter(|event| match event {
        Event::Acked { conversation, seq, .. } | Event::Observed { conversation, seq, .. } => {
            !is_lost(conversation, *seq)
        }
        _ => true,
    });
    let verdict = judge(&cluster, &rest.map(Event::to_line).collect::<Vec<_>>());
    assert_eq!((verdict.history, verdict.store), (Vec::new(), Vec::new()));
}
