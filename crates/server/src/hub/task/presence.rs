//! How a hub shows who is here, and tells the owner of its own sessions; and what it does not show under pressure.

use conch_core::shed::Rung;

use super::*;
use crate::metrics::Shed;

impl Hub {
    pub(super) fn show_presence_to(&mut self, id: SessionId, sub: &Subject, name: Option<Arc<str>>) {
        self.presence.join(id.0, sub, name);
        self.presence_changed();
        let (Some(at), Some(watcher)) = (&self.at, self.watchers.get(&id)) else { return };
        if let Some(greeting) = self.presence.greeting() {
            watcher.sink.push(&Arc::new(announcement(&at.address, &greeting)));
        }
    }

    pub(super) fn presence_changed(&mut self) {
        if !self.shared.node.rules.hold(Rule::PresenceGathers) {
            return self.show_presence();
        }
        if self.presence_due.is_none() {
            self.presence_due = Some(self.shared.node.seams.sleep(PRESENCE_WINDOW));
        }
    }

    /// Who is here over all gateways, as far as this hub knows.
    pub(super) fn present(&mut self) -> Present {
        let connected = self.presence.count();
        let json = match self.presence.mode() {
            Mode::Full => format!(r#"{{"count":{connected},"present":{}}}"#, self.presence.state_json()),
            Mode::Count => format!(r#"{{"count":{connected},"present":null}}"#),
        };
        Present { connected, json }
    }

    pub(super) fn show_presence(&mut self) {
        self.presence_due = None;
        self.report_presence();
        self.presence.tell_at_most(self.shared.node.pressure.telling());
        let Some(at) = &self.at else { return };
        if let Some(change) = self.presence.flush(self.shared.node.seams.now()) {
            let frame = Arc::new(announcement(&at.address, &change));
            self.deliver(&frame, None);
        }
    }

    /// Is this event one of those that are not shown now? Typing is the first thing to be shed.
    pub(super) fn sheds(&self, event: &LiveEvent) -> bool {
        let node = &self.shared.node;
        let sheds = matches!(event, LiveEvent::Typing { .. }) && node.pressure.rung() >= Rung::NoTyping;
        if sheds {
            node.metrics.shed(Shed::Typing);
        }
        sheds
    }

    /// Tells the owner, if there is one and something to tell. What it does not hear it asks for again.
    pub(super) fn report_presence(&mut self) {
        let Some(reports) = &self.reports else { return };
        if let Some(report) = self.presence.report(self.shared.node.seams.now()) {
            reports.send(FollowerReport::Presence(report));
        }
    }
}

fn announcement(address: &Address, announcement: &Announcement) -> Frame {
    Frame::live(address, announcement.event(), announcement.payload().to_owned())
}
