//! One check, and what it found.

use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use super::Ownership;

/// What a check found.
#[derive(Debug)]
pub struct Report {
    /// How many different worlds it saw.
    pub states: usize,
    /// How many steps the longest of the shortest ways to a world has.
    pub depth: usize,
    /// Rules that broke first, each with the steps that lead there.
    pub broken: Vec<(&'static str, Vec<String>)>,
    /// What was to happen at least once and did not.
    pub missing: Vec<&'static str>,
    /// It was ended before it had seen everything.
    pub cut_short: bool,
}

impl Report {
    /// Everything was seen, nothing broke, and what must be possible is.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.missing.is_empty() && !self.cut_short
    }
}

/// Looks at everything within the scope, or as much as fits into `limit`; stops at the first broken rule.
#[must_use]
pub fn check(model: Ownership, threads: usize, limit: Duration) -> Report {
    let properties = model.properties();
    let began = Instant::now();
    let checker =
        model.checker().threads(threads).timeout(limit).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let is_failure = |name: &str| {
        properties.iter().any(|property| property.name == name && property.expectation.discovery_is_failure())
    };
    let mut broken: Vec<(&'static str, Vec<String>)> = discoveries
        .iter()
        .filter(|(name, _)| is_failure(name))
        .map(|(name, path)| {
            let steps = path.clone().into_actions().iter().map(|step| format!("{step:?}")).collect();
            (*name, steps)
        })
        .collect();
    broken.sort();
    let missing = properties
        .iter()
        .filter(|property| property.expectation == Expectation::Sometimes && !discoveries.contains_key(property.name))
        .map(|property| property.name)
        .collect();
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    Report { states, depth, broken, missing, cut_short: began.elapsed() >= limit }
}
