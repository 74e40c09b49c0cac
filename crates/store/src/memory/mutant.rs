//! Guards that a test can take out of the memory store, to show that its checks can fail.
//!
//! Invariant: outside of tests and of the feature `mutants`, no guard can be off.

use super::state::State;

/// Declares the mutants once, with what each does.
macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A memory store with one guard off.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant { $($(#[$doc])* $name,)* }

        impl Mutant {
            /// Every mutant.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

mutants! {
    /// An append does not compare the epoch.
    FenceOff,
    /// An append compares nothing with the head.
    FenceGone,
    /// An append does not compare the owner.
    OwnerUnchecked,
    /// An append does not compare the generation.
    GenerationUnchecked,
    /// An append does not compare the head's last seq.
    PrevUnchecked,
    /// A clean release starts the epochs anew.
    EpochResetOnRelease,
    /// A claim keeps the epoch.
    EpochKeptOnClaim,
    /// An unclean takeover starts right after what is reserved.
    NoGap,
    /// A wedged task's release skips nothing.
    NoGapForTheWedged,
    /// A claim starts after the last seq, whatever was reserved.
    ReservationIgnored,
    /// A clean release leaves the rest of the block as a hole.
    HoleAfterRelease,
    /// A claim does not compare the head with what was seen.
    ClaimUnchecked,
    /// A claim needs no row.
    UnregisteredClaims,
    /// A claim needs no margin.
    MarginIgnored,
    /// A draining node may claim.
    DrainingClaims,
    /// A release does not compare epoch and owner.
    ReleaseUnchecked,
    /// A hand-off does not look at the peer.
    PeerUnchecked,
    /// A dead incarnation's renewal brings its row back.
    DeadRenews,
    /// An expired row cannot be renewed.
    ExpiredStaysExpired,
    /// Death is declared without a look at the beat.
    BeatUnchecked,
    /// Death is declared without a look at the clock.
    ExpiryUnchecked,
    /// A lease too far ahead is taken for a good one.
    ClockSetBackIgnored,
    /// The same client message id lands twice.
    DedupOff,
    /// A duplicate within one batch lands twice.
    DedupWithinBatchOff,
    /// A fenced batch takes the call's later batches with it.
    FailureSpreads,
    /// An append lowers the reserved mark to what it says.
    ReserveLowered,
    /// A batch that landed is not recognised when it comes again.
    LandedForgotten,
    /// A batch may give numbers again.
    MalformedAccepted,
    /// Times go back with the clock.
    TimesGoBack,
    /// The due row stays as it was, whatever the append says.
    DueIgnored,
    /// Work of living owners is listed as due.
    DueOfTheLiving,
    /// Work is listed before it is due.
    DueTooEarly,
    /// Work that may not be done in a region is listed there.
    DueElsewhere,
    /// The next page of due work leaves out what was due at the same moment.
    DuePagesByTime,
    /// Several are resolved in the order of their keys, whatever was asked.
    ManyInKeyOrder,
    /// Of several that are resolved, those that do not exist have no answer.
    ManyLeaveOutTheUnknown,
    /// Another id with the same key is taken for the conversation.
    CollisionIgnored,
    /// A second create replaces the first.
    CreateOverwrites,
    /// A direct conversation's members can change.
    DirectIsOpen,
    /// Unread is what lies between two numbers.
    UnreadFromSeqs,
    /// One's own messages are unread.
    OwnUnread,
    /// A cursor moves to wherever it is told.
    CursorMovesBack,
    /// A cursor may stand beyond the head.
    CursorBeyondHead,
    /// A checkpoint needs no ownership.
    CheckpointUnfenced,
    /// An older checkpoint replaces a newer one.
    CheckpointGoesBack,
    /// `more` is never true.
    MoreIsNeverTrue,
    /// A range ignores the kinds.
    KindsIgnored,
}

impl State {
    /// True if this guard is off.
    #[cfg(any(test, feature = "mutants"))]
    pub(super) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Every guard is on.
    #[cfg(not(any(test, feature = "mutants")))]
    #[expect(clippy::unused_self, reason = "the same call as with mutants")]
    pub(super) fn is(&self, _mutant: Mutant) -> bool {
        false
    }
}
