//! What must never happen. The steps of the model compare what they do with what happened before, and write down the
//! rules that broke; a world with a broken rule goes nowhere.

/// Declares the rules once: the name that a check reports, and the invariant of docs/GUARANTEES.md behind it.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $sentence:literal;)*) => {
        /// A rule that no order of events may break.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rule { $($(#[$doc])* $name,)* }

        impl Rule {
            /// Every rule.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What it says; also the property's name.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$name => $sentence,)* }
            }

            /// The number of its invariant.
            #[must_use]
            pub fn invariant(self) -> u8 {
                match self { $(Self::$name => $number,)* }
            }
        }
    };
}

rules! {
    /// Along the log, and from reign to reign.
    EpochNeverFalls = 1, "epochs never fall along seq";
    /// Also across generations: a follower, too, tells reigns apart by their epochs.
    EpochOnce = 1, "no epoch is granted to two reigns";
    /// Also a number that only a lost history held.
    SeqOnce = 2, "no number is committed twice, across generations too";
    /// Stronger than needed for the log, which the fence protects: whoever was told a number early was told the truth.
    GivenOnce = 2, "no number is given again while it is known or may still land";
    /// So that whoever follows, and whoever claims, is told of all of it.
    HeadAboveLog = 2, "the head never falls below the log";
    /// An ack names a record that is in the log, or that a failover lost.
    AckedIsDurable = 3, "an acked record is in the log unless a failover lost it";
    /// Two acks of one key name one record, unless a failover lost the first.
    AckedOnce = 3, "an acked key keeps its number";
    /// However often it was sent, and wherever.
    KeyOnce = 4, "a key is in the log once";
    /// A record that lands is above everything that was acked when it was numbered.
    OrderOfAcks = 5, "what is sent after an ack is numbered above it";
    /// What an owner publishes is committed.
    DurableBeforeShown = 7, "what is shown is durable";
    /// A reign is over when it is released, passed on or taken, and at a failover.
    CommittedInReign = 8, "an append of a reign that is over changes nothing";
    /// Holds only while evidence of death is true and clocks run; the fence makes it harmless where it does not hold.
    LeaseExcludes = 8, "the lease lets one process at a time believe";
}

/// A set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rules(u16);

impl Rules {
    /// All of them.
    pub const ALL: Self = Self(u16::MAX);

    /// Those of a list.
    #[must_use]
    pub fn of(rules: &[Rule]) -> Self {
        Self(rules.iter().fold(0, |bits, &rule| bits | Self::bit(rule)))
    }

    /// Adds one.
    pub fn add(&mut self, rule: Rule) {
        self.0 |= Self::bit(rule);
    }

    /// Is it one of them?
    #[must_use]
    pub fn has(self, rule: Rule) -> bool {
        self.0 & Self::bit(rule) != 0
    }

    /// Those that are in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn bit(rule: Rule) -> u16 {
        1 << rule as u16
    }
}
