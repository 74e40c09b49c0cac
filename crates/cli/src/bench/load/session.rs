//! One session of the load, and what it has in each of its channels.

use std::net::TcpStream;

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not begun.
    Waiting,
    /// The connection is on its way.
    Connecting,
    /// The upgrade is asked for.
    Upgrading,
    /// Joins are.
    Joining,
    /// All channels are joined.
    Joined,
    /// It will not come back.
    Gone,
}

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) stream: Option<TcpStream>,
    pub(super) phase: Phase,
    /// Which of the servers it is at, or goes to next.
    pub(super) gateway: usize,
    /// When the attempt began.
    pub(super) begun_ns: u64,
    /// When it lost its socket; 0 while it has one and has been caught up.
    pub(super) lost_ns: u64,
    /// Whether it ever lost a socket.
    pub(super) has_returned: bool,
    /// Attempts that failed, one after the other.
    pub(super) tries: u32,
    /// The next channel to be joined.
    pub(super) next_join: usize,
    /// Joins that are not answered.
    pub(super) unanswered: usize,
    /// Channels in which not all that was missed has come.
    pub(super) behind: usize,
    /// Messages since counting began.
    pub(super) count: u64,
    /// Bytes of a frame that was cut.
    pub(super) partial: Vec<u8>,
    /// Bytes of a message that was cut over frames.
    pub(super) carried: Vec<u8>,
}

impl Session {
    pub(super) fn new(gateway: usize) -> Self {
        Self {
            stream: None,
            phase: Phase::Waiting,
            gateway,
            begun_ns: 0,
            lost_ns: 0,
            has_returned: false,
            tries: 0,
            next_join: 0,
            unanswered: 0,
            behind: 0,
            count: 0,
            partial: Vec::new(),
            carried: Vec::new(),
        }
    }
}

/// What a session has of a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    /// The head when it joined first; `None` before.
    pub(super) base: Option<u64>,
    /// The newest seq.
    pub(super) last: u64,
    /// Messages.
    pub(super) count: u64,
    /// Whether it was left, and not joined again yet: what still comes of it then is not looked at.
    pub(super) is_left: bool,
}

/// Which session has which channels: perhaps the common one (topic 0), and `each` of the `of` others, in turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// 1 if all have the common channel.
    pub(super) common: usize,
    /// Other channels of one session.
    pub(super) each: usize,
    /// Other channels in all.
    pub(super) of: usize,
}

impl Layout {
    /// Channels of one session.
    pub(super) fn width(&self) -> usize {
        self.common + self.each
    }

    /// The topic at a place of a session's list.
    pub(super) fn topic(&self, session: usize, slot: usize) -> usize {
        match slot.checked_sub(self.common) {
            None => 0,
            Some(step) => 1 + (session * self.each + step) % self.of.max(1),
        }
    }

    /// Where in a session's list a topic is.
    pub(super) fn slot(&self, session: usize, topic: usize) -> Option<usize> {
        let Some(number) = topic.checked_sub(1) else { return (self.common == 1).then_some(0) };
        let (of, first) = (self.of.max(1), session * self.each % self.of.max(1));
        let step = (number + of - first) % of;
        (number < of && step < self.each).then_some(self.common + step)
    }

    /// The first session that has a channel of the others.
    pub(super) fn holder(&self, number: usize) -> usize {
        number / self.each.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_and_slots_are_each_others_inverse() {
        for (common, each, of) in [(1, 0, 0), (0, 3, 7), (1, 19, 100), (0, 100, 100), (1, 4, 4)] {
            let layout = Layout { common, each, of };
            for session in 0..50 {
                for slot in 0..layout.width() {
                    let topic = layout.topic(session, slot);
                    assert_eq!(layout.slot(session, topic), Some(slot), "{layout:?} {session} {topic}");
                }
            }
        }
        let layout = Layout { common: 0, each: 3, of: 7 };
        assert_eq!((layout.slot(0, 0), layout.slot(0, 4), layout.slot(0, 8)), (None, None, None));
        let numbers = 0..7;
        assert!(numbers.into_iter().all(|number| layout.slot(layout.holder(number), number + 1).is_some()));
    }
}
