//! What the load does with what it hears.

use std::time::Duration;

use super::dialect::Heard;
use super::frames::{Content, Cut, first_frame};
use super::pool::Pool;
use super::session::Phase;
use crate::client::{FrameKind, encode_client_frame};

impl Pool {
    /// Hears all whole frames; how many bytes they took.
    pub(super) fn frames(&mut self, index: usize, bytes: &[u8], now_ns: u64) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            match first_frame(&bytes[used..]) {
                Cut::Short => break,
                Cut::Broken => {
                    self.fail(index, now_ns, "what came is no frame of a server", None);
                    break;
                }
                Cut::Whole(Content::Data, payload, length) => {
                    used += length;
                    self.content(index, payload, now_ns);
                }
                Cut::Whole(Content::Ping, payload, length) => {
                    used += length;
                    let mut pong = Vec::with_capacity(payload.len() + 8);
                    encode_client_frame(FrameKind::Pong, payload, &mut pong);
                    self.write(index, &pong);
                }
                Cut::Whole(Content::Pong, _, length) => used += length,
                Cut::Whole(Content::Close, payload, _) => {
                    let code = payload.first_chunk::<2>().map_or(0, |code| u16::from_be_bytes(*code));
                    self.fail(index, now_ns, &format!("the server closed it with {code}"), None);
                    break;
                }
            }
            if self.sessions[index].stream.is_none() {
                break;
            }
        }
        used
    }

    fn content(&mut self, index: usize, payload: &[u8], now_ns: u64) {
        if !self.ears.is_a_stream() {
            let mut rest = payload;
            while !rest.is_empty()
                && let Some(heard) = self.ears.hear(&mut rest)
            {
                self.apply(index, heard, payload.len(), now_ns);
            }
            return;
        }
        let mut carried = std::mem::take(&mut self.sessions[index].carried);
        let is_fresh = carried.is_empty();
        if !is_fresh {
            carried.extend_from_slice(payload);
        }
        let mut rest = if is_fresh { payload } else { &carried };
        let mut length = rest.len();
        while let Some(heard) = self.ears.hear(&mut rest) {
            self.apply(index, heard, length - rest.len(), now_ns);
            length = rest.len();
        }
        if !rest.is_empty() && self.sessions[index].stream.is_some() {
            self.sessions[index].carried = rest.to_vec();
        }
    }

    fn apply(&mut self, index: usize, heard: Heard, length: usize, now_ns: u64) {
        match heard {
            Heard::Message { topic, seq, sent_ns } => {
                if let Some(slot) = self.layout.slot(index, topic) {
                    self.message(index, slot, seq, sent_ns, now_ns);
                    self.tally.bytes += length as u64;
                }
            }
            Heard::Joined { topic, head } => {
                if let Some(slot) = self.layout.slot(index, topic) {
                    self.accepted(index, slot, head, now_ns);
                }
            }
            Heard::NotJoined { after_ms } => {
                let why = "a join was refused";
                if self.sessions[index].stream.is_some() {
                    self.fail(index, now_ns, why, after_ms);
                }
            }
            Heard::CaughtUp { .. } => {
                let session = &mut self.sessions[index];
                session.behind = session.behind.saturating_sub(1);
                self.look_whether_back(index, now_ns);
            }
            Heard::Resync { topic, head } => {
                self.tally.resyncs += 1;
                if let Some(slot) = self.layout.slot(index, topic) {
                    // What lies between is on the page that a client would load; here it counts as missing.
                    let place = &mut self.places[index * self.layout.width() + slot];
                    place.last = place.last.max(head);
                }
                self.apply(index, Heard::CaughtUp { topic }, 0, now_ns);
            }
            Heard::Left { topic } => {
                let session = &mut self.sessions[index];
                session.unanswered = session.unanswered.saturating_sub(1);
                if let Some(slot) = self.layout.slot(index, topic) {
                    self.join(index, slot);
                }
            }
            Heard::Sent { topic } => {
                self.tally.sent += 1;
                if let Some(count) = topic.checked_sub(1).and_then(|number| self.acknowledged.get_mut(number)) {
                    *count += 1;
                }
            }
            Heard::NotSent => self.tally.not_sent += 1,
            Heard::Ping => self.tell(index, self.ears.pong()),
            Heard::Other => {}
        }
    }

    fn message(&mut self, index: usize, slot: usize, seq: u64, sent_ns: u64, now_ns: u64) {
        let place = &mut self.places[index * self.layout.width() + slot];
        if place.base.is_none() {
            // A server that says no head: it begins with what comes first.
            let before = seq.saturating_sub(1);
            (place.base, place.last) = (Some(before), before);
        }
        if place.is_left {
            self.tally.late += 1;
            return;
        }
        if seq <= place.last {
            self.tally.out_of_order += 1;
            return;
        }
        place.last = seq;
        place.count += 1;
        self.tally.deliveries += 1;
        let session = &mut self.sessions[index];
        session.count += 1;
        if sent_ns > 0 {
            let latency = Duration::from_nanos(now_ns.saturating_sub(sent_ns));
            let tally = &mut self.tally;
            let histogram = if session.has_returned { &mut tally.latency_returned } else { &mut tally.latency };
            histogram.add(latency);
        }
    }

    /// A join was accepted.
    fn accepted(&mut self, index: usize, slot: usize, head: u64, now_ns: u64) {
        let place = &mut self.places[index * self.layout.width() + slot];
        place.is_left = false;
        if place.base.is_none() && self.ears.log.is_some() {
            (place.base, place.last) = (Some(head), head);
        }
        let session = &mut self.sessions[index];
        session.unanswered = session.unanswered.saturating_sub(1);
        if session.phase != Phase::Joining {
            return;
        }
        self.join_next(index);
        let session = &self.sessions[index];
        if session.unanswered == 0 && session.next_join >= self.layout.width() && session.stream.is_some() {
            self.joined(index);
            self.look_whether_back(index, now_ns);
        }
    }

    fn look_whether_back(&mut self, index: usize, now_ns: u64) {
        let session = &mut self.sessions[index];
        if session.lost_ns != 0 && session.phase == Phase::Joined && session.behind == 0 {
            let took = Duration::from_nanos(now_ns.saturating_sub(session.lost_ns));
            session.lost_ns = 0;
            self.tally.back.add(took);
            self.tally.returned += 1;
        }
    }
}
