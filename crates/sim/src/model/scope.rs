//! How far a check goes, and what is broken on purpose.

/// Bounds of one check, and what may happen in it. The state space is finite only within them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Client message ids that clients send, each as often as they like.
    pub keys: u8,
    /// Most records that are ever committed, those that a failover lost included.
    pub records: usize,
    /// Most reigns that are ever granted.
    pub reigns: usize,
    /// Highest number within a generation.
    pub numbers: u64,
    /// How many numbers an unclean takeover skips: at least the records of a batch, of which the model's has one.
    pub gap: u64,
    /// Most requests that wait in the network after their sender gave up on them.
    pub late: usize,
    /// How often the store may be replaced by a standby or a backup.
    pub failovers: u8,
    /// How often an append may fail for certain, with the reign going on.
    pub failures: u8,
    /// What else may happen.
    pub may: &'static [May],
}

/// Something that may happen in a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// A third process starts, under the first one's node name.
    Twin,
    /// An owner passes the conversation on.
    HandOff,
    /// A task no longer answers and is relieved.
    Wedge,
    /// A batch is sent again, unchanged, while the first one may still arrive.
    Resend,
    /// Claims take their time between the look and the deed.
    SlowClaims,
    /// Leases run out, and their holders are declared dead.
    Die,
    /// Incarnations are declared dead while they believe: on false evidence, or because their clock stood still.
    Expel,
    /// Anybody claims from anybody, whether the owner lives or not.
    IgnoreLeases,
    /// The store is replaced by a backup, and the operator says so; else by a standby.
    Restore,
}

impl Scope {
    /// Does this check include it?
    #[must_use]
    pub fn may(&self, what: May) -> bool {
        self.may.contains(&what)
    }

    /// The same with wider bounds.
    #[must_use]
    pub fn deeper(self, by: u8) -> Self {
        let more = usize::from(by);
        Self {
            records: self.records + more,
            reigns: self.reigns + more,
            numbers: self.numbers + 2 * u64::from(by),
            late: self.late + more,
            ..self
        }
    }

    /// True if the lease alone lets nobody claim from an owner that believes in its own.
    #[must_use]
    pub fn lease_excludes(&self) -> bool {
        let breaking = [May::Expel, May::IgnoreLeases, May::Wedge];
        self.failovers == 0 && !breaking.iter().any(|&what| self.may(what))
    }
}

/// Declares the scopes and flaws once, with what each is.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$item:meta])* $name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$item])* $name,)* }

        impl $type {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

named! {
    /// A rule of ownership that a check can leave out, to show that it would be noticed.
    Flaw {
        /// There is no fence: whatever arrives lands.
        FenceOff,
        /// The fence does not compare the epoch.
        EpochUnchecked,
        /// The fence does not compare the owner.
        OwnerUnchecked,
        /// The fence does not compare the generation.
        GenerationUnchecked,
        /// The fence does not compare the head's last number.
        PlaceUnchecked,
        /// A claim does not compare the head with what was seen.
        ClaimUnchecked,
        /// An unclean takeover starts right after what is reserved.
        NoGap,
        /// A wedged task's release skips nothing.
        NoGapForTheWedged,
        /// An owner whose appends fail goes on numbering above what its successor skips.
        NumbersBeyondTheGap,
        /// Who claims again what is theirs keeps the epoch.
        EpochKeptOnReclaim,
        /// A release starts the epochs anew.
        EpochResetOnRelease,
        /// A claim in a new generation skips no numbers.
        NumbersNotSkipped,
        /// A claim in a new generation skips no epochs.
        EpochsNotSkipped,
        /// A failover does not raise the generation.
        GenerationKept,
        /// A key that is in the log lands again.
        DedupOff,
        /// An append whose fate is unknown is acked.
        AckBeforeCommit,
        /// An append whose fate is unknown is shown.
        ShownBeforeCommit,
        /// A lease that may have ended is trusted until somebody says otherwise: it runs out while its holder believes.
        MarginIgnored,
    }
}

impl Scope {
    /// Every scope that is checked, with its name.
    pub const ALL: &'static [(&'static str, Self)] = &[
        ("lease", Self::LEASE),
        ("twins", Self::TWINS),
        ("death", Self::DEATH),
        ("fence", Self::FENCE),
        ("leaving", Self::LEAVING),
        ("failing", Self::FAILING),
        ("failover", Self::FAILOVER),
        ("restore", Self::RESTORE),
    ];

    /// The lease by itself: no false evidence, no stopped clock, no failover, and nothing written.
    pub const LEASE: Self = Self {
        keys: 0,
        records: 0,
        reigns: 3,
        numbers: 6,
        gap: 1,
        late: 0,
        failovers: 0,
        failures: 0,
        may: &[May::Twin, May::HandOff, May::Die, May::SlowClaims],
    };

    /// Death that is declared on false evidence, and a failover that brings back the rows of the dead.
    pub const DEATH: Self = Self {
        keys: 1,
        records: 1,
        reigns: 2,
        numbers: 4,
        gap: 1,
        late: 0,
        failovers: 1,
        failures: 0,
        may: &[May::Expel],
    };

    /// Two processes that respect no lease; late and repeated requests.
    pub const FENCE: Self = Self {
        keys: 2,
        records: 2,
        reigns: 3,
        numbers: 5,
        gap: 1,
        late: 1,
        failovers: 0,
        failures: 0,
        may: &[May::Resend, May::IgnoreLeases],
    };

    /// The ways to leave: releases, hand-offs and the watchdog's, some of them late.
    pub const LEAVING: Self = Self {
        keys: 1,
        records: 1,
        reigns: 3,
        numbers: 6,
        gap: 1,
        late: 1,
        failovers: 0,
        failures: 0,
        may: &[May::HandOff, May::Wedge, May::IgnoreLeases],
    };

    /// Appends that fail for certain while the reign goes on.
    pub const FAILING: Self = Self {
        keys: 1,
        records: 1,
        reigns: 2,
        numbers: 8,
        gap: 2,
        late: 0,
        failovers: 0,
        failures: 2,
        may: &[May::IgnoreLeases],
    };

    /// Two processes under one node name, a third under another, and nobody respects a lease.
    pub const TWINS: Self = Self {
        keys: 1,
        records: 1,
        reigns: 3,
        numbers: 6,
        gap: 1,
        late: 1,
        failovers: 0,
        failures: 0,
        may: &[May::Twin, May::IgnoreLeases],
    };

    /// A failover that loses the newest commits.
    pub const FAILOVER: Self = Self {
        keys: 2,
        records: 2,
        reigns: 3,
        numbers: 3,
        gap: 1,
        late: 0,
        failovers: 1,
        failures: 0,
        may: &[May::IgnoreLeases],
    };

    /// A backup that is restored after a failover.
    pub const RESTORE: Self = Self {
        keys: 1,
        records: 2,
        reigns: 3,
        numbers: 3,
        gap: 1,
        late: 0,
        failovers: 2,
        failures: 0,
        may: &[May::IgnoreLeases, May::Restore],
    };
}
