//! What a test takes out of a whole process: the variable `CONCH_MUTANT` names it, several with commas between them.
//!
//! Invariant: this exists with the feature `mutants` alone, which no release has.
//!
//! Deliberately absent: the name `fence`. That guard is the store's, which reads the same variable.

use conch_core::death::Guard;
use conch_core::heart;

use crate::rules::Rule;

const GUARDS: [(&str, Guard); 2] = [("second_channel", Guard::SecondChannel), ("lost_alone", Guard::LostAlone)];

const HEART: [(&str, heart::Rule); 4] = [
    ("no_row_ends", heart::Rule::NoRowEnds),
    ("errors_pass", heart::Rule::ErrorsPass),
    ("validity_ends", heart::Rule::ValidityEnds),
    ("loss_freezes", heart::Rule::LossFreezes),
];

const RULES: [(&str, Rule); 2] = [("unread_pages", Rule::OneUnreadPage), ("idle_buffers", Rule::IdleHoldsNothing)];

/// Those of a table that the variable names.
fn named<T: Copy>(table: &[(&str, T)]) -> Vec<T> {
    let variable = std::env::var("CONCH_MUTANT").unwrap_or_default();
    let is_named = |wanted: &str| variable.split(',').any(|name| name == wanted);
    table.iter().filter(|(name, _)| is_named(name)).map(|(_, value)| *value).collect()
}

/// Without these somebody is declared dead who should not be.
pub(crate) fn guards() -> Vec<Guard> {
    named(&GUARDS)
}

/// Rules of the server that are left out.
pub(crate) fn rules() -> Vec<Rule> {
    named(&RULES)
}

/// The heartbeat's rule that is left out.
pub(crate) fn heart() -> Option<heart::Rule> {
    named(&HEART).first().copied()
}
