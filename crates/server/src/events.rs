//! What happened to ownership lately on this node: a bounded ring for operators, read by the console's page of the cluster.
//!
//! Invariant: ids rise by one and never repeat within a process; whoever asks from an id that has been overwritten is told.
//!
//! Deliberately absent: durability, other nodes' events, and anything that decides.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use conch_core::ids::{ConversationId, Epoch, Incarnation, NodeName};
use conch_core::time::Timestamp;
use conch_core::wire::link::EventsPage;
use serde::{Serialize, Serializer};

use crate::seams::Clock;

/// Events kept.
pub const EVENTS_MAX: usize = 1_024;

/// Most events of one answer to another node.
pub const PAGE_MAX: u32 = 256;

/// Why an incarnation was declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyDead {
    /// Its lease ran out.
    LeaseRanOut,
    /// Its lifeline is gone, and its address refuses.
    ProcessDied,
}

/// Whose a conversation was before a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyClaimed {
    /// Nobody's, or released.
    Unowned,
    /// This node's, but its task had gone.
    Lost,
    /// A dead incarnation's: a takeover.
    OwnerDied,
}

/// Why a conversation was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyReleased {
    /// It was idle.
    Idle,
    /// The node drains.
    Draining,
    /// The peer that was to take it did not.
    NotTaken,
    /// Its task did not answer for a lease.
    Wedged,
}

/// Something that happened to ownership.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the fields are what their types say")]
pub enum Event {
    /// A claim was won.
    ClaimWon { conversation: ConversationId, epoch: Epoch, why: WhyClaimed },
    /// A claim was lost to somebody else.
    ClaimLost { conversation: ConversationId },
    /// A write met the fence: another one owns the conversation.
    Fenced { conversation: ConversationId, epoch: Epoch },
    /// A conversation was given up.
    Released { conversation: ConversationId, epoch: Epoch, why: WhyReleased },
    /// A conversation was handed to another node.
    HandedOff {
        conversation: ConversationId,
        epoch: Epoch,
        #[serde(serialize_with = "as_text")]
        to: Incarnation,
    },
    /// A conversation was handed to this node.
    Received {
        conversation: ConversationId,
        epoch: Epoch,
        #[serde(serialize_with = "as_text")]
        from: Incarnation,
    },
    /// A node registered.
    NodeCame {
        #[serde(serialize_with = "as_text")]
        incarnation: Incarnation,
        node: NodeName,
    },
    /// A node drains.
    NodeDrains {
        #[serde(serialize_with = "as_text")]
        incarnation: Incarnation,
        node: NodeName,
    },
    /// A node's row is gone: it went in order, or was declared dead.
    NodeGone {
        #[serde(serialize_with = "as_text")]
        incarnation: Incarnation,
        node: NodeName,
    },
    /// This node declared another one dead.
    DeathDeclared {
        #[serde(serialize_with = "as_text")]
        incarnation: Incarnation,
        node: Option<NodeName>,
        why: WhyDead,
    },
    /// This node's lifeline was lost; it waits for a new one.
    LifelineLost,
    /// This node was declared dead.
    LeaseLost,
}

pub(crate) fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// An event with its number and time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Rises by one.
    pub id: u64,
    /// On this machine's calendar.
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// A part of the ring.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page {
    /// Ascending.
    pub events: Vec<Recorded>,
    /// The newest id there is; 0: none yet. Ask for what comes after the last event that was given.
    pub latest: u64,
    /// Events before the first one are gone.
    pub missed: bool,
}

#[derive(Default)]
struct Ring {
    latest: u64,
    events: VecDeque<Recorded>,
}

/// See the module's description. Recording never waits for anything but another record.
pub struct Events {
    clock: Arc<dyn Clock>,
    ring: Mutex<Ring>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("latest", &self.ring().latest).finish_non_exhaustive()
    }
}

