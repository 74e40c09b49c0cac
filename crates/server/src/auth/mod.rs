//! Who gets in, and what they may do.
//!
//! Invariant 12 (`GrantsOnly`) starts here: a [`grants::Principal`] comes only from [`token::Verifier::verify`], and
//! [`grants::Access::allows`] is the one place that says yes. Errors say what is wrong with a token, never what would be right.
//!
//! Deliberately absent: sessions, cookies, passwords, a user database. Whoever holds the key says who people are.

pub mod extract;
pub mod glob;
pub mod grants;
pub mod origin;
pub mod secret;
pub mod token;
