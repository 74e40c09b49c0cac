//! Scripts: sequences of calls that are played against two stores, to compare their answers step by step.
//!
//! A script is made from 64-bit words, one a step, so that any source of numbers (a seed, a property test that shrinks)
//! can make one. A [`Player`] keeps what nodes would keep: who they are and what they believe to own, rightly or not.
//!
//! Epochs are shown by their rank in the conversation, for backends make them in different ways.
//!
//! Invariant: a player's calls depend only on the script and the answers so far, so two stores that agree see the same.
//!
//! Deliberately absent: calls that break the contract's preconditions, about which backends may differ, and texts of
//! errors and log ids, which do.

mod player;

use std::fmt::Debug;

use conch_core::conversation::ConversationKind;
use conch_core::record::RecordKind;

pub use self::player::Player;
use super::{Fixture, Steals};
use crate::StoreError;

/// Nodes of a script; a node has several incarnations, one after the other.
const NODES: u64 = 3;
/// Conversations of a script.
const CONVERSATIONS: u64 = 3;
const SUBJECTS: [&str; 3] = ["alice", "bob", "@agent:demo"];
const KINDS: [RecordKind; 3] = [RecordKind::Message, RecordKind::Event, RecordKind::TurnStarted];
/// Idempotency keys a sender uses; few, so that duplicates are frequent.
const KEYS: u64 = 12;
/// Longest step of the clock, in milliseconds: a little more than a lease.
const STEP_MAX_MS: u64 = 16_000;

/// What a claim or an append goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// A claim: the head as it is. An append: the reign as the writer last knew it.
    Present,
    /// A claim: the claimant's own reign, over or not. An append: the reign as it was before its last write or claim.
    Remembered,
}

/// One conversation's part of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the numbers of a script, each within its bound")]
pub struct Part {
    pub conversation: u64,
    pub records: u64,
    pub first_key: u64,
    pub hole: u64,
    pub reserve: u64,
    pub due: u64,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the call of the same name, with the numbers of the script")]
pub enum Op {
    Register { node: u64 },
    Renew { node: u64 },
    Drain { node: u64 },
    Leave { node: u64 },
    Expel { node: u64 },
    DeclareExpired { node: u64, beats_ago: u64 },
    MoveClock { ms: i64 },
    Create { conversation: u64, kind: ConversationKind },
    Patch { conversation: u64, title: u64 },
    Claim { node: u64, conversation: u64, view: View },
    Release { node: u64, conversation: u64, unused: u64 },
    ReleaseWedged { node: u64, conversation: u64 },
    HandOff { node: u64, conversation: u64, to: u64 },
    Append { node: u64, view: View, parts: Vec<Part> },
    Range { conversation: u64, direction: u64, back: u64, limit: usize, kinds: u64 },
    CountAfter { conversation: u64, back: u64, limit: usize },
    Find { conversation: u64, sender: u64, key: u64 },
    Join { conversation: u64, sub: u64 },
    Part { conversation: u64, sub: u64 },
    Members { conversation: u64, after: u64, limit: usize },
    Cursor { conversation: u64, sub: u64, back: u64 },
    Summaries { sub: u64, limit: usize },
    Due { limit: usize },
    Checkpoint { node: u64, conversation: u64, version: u64 },
}

/// Numbers from the bits of a word.
struct Digits(u64);

impl Digits {
    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        let digit = self.0 % bound;
        self.0 /= bound;
        digit
    }

    fn node(&mut self) -> u64 {
        self.below(NODES)
    }

    fn conversation(&mut self) -> u64 {
        self.below(CONVERSATIONS)
    }

    fn subject(&mut self) -> u64 {
        self.below(SUBJECTS.len() as u64)
    }

    fn limit(&mut self) -> usize {
        usize::try_from(1 + self.below(6)).unwrap_or(1)
    }

    fn part(&mut self) -> Part {
        Part {
            conversation: self.conversation(),
            records: self.below(4),
            first_key: self.below(KEYS),
            hole: self.below(8) / 6,
            reserve: self.below(3) * 10,
            due: self.below(6),
        }
    }
}

