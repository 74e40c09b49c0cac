//! The window in which the frames of one conversation gather before they leave a gateway, and the moments at which its
//! groups of sockets are written.
//!
//! Invariants: what counts is the number of sessions that are connected, over all gateways, never of members; a direct
//! conversation and one below the threshold have no window; a window is at most the stated most; and a frame waits for its
//! group at most one window. The order and the numbers of records are none of its business.
//!
//! Deliberately absent: a clock, sockets, and how the pressure is measured ([`crate::shed`]).

use std::time::Duration;

use crate::conversation::ConversationKind;
use crate::shed::Permille;
use crate::time::Monotonic;

/// Connected sessions over all gateways from which frames are gathered, by default.
pub const SESSIONS: u64 = 1_000;
/// The window of such a conversation, by default.
pub const BASE: Duration = Duration::from_millis(50);
/// The longest window, by default: what the delivery budget leaves beside a commit and the link.
pub const MOST: Duration = Duration::from_millis(300);
/// A window grows at a pressure of this and more.
pub const HIGH: Permille = Permille::new(800);
/// A window shrinks at a pressure below this.
pub const LOW: Permille = Permille::new(500);
/// Groups of a conversation's sockets, whose windows are offset against each other.
pub const GROUPS: usize = 16;
/// For how long a new owner hears the gateways before what it tells is less than what was told before.
pub const HEARING: Duration = Duration::from_secs(1);

/// When and how much frames are gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoalesceLimits {
    /// Connected sessions over all gateways from which on it is done.
    pub sessions: u64,
    /// The window without pressure.
    pub base: Duration,
    /// The longest window; one below the base counts as the base.
    pub most: Duration,
}

impl Default for CoalesceLimits {
    fn default() -> Self {
        Self { sessions: SESSIONS, base: BASE, most: MOST }
    }
}

/// The window of one conversation on one gateway.
#[derive(Debug, Clone)]
pub struct Window {
    limits: CoalesceLimits,
    kind: ConversationKind,
    /// As it stands; zero where nothing is gathered.
    length: Duration,
}

impl Window {
    /// No window yet.
    #[must_use]
    pub fn new(limits: CoalesceLimits, kind: ConversationKind) -> Self {
        Self { limits, kind, length: Duration::ZERO }
    }

    /// The same at a length that it had under other limits.
    #[must_use]
    pub fn at(self, length: Duration) -> Self {
        Self { length: length.min(self.limits.most.max(self.limits.base)), ..self }
    }

    /// Takes a look: `connected` sessions over all gateways, under this pressure. Called a few times a second; each look
    /// makes the window half as long again at [`HIGH`] and above, and a third shorter below [`LOW`].
    pub fn look(&mut self, connected: u64, pressure: Permille) -> Duration {
        let CoalesceLimits { sessions, base, most } = self.limits;
        self.length = if self.kind == ConversationKind::Direct || connected < sessions {
            Duration::ZERO
        } else if self.length < base {
            base
        } else if pressure >= HIGH {
            // A base of nothing has nothing to grow from: frames are not gathered.
            (self.length + self.length / 2).min(most.max(base))
        } else if pressure < LOW {
            (self.length / 3 * 2).max(base)
        } else {
            self.length
        };
        self.length
    }

    /// How long it is now; zero: frames leave at once.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.length
    }
}

/// The sixteenths of a window, counted since the clock began. At each of them one group is written, each in turn.
#[derive(Debug, Clone, Copy)]
pub struct Slices {
    window: Duration,
    length_ns: u64,
}

impl Slices {
    /// Of a window; one of nothing counts as sixteen nanoseconds.
    #[must_use]
    pub fn of(window: Duration) -> Self {
        let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
        Self { window, length_ns: window_ns.div_ceil(GROUPS as u64).max(1) }
    }

    /// The number of the one that a moment is in.
    #[must_use]
    pub fn at(self, now: Monotonic) -> u64 {
        now.0 / self.length_ns
    }

    /// When one begins.
    #[must_use]
    pub fn begins(self, slice: u64) -> Monotonic {
        Monotonic(slice.saturating_mul(self.length_ns))
    }

    /// The group that is written when one begins.
    #[must_use]
    pub fn group(slice: u64) -> usize {
        usize::try_from(slice % GROUPS as u64).expect("less than the number of groups")
    }

