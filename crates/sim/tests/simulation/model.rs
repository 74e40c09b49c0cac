//! The model of ownership: within each scope every order of events is looked at, and each rule that is left out is noticed.

use std::time::Duration;

use conch_sim::model::Ownership;
use conch_sim::model::report::{Report, check};
use conch_sim::model::rules::{Rule, Rules};
use conch_sim::model::scope::{Flaw, May, Scope};

/// Far above what a scope takes; a check that is cut short fails.
const LIMIT: Duration = Duration::from_secs(600);

fn checked(scope: Scope) -> Report {
    check(Ownership { scope, flaw: None, watched: Rules::ALL }, 2, LIMIT)
}

#[track_caller]
fn holds(scope: Scope) {
    let report = checked(scope);
    assert!(report.is_clean(), "{report:#?}");
    assert!(report.states > 1_000, "a scope that holds nothing shows nothing: {report:#?}");
}

#[test]
fn the_lease_lets_one_at_a_time_believe() {
    assert!(Scope::LEASE.lease_excludes());
    holds(Scope::LEASE);
}

#[test]
fn a_process_fences_its_twin_of_the_same_name() {
    holds(Scope::TWINS);
}

/// Nobody respects a lease here, so the lease is not what keeps the log whole: the fence is.
#[test]
fn the_fence_alone_keeps_the_log_whole() {
    assert!(Scope::FENCE.may(May::IgnoreLeases));
    holds(Scope::FENCE);
}

#[test]
fn every_way_to_leave_keeps_the_log_whole() {
    holds(Scope::LEAVING);
}

#[test]
fn false_evidence_and_rows_of_the_dead_are_harmless() {
    holds(Scope::DEATH);
}

#[test]
fn what_a_failover_lost_never_comes_back() {
    holds(Scope::FAILOVER);
}

#[test]
fn what_a_restore_lost_never_comes_back() {
    holds(Scope::RESTORE);
}

/// More appends fail than the gap has numbers: the owner ends its reign before it gives one that its successor gives.
#[test]
fn failures_give_no_number_twice() {
    const { assert!(Scope::FAILING.failures as u64 >= Scope::FAILING.gap, "the gap is used up") };
    holds(Scope::FAILING);
}

/// Where each flaw must be noticed first, and as what.
const NOTICED: &[(Flaw, Scope, Rule)] = &[
    (Flaw::FenceOff, Scope::TWINS, Rule::CommittedInReign),
    (Flaw::EpochUnchecked, Scope::TWINS, Rule::CommittedInReign),
    (Flaw::OwnerUnchecked, Scope::LEAVING, Rule::CommittedInReign),
    (Flaw::GenerationUnchecked, Scope::FAILOVER, Rule::CommittedInReign),
    (Flaw::PlaceUnchecked, Scope::FENCE, Rule::HeadAboveLog),
    (Flaw::ClaimUnchecked, Scope::LEASE, Rule::LeaseExcludes),
    (Flaw::NoGap, Scope::TWINS, Rule::GivenOnce),
    (Flaw::NoGapForTheWedged, Scope::LEAVING, Rule::GivenOnce),
    (Flaw::NumbersBeyondTheGap, Scope::FAILING, Rule::GivenOnce),
    (Flaw::EpochKeptOnReclaim, Scope::TWINS, Rule::EpochOnce),
    (Flaw::EpochResetOnRelease, Scope::LEAVING, Rule::EpochOnce),
    (Flaw::NumbersNotSkipped, Scope::FAILOVER, Rule::GivenOnce),
    (Flaw::EpochsNotSkipped, Scope::FAILOVER, Rule::EpochOnce),
    (Flaw::GenerationKept, Scope::FAILOVER, Rule::CommittedInReign),
    (Flaw::DedupOff, Scope::FENCE, Rule::KeyOnce),
    (Flaw::AckBeforeCommit, Scope::TWINS, Rule::AckedIsDurable),
    (Flaw::ShownBeforeCommit, Scope::TWINS, Rule::DurableBeforeShown),
    (Flaw::MarginIgnored, Scope::LEASE, Rule::LeaseExcludes),
];

/// What a flaw does to the log in the end, when nobody looks at the rule that it breaks first.
const FOLLOWED: &[(Flaw, Scope, Rule)] = &[
    (Flaw::FenceOff, Scope::FENCE, Rule::OrderOfAcks),
    (Flaw::FenceOff, Scope::FENCE, Rule::EpochNeverFalls),
    (Flaw::DedupOff, Scope::FENCE, Rule::AckedOnce),
    (Flaw::NumbersNotSkipped, Scope::FAILOVER, Rule::SeqOnce),
];

#[track_caller]
fn breaks(flaw: Flaw, scope: Scope, watched: Rules, rule: Rule) {
    let report = check(Ownership { scope, flaw: Some(flaw), watched }, 2, LIMIT);
    let broken = report.broken.iter().any(|(sentence, _)| *sentence == rule.sentence());
    assert!(broken, "{flaw:?} does not break {rule:?}: {report:#?}");
}

#[test]
fn every_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let found = NOTICED.iter().find(|(noticed, ..)| noticed == flaw);
        let &(_, scope, rule) = found.unwrap_or_else(|| panic!("{flaw:?} is not in the table"));
        breaks(*flaw, scope, Rules::ALL, rule);
    }
}

#[test]
fn every_rule_can_break() {
    for &(flaw, scope, rule) in FOLLOWED {
        breaks(flaw, scope, Rules::of(&[rule]), rule);
    }
    let broken = |rule: &Rule| NOTICED.iter().chain(FOLLOWED).any(|(.., broken)| broken == rule);
    let never: Vec<_> = Rule::ALL.iter().filter(|rule| !broken(rule)).collect();
    assert!(never.is_empty(), "nothing breaks {never:?}");
}