impl Op {
    /// The step that a word stands for. Every word stands for one; the common calls are more frequent.
    #[must_use]
    pub fn of(word: u64) -> Self {
        let mut digits = Digits(word);
        let d = &mut digits;
        match d.below(48) {
            0..=3 => Self::Register { node: d.node() },
            4..=5 => Self::Renew { node: d.node() },
            6 => Self::Drain { node: d.node() },
            7 => Self::Leave { node: d.node() },
            8 => Self::Expel { node: d.node() },
            9 => Self::DeclareExpired { node: d.node(), beats_ago: d.below(3) / 2 },
            10 => Self::MoveClock { ms: i64::try_from(d.below(STEP_MAX_MS)).unwrap_or(0) },
            11 => Self::MoveClock { ms: i64::try_from(d.below(100)).unwrap_or(0) - 50 },
            12..=13 => Self::Create { conversation: d.conversation(), kind: kind(d.below(4)) },
            14 => Self::Patch { conversation: d.conversation(), title: d.below(3) },
            15..=20 => Self::Claim { node: d.node(), conversation: d.conversation(), view: View::Present },
            21 => Self::Claim { node: d.node(), conversation: d.conversation(), view: View::Remembered },
            22 => Self::Release { node: d.node(), conversation: d.conversation(), unused: d.below(3) },
            23 => Self::ReleaseWedged { node: d.node(), conversation: d.conversation() },
            24 => Self::HandOff { node: d.node(), conversation: d.conversation(), to: d.node() },
            25..=36 => {
                let node = d.node();
                let view = if d.below(6) == 0 { View::Remembered } else { View::Present };
                let parts = 1 + d.below(2);
                Self::Append { node, view, parts: (0..parts).map(|_| d.part()).collect() }
            }
            37 => Self::Range {
                conversation: d.conversation(),
                direction: d.below(3),
                back: d.below(8),
                limit: d.limit(),
                kinds: d.below(4),
            },
            38 => Self::CountAfter { conversation: d.conversation(), back: d.below(8), limit: d.limit() },
            39 => Self::Find { conversation: d.conversation(), sender: d.subject(), key: d.below(KEYS) },
            40 => Self::Join { conversation: d.conversation(), sub: d.subject() },
            41 => Self::Part { conversation: d.conversation(), sub: d.subject() },
            42 => Self::Members { conversation: d.conversation(), after: d.below(4), limit: d.limit() },
            43 => Self::Cursor { conversation: d.conversation(), sub: d.subject(), back: d.below(8) },
            44 => Self::Summaries { sub: d.subject(), limit: d.limit() },
            45 => Self::Due { limit: d.limit() },
            _ => Self::Checkpoint { node: d.node(), conversation: d.conversation(), version: d.below(4) },
        }
    }
}

fn kind(number: u64) -> ConversationKind {
    match number {
        0 => ConversationKind::Direct,
        1 => ConversationKind::Session,
        _ => ConversationKind::Channel,
    }
}

/// What a store answered, as text: equal answers have equal texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(pub String);

impl Answer {
    fn of(answer: Result<impl Debug, StoreError>) -> Self {
        Self(match answer {
            Ok(value) => format!("{value:?}"),
            Err(error) => format!("failed: {}", class(&error)),
        })
    }

    fn not_played() -> Self {
        Self("not played".to_owned())
    }
}

/// A failure without its text.
fn class(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(_) => "unavailable",
        StoreError::Ambiguous(_) => "ambiguous",
        StoreError::Full(_) => "full",
        StoreError::Damaged(_) => "damaged",
        StoreError::Collision => "collision",
    }
}

/// Plays the script of these words against both, and says at which step and how they first differ.
///
/// # Errors
/// A sentence with the step and both answers.
pub async fn compare(words: &[u64], left: &dyn Fixture, right: &dyn Fixture) -> Result<Vec<Answer>, String> {
    // Where one of the two refuses to steal, neither is asked to.
    let refused = [left, right].iter().any(|fixture| fixture.steals() == Steals::Refused);
    let steals = if refused { Steals::Refused } else { Steals::Granted };
    let (mut left, mut right) = (Player::new(left, steals), Player::new(right, steals));
    let mut answers = Vec::with_capacity(words.len());
    for (step, word) in words.iter().enumerate() {
        let op = Op::of(*word);
        let (a, b) = (left.play(&op).await, right.play(&op).await);
        if a != b {
            return Err(format!("step {step}, {op:?}:\n  left:  {}\n  right: {}", a.0, b.0));
        }
        answers.push(a);
    }
    let (a, b) = (left.everything().await, right.everything().await);
    match a.iter().zip(&b).find(|(a, b)| a != b) {
        Some((a, b)) => Err(format!("at the end:\n  left:  {}\n  right: {}", a.0, b.0)),
        None => Ok(answers),
    }
}