impl Events {
    /// An empty ring that takes its times from this clock's calendar.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, ring: Mutex::default() }
    }

    /// Adds an event; over [`EVENTS_MAX`] the oldest goes.
    pub fn record(&self, event: Event) {
        let at = self.clock.wall();
        let mut ring = self.ring();
        ring.latest += 1;
        let recorded = Recorded { id: ring.latest, at, event };
        if ring.events.len() >= EVENTS_MAX {
            ring.events.pop_front();
        }
        ring.events.push_back(recorded);
    }

    /// The first `limit` events after an id.
    #[must_use]
    pub fn after(&self, id: u64, limit: usize) -> Page {
        let ring = self.ring();
        // An id from before this process started is beyond the newest one: begin anew.
        let (from, other_process) = if id > ring.latest { (0, true) } else { (id, false) };
        let events = ring.events.iter().filter(|recorded| recorded.id > from).take(limit).cloned().collect();
        let oldest = ring.events.front().map_or(1, |recorded| recorded.id);
        Page { events, latest: ring.latest, missed: other_process || from + 1 < oldest }
    }

    /// The same for whoever asks over the link; without an id the newest.
    #[must_use]
    pub fn page(&self, after: Option<u64>, limit: u32) -> EventsPage {
        let limit = limit.min(PAGE_MAX) as usize;
        let after = after.unwrap_or_else(|| self.ring().latest.saturating_sub(limit as u64));
        let page = self.after(after, limit);
        let events = serde_json::to_string(&page.events).expect("events have no maps with other keys than texts");
        EventsPage { events, through: page.events.last().map_or(page.latest, |last| last.id), missed: page.missed }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().expect("no holder of the ring panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime;

    #[test]
    fn the_ring_is_bounded_and_says_what_is_gone() {
        let events = Events::new(runtime::seams().clock);
        assert_eq!(events.after(0, 10), Page { events: vec![], latest: 0, missed: false });
        for _ in 0..EVENTS_MAX + 2 {
            events.record(Event::LifelineLost);
        }
        let newest = EVENTS_MAX as u64 + 2;
        let ids = |page: &Page| page.events.iter().map(|event| event.id).collect::<Vec<_>>();
        let page = events.after(0, 2);
        assert_eq!((ids(&page), page.latest, page.missed), (vec![3, 4], newest, true));
        assert!(!events.after(2, 2).missed, "nothing between 2 and 3");
        assert_eq!(ids(&events.after(newest - 1, 10)), [newest]);
        let foreign = events.after(newest + 1, 1);
        assert!(foreign.missed && ids(&foreign) == [3], "an id of another process begins anew");
    }

    #[test]
    fn a_page_begins_with_the_newest_and_says_what_to_ask_after() {
        let events = Events::new(runtime::seams().clock);
        let empty = EventsPage { events: "[]".to_owned(), through: 0, missed: false };
        assert_eq!((events.page(None, 2), events.page(Some(0), 2)), (empty.clone(), empty));
        for _ in 0..5 {
            events.record(Event::LifelineLost);
        }
        let seen = |after, limit| {
            let page = events.page(after, limit);
            let list: serde_json::Value = serde_json::from_str(&page.events).expect("JSON");
            let ids = list.as_array().expect("a list").iter().map(|event| event["id"].as_u64().expect("an id"));
            (ids.collect::<Vec<_>>(), page.through, page.missed)
        };
        assert_eq!(seen(None, 2), (vec![4, 5], 5, false));
        assert_eq!(seen(Some(1), 2), (vec![2, 3], 3, false));
        assert_eq!(seen(Some(5), 2), (vec![], 5, false));
        assert_eq!(seen(Some(9), 2), (vec![1, 2], 2, true), "of another process");
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let events = Events::new(runtime::seams().clock);
        let node = Some("b".parse().expect("a name"));
        events.record(Event::DeathDeclared { incarnation: Incarnation(7), node, why: WhyDead::ProcessDied });
        let json = serde_json::to_value(events.after(0, 1)).expect("JSON");
        let event = &json["events"][0];
        assert_eq!((&event["id"], &event["kind"]), (&1.into(), &"death_declared".into()));
        assert_eq!(event["incarnation"], "00000000-0000-0000-0000-000000000007");
        assert_eq!((&event["node"], &event["why"]), (&"b".into(), &"process_died".into()));
    }
}