    /// By how much it is late when nothing was written between these: the one after `from` was due, and the others are late. A
    /// share of the window, or of [`BASE`] if that is longer: what is nothing to a viewer is not much of a short window.
    #[must_use]
    pub fn late(self, from: u64, to: u64) -> Permille {
        let late_ns = to.saturating_sub(from).saturating_sub(1).saturating_mul(self.length_ns);
        Permille::of(late_ns, u64::try_from(self.window.max(BASE).as_nanos()).unwrap_or(u64::MAX))
    }
}

/// How many sessions a gateway takes to be connected, over all gateways.
///
/// That is the larger of what it was told last and its own. A new owner knows of few gateways at first, so for the time
/// in which it hears all of them ([`HEARING`]) what was told before is not lowered: a takeover does not take the window away
/// when everybody comes back.
#[derive(Debug, Clone, Default)]
pub struct Connected {
    told: u64,
    /// Until then the owner may not know of everybody.
    hearing_until: Option<Monotonic>,
}

impl Connected {
    /// A new owner was found, or the same one again.
    pub fn attached(&mut self, now: Monotonic) {
        self.hearing_until = Some(now + HEARING);
    }

    /// The owner tells how many there are.
    pub fn told(&mut self, sessions: u64, now: Monotonic) {
        match self.hearing_until {
            Some(until) if now < until => self.told = self.told.max(sessions),
            _ => {
                self.hearing_until = None;
                self.told = sessions;
            }
        }
    }

