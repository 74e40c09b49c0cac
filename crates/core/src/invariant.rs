//! The numbered catalogue of invariants. docs/GUARANTEES.md explains each and names the test that shows it; code and
//! tests cite the number.

/// Declares the invariants once, with their number and sentence.
macro_rules! invariants {
    ($($name:ident = $number:literal, $sentence:literal;)*) => {
        /// An invariant of the product.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Invariant { $(#[doc = $sentence] $name = $number,)* }

        impl Invariant {
            /// Every invariant, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What it says.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)* }
            }
        }
    };
}

invariants! {
    EpochNeverFalls = 1, "Per conversation, the epoch never falls along seq.";
    SeqOnce = 2, "No seq is given twice, ever.";
    AckedOnce = 3, "An acked (sender, client message id) keeps one seq for ever and appears exactly once.";
    UnknownAtMostOnce = 4, "A write of unknown outcome appears at most once.";
    OrderOfAcks = 5, "ack(A) before send(B) implies seq(A) < seq(B).";
    ObserversSeeTheLog = 6, "What an observer saw is a subsequence of the final log, in order, without a gap between its first and last record.";
    DurableBeforeShown = 7, "Nothing is shown to an observer before it is durable; live events are excepted, and those are retracted.";
    CommittedInReign = 8, "Every acked record was committed inside its epoch's reign.";
    StepOnce = 9, "A completed step is never executed again.";
    OneTerminal = 10, "A turn reaches exactly one terminal record.";
    CursorMonotone = 11, "A cursor never moves back.";
    GrantsOnly = 12, "Nobody reads or writes what their token does not grant.";
    AwaitOnce = 13, "An await is resolved at most once, and nothing else of its turn happens before.";
    CancelStops = 14, "After a cancel is acked its turn appends, shows and calls nothing more.";
}

/// A broken invariant. It stops the owner that found it: going on would make it worse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant {} is broken ({}): {detail}", *invariant as u8, invariant.sentence())]
pub struct Broken {
    /// Which.
    pub invariant: Invariant,
    /// What was seen.
    pub detail: String,
}

impl Invariant {
    /// A report that this invariant does not hold.
    #[must_use]
    pub fn broken(self, detail: impl Into<String>) -> Broken {
        Broken { invariant: self, detail: detail.into() }
    }
}
