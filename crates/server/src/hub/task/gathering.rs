//! How long a hub's frames gather before they are written: by the number of connected sessions, over all gateways, and by what the
//! conversation's settings say, which is looked up only for a crowd.

use conch_core::coalesce::{CoalesceLimits, Connected, Window};
use conch_core::conversation::{ConversationKind, Settings};

use super::*;

/// The settings of a conversation that is crowded are looked up again after this time.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// What a crowded conversation is.
#[derive(Debug, Clone)]
pub(super) struct Crowd {
    kind: ConversationKind,
    settings: Settings,
}

/// See the module's description.
#[derive(Default)]
pub(super) struct Gathering {
    connected: Connected,
    /// `None`: there is no crowd, or it is not known yet what it is one of.
    window: Option<Window>,
    looking: Option<BoxFuture<'static, Option<Crowd>>>,
    looked_at: Option<Monotonic>,
}

impl Gathering {
    pub(super) fn window(&self) -> Duration {
        self.window.as_ref().map_or(Duration::ZERO, Window::length)
    }

    /// A new owner was found: it hears of the gateways one by one.
    pub(super) fn attached(&mut self, now: Monotonic) {
        self.connected.attached(now);
    }

    /// Completes when a look at the conversation has ended. Cancel safe: the look is kept.
    pub(super) fn looked(&mut self) -> impl Future<Output = Option<Crowd>> {
        let looking = &mut self.looking;
        async move {
            match looking {
                Some(looking) => looking.await,
                None => std::future::pending().await,
            }
        }
    }
}

impl Hub {
    /// Called twice a second: how many are connected, and how much pressure is there?
    pub(super) fn look_at_the_crowd(&mut self) {
        let now = self.shared.node.seams.now();
        let (own, all) = (self.watchers.len() as u64, self.presence.count() as u64);
        self.gathering.connected.told(all, now);
        let connected = self.gathering.connected.count(own);
        let limits = self.shared.limits.coalesce;
        let is_old = self.gathering.looked_at.is_none_or(|at| now.since(at) >= LOOK_EVERY);
        if connected >= limits.sessions && self.gathering.looking.is_none() && is_old {
            self.gathering.looked_at = Some(now);
            let (node, conversation) = (Arc::clone(&self.shared.node), self.conversation.clone());
            self.gathering.looking = Some(Box::pin(async move {
                // When the store does not answer, nothing changes; the next look comes soon enough.
                let info = node.store.conversation(&conversation).await.ok().flatten()?;
                Some(Crowd { kind: info.kind, settings: info.settings })
            }));
        }
        let before = self.gathering.window();
        let pressure = self.shared.node.pressure.on_windows();
        if let Some(window) = &mut self.gathering.window {
            window.look(connected, pressure);
        }
        self.tell_window(before);
    }

    pub(super) fn looked(&mut self, crowd: Option<Crowd>) {
        self.gathering.looking = None;
        let Some(Crowd { kind, settings }) = crowd else { return };
        let CoalesceLimits { sessions, base, most } = self.shared.limits.coalesce;
        let ms = |set: Option<u16>, else_use: Duration| set.map_or(else_use, |ms| Duration::from_millis(ms.into()));
        let base = ms(settings.coalesce_ms, base);
        let limits = CoalesceLimits { sessions, base, most: ms(settings.coalesce_max_ms, most) };
        let before = self.gathering.window();
        let mut window = Window::new(limits, kind).at(before);
        window.look(self.gathering.connected.count(self.watchers.len() as u64), self.shared.node.pressure.on_windows());
        self.gathering.window = Some(window);
        self.tell_window(before);
    }

    fn tell_window(&self, before: Duration) {
        let window = self.gathering.window();
        if window != before {
            for shard in self.shards.iter().flatten() {
                shard.tell(Step::Window(window));
            }
        }
    }
}
