//! Rules of routing, following and answering that a test can take away, to show that it would be noticed.
//!
//! Invariant: in the product every rule holds; only tests and the simulation can say otherwise.

/// One rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// What is believed of an owner elsewhere goes at the first sign of trouble.
    TroubleForgets,
    /// What is believed of an owner elsewhere goes when its node is registered no more.
    DeathForgets,
    /// A turn of an agent that its node lacks goes to a node that has it.
    AgentIsSought,
    /// A search for an agent that is not needed any more hands nothing over.
    SearchesAreCalledOff,
    /// A write is passed on a few times at most.
    HopsEnd,
    /// An owner that makes no progress for a lease loses its conversation.
    WatchdogReleases,
    /// An owner whose lease the watchdog gave up ends when it comes round again.
    DeposedEnds,
    /// A node that drains claims nothing.
    DrainingClaimsNothing,
    /// A conversation is owned in its regions alone.
    ResidencyIsKept,
    /// F2: a follower that lacks the preceding record reads the range.
    PrevFills,
    /// F3: a follower that is behind the owner's position reads the range.
    PositionFills,
    /// F3: an owner that is silent is looked for again.
    SilenceLooksAgain,
    /// F7: a follower claims where nobody owns.
    FollowersClaim,
    /// E4: evening out hands over a limited number at a time.
    EveningOutIsGradual,
    /// E2: whoever takes part in evening out takes no more than makes it more even.
    EveningOutStops,
    /// Only what is idle is handed over to even out.
    IdleAloneMoves,
    /// E1: what is owned elsewhere goes home.
    HomeIsReturnedTo,
    /// Due work is looked for behind what cannot be taken up.
    DuePagesGoOn,
    /// F7: a follow that was passed on to the better place is settled there, though nobody owned the conversation yet.
    BetterPlaceSettles,
    /// F4: what comes from a lower epoch than the highest one seen is dropped.
    LowerEpochsDrop,
    /// F6: an owner that ends closes its follow streams.
    StreamsClose,
    /// A session whose reign ended in doubt is resolved again by its node.
    DoubtLooksAgain,
    /// A peer that drains has given away what it owned: whoever asked it asks on.
    DrainingMoves,
    /// A refusal because ownership moves is answered by asking again, inside the budget.
    MovingAsksAgain,
    /// Concurrent callers on a node share one claim.
    ClaimsAreShared,
    /// A claim that nobody waits for comes back when it was told to, and leaves the store alone until then.
    ClaimsWaitTheirTurn,
    /// Looking for an owner ends with the budget.
    BudgetBoundsLooking,
    /// Conversations that are at rest are taken out one by one to be given up, not all beforehand.
    SleepersGoOneByOne,
    /// So many owners at once change hands when their patience is over.
    FewHandOverAtOnce,
    /// A socket is given one page of history at a time, and none while it has not taken the one before.
    OneUnreadPage,
    /// A connection with nothing to read holds no buffer.
    IdleHoldsNothing,
    /// The hub of a conversation that there is not ends as soon as nobody waits for it.
    NowhereEndsAtOnce,
    /// Those who catch up with the same records share one read.
    ReadsAreShared,
    /// Reads for catching up are limited by a rate.
    CatchUpIsLimited,
    /// A catch-up whose turn does not come in time ends with `resync`.
    CatchUpGivesUp,
    /// What nobody who catches up waits for any more is not read.
    UnwantedIsNotRead,
    /// F5: a ring serves only positions above which it has everything.
    RingIsWhole,
    /// A position of another history is void.
    OtherLogsAreVoid,
    /// What changes of presence in a window is told together.
    PresenceGathers,
    /// The presence of a follower that is gone goes with it.
    LostFollowersLeave,
    /// A gateway under pressure sheds.
    PressureSheds,
    /// A turn is run whether or not anybody watches.
    TurnsNeedNoViewer,
    /// Whoever resumes is shown only what lies after its position.
    ResumeIsAfter,
    /// A cancel stops what runs before it is answered.
    CancelStops,
    /// A step's key is the same whoever runs it.
    KeysOutliveOwners,
    /// Whoever goes on with a turn takes the results of completed steps from its journal.
    StepsAreReplayed,
    /// All that resolves an await has one key.
    OneKeyForEachAwait,
    /// A checkpoint holds what is open, not what was.
    CheckpointsForget,
    /// A session is thawed from its checkpoint.
    CheckpointsAreUsed,
    /// A session that is added to its worker's is shown what is handed over from then on (D2).
    ShownFromAdding,
    /// A session that moves to another group of its window is shown at once what waits for it (D2).
    MovedIsShown,
}

/// The rules that hold.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    off: Vec<Rule>,
}

impl Rules {
    /// All but these.
    #[cfg(any(test, feature = "mutants"))]
    #[must_use]
    pub fn without(rules: &[Rule]) -> Self {
        Self { off: rules.to_vec() }
    }

    /// Does it hold?
    #[must_use]
    pub fn hold(&self, rule: Rule) -> bool {
        !self.off.contains(&rule)
    }
}