    /// How many there are, of which `own` on this gateway.
    #[must_use]
    pub fn count(&self, own: u64) -> u64 {
        self.told.max(own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM: Permille = Permille::NONE;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn channel() -> Window {
        Window::new(CoalesceLimits::default(), ConversationKind::Channel)
    }

    #[test]
    fn below_the_threshold_and_for_two_nothing_is_gathered() {
        let mut window = channel();
        // Fifty thousand members, of whom four hundred are connected: members are no input at all.
        assert_eq!(window.look(400, Permille::ALL), Duration::ZERO);
        assert_eq!(window.look(999, Permille::ALL), Duration::ZERO);
        assert_eq!(window.look(1_000, CALM), BASE);
        assert_eq!(window.look(999, CALM), Duration::ZERO, "everybody left");
        let mut direct = Window::new(CoalesceLimits::default(), ConversationKind::Direct);
        assert_eq!(direct.look(u64::MAX, Permille::ALL), Duration::ZERO);
    }

    #[test]
    fn under_pressure_it_grows_to_its_most_and_comes_back() {
        let mut window = channel();
        let mut lengths = Vec::new();
        for _ in 0..7 {
            lengths.push(window.look(30_000, HIGH).as_micros());
        }
        assert_eq!(lengths, [50_000, 75_000, 112_500, 168_750, 253_125, 300_000, 300_000]);
        for pressure in [LOW, Permille::new(799)] {
            assert_eq!(window.look(30_000, pressure), MOST, "between the marks it stays");
        }
        let back: Vec<u128> = (0..6).map(|_| window.look(30_000, CALM).as_millis()).collect();
        assert_eq!(back, [200, 133, 88, 59, 50, 50]);
    }

    #[test]
    fn odd_limits_are_kept() {
        let at = |base, most| CoalesceLimits { sessions: 0, base: ms(base), most: ms(most) };
        for (limits, expected) in [(at(0, 300), 0), (at(100, 50), 100), (at(50, 50), 50)] {
            let mut window = Window::new(limits, ConversationKind::Session);
            for _ in 0..10 {
                window.look(0, Permille::ALL);
            }
            assert_eq!(window.length(), ms(expected), "{limits:?}");
        }
    }

    #[test]
    fn a_count_is_kept_through_a_takeover() {
        let at = |ms: u64| Monotonic(ms * 1_000_000);
        let mut connected = Connected::default();
        assert_eq!(connected.count(7), 7);
        connected.told(30_000, at(0));
        assert_eq!(connected.count(10_000), 30_000);
        connected.told(20_000, at(500));
        assert_eq!(connected.count(10_000), 20_000, "the owner knows");
        connected.attached(at(1_000));
        assert_eq!(connected.count(10_000), 20_000, "nobody has told yet");
        connected.told(4, at(1_001));
        connected.told(10_000, at(1_999));
        assert_eq!(connected.count(9_000), 20_000, "it has not heard everybody yet");
        connected.told(25_000, at(1_999));
        assert_eq!(connected.count(9_000), 25_000, "more is believed at once");
        connected.told(12_000, at(2_000));
        assert_eq!((connected.count(9_000), connected.count(13_000)), (12_000, 13_000));
    }

    proptest! {
        #[test]
        fn a_window_is_none_or_between_its_bounds(
            limits in (0_u64..5_000, 0_u64..500, 0_u64..1_000),
            looks in proptest::collection::vec((0_u64..10_000, 0_u16..=1_000), 0..100),
        ) {
            let limits = CoalesceLimits { sessions: limits.0, base: ms(limits.1), most: ms(limits.2) };
            let mut window = Window::new(limits, ConversationKind::Channel);
            for (connected, pressure) in looks {
                let before = window.length();
                let pressure = Permille::new(pressure);
                let after = window.look(connected, pressure);
                if connected < limits.sessions {
                    prop_assert_eq!(after, Duration::ZERO);
                    continue;
                }
                prop_assert!(limits.base <= after && after <= limits.most.max(limits.base));
                if before >= limits.base {
                    prop_assert!(pressure >= HIGH || after <= before, "it grows under pressure alone");
                    prop_assert!(pressure < LOW || after >= before, "it shrinks without pressure alone");
                }
            }
        }

        #[test]
        fn a_group_is_written_within_the_window_and_then_each_window(
            window_ns in 1_u64..1_000_000_000,
            now in 0_u64..u64::MAX / 4,
            group in 0..GROUPS,
        ) {
            let (window, now) = (Duration::from_nanos(window_ns), Monotonic(now));
            let at = due(group, window, now);
            prop_assert!(at > now);
            // Sixteen whole numbers of nanoseconds may be a little more.
            let most = window + Duration::from_nanos(15);
            prop_assert!(at.since(now) <= most);
            let next = due(group, window, at);
            prop_assert!(window <= next.since(at) && next.since(at) <= most, "and then each window");
        }

        #[test]
        fn moments_do_not_go_back(window_ns in 0_u64..1_000_000_000, now in 0_u64..u64::MAX / 4, step in 0_u64..2_000_000_000) {
            let window = Duration::from_nanos(window_ns);
            for group in 0..GROUPS {
                let (first, second) = (due(group, window, Monotonic(now)), due(group, window, Monotonic(now + step)));
                prop_assert!(first <= second);
            }
        }

        #[test]
        fn groups_are_a_sixteenth_apart(window_ns in 16_u64..1_000_000_000, now in 1_000_000_000_u64..u64::MAX / 4) {
            let window = Duration::from_nanos(window_ns);
            let mut moments: Vec<u64> = (0..GROUPS).map(|group| due(group, window, Monotonic(now)).0).collect();
            moments.sort_unstable();
            for pair in moments.windows(2) {
                prop_assert!((pair[1] - pair[0]).abs_diff(window_ns / 16) <= 1, "{pair:?}");
            }
        }
    }

    /// The next moment at which a group is written.
    fn due(group: usize, window: Duration, now: Monotonic) -> Monotonic {
        let slices = Slices::of(window);
        let next = (slices.at(now) + 1..).find(|slice| Slices::group(*slice) == group);
        slices.begins(next.expect("each is one of sixteen in a row"))
    }

    #[test]
    fn the_end_of_time_is_the_end() {
        for window in [Duration::ZERO, ms(50), Duration::MAX] {
            let slices = Slices::of(window);
            assert_eq!(slices.begins(u64::MAX), Monotonic(u64::MAX));
            assert!(slices.begins(slices.at(Monotonic(7))) <= Monotonic(7));
        }
        assert_eq!((0..17).map(Slices::group).collect::<Vec<_>>(), (0..16).chain([0]).collect::<Vec<_>>());
    }

    #[test]
    fn lateness_is_a_share_of_the_window_or_of_what_a_viewer_feels() {
        let late = |window, from, to| Slices::of(window).late(from, to).get();
        assert_eq!(
            (late(ms(160), 7, 7), late(ms(160), 7, 8), late(ms(160), 7, 9), late(ms(160), 7, 24)),
            (0, 0, 62, 1_000)
        );
        assert_eq!(late(ms(1), 0, 17), 20, "of 50 ms");
    }
}
