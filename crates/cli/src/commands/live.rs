//! An agent's answer while it is written: which deltas to show, and when what was shown is void.
//!
//! Invariant: the text on the screen is a prefix of one attempt's text. Order is (epoch, attempt, offset); a delta is taken
//! only where it fits, a snapshot replaces (docs/PROTOCOL.md, "Server-Sent Events").

use serde::Deserialize;

/// A piece of an agent's text; also a snapshot, with its offset 0.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Piece {
    /// The turn: the seq of its input.
    pub(super) turn: u64,
    /// The step within it.
    #[serde(default)]
    pub(super) step: String,
    /// The owner's epoch.
    #[serde(default)]
    pub(super) epoch: u64,
    /// The attempt of this step.
    #[serde(default)]
    pub(super) attempt: u64,
    /// Where the text begins, in UTF-16 code units. A snapshot's offset is its end, and is not needed.
    #[serde(default)]
    pub(super) offset: u64,
    /// The text.
    pub(super) text: String,
}

/// What to do on the screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// Nothing: late, doubled, or not yet fitting.
    Nothing,
    /// Begin a new line for this turn, then this text.
    Begin(String),
    /// Go on with this text.
    Append(String),
    /// What was shown is void: begin again with this text.
    Replace(String),
}

/// What is on the screen of the turn that is being written.
#[derive(Debug, Default)]
pub(super) struct LiveText {
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    turn: u64,
    step: String,
    order: (u64, u64),
    text: String,
    end_utf16: u64,
}

impl LiveText {
    /// A delta.
    pub(super) fn delta(&mut self, piece: Piece) -> Show {
        let order = (piece.epoch, piece.attempt);
        let length = utf16_length(&piece.text);
        match &mut self.current {
            Some(current) if current.turn == piece.turn && current.step == piece.step => {
                if order == current.order && piece.offset == current.end_utf16 {
                    current.text.push_str(&piece.text);
                    current.end_utf16 += length;
                    return Show::Append(piece.text);
                }
                if order > current.order && piece.offset == 0 {
                    return self.start(piece, Show::Replace);
                }
                Show::Nothing
            }
            Some(current) if (piece.turn, order.0) < (current.turn, current.order.0) => Show::Nothing,
            _ if piece.offset == 0 => self.start(piece, Show::Begin),
            _ => Show::Nothing,
        }
    }

    /// A snapshot: the whole text so far.
    pub(super) fn snapshot(&mut self, piece: Piece) -> Show {
        let order = (piece.epoch, piece.attempt);
        let Some(current) = &mut self.current else { return self.start(piece, Show::Begin) };
        if current.turn != piece.turn || current.step != piece.step {
            return self.start(piece, Show::Begin);
        }
        match piece.text.strip_prefix(current.text.as_str()) {
            Some(rest) if order == current.order => {
                let rest = rest.to_owned();
                current.end_utf16 += utf16_length(&rest);
                current.text = piece.text;
                if rest.is_empty() { Show::Nothing } else { Show::Append(rest) }
            }
            _ if order < current.order => Show::Nothing,
            _ => self.start(piece, Show::Replace),
        }
    }

    /// The end of what was being written, for another line or because the turn ended: the text that was shown, if it is
    /// this turn's.
    pub(super) fn finish(&mut self, turn: u64) -> Option<String> {
        match &self.current {
            Some(current) if current.turn == turn => self.current.take().map(|current| current.text),
            _ => None,
        }
    }

    fn start(&mut self, piece: Piece, show: impl FnOnce(String) -> Show) -> Show {
        let Piece { turn, step, epoch, attempt, text, .. } = piece;
        self.current =
            Some(Current { turn, step, order: (epoch, attempt), end_utf16: utf16_length(&text), text: text.clone() });
        show(text)
    }
}

fn utf16_length(text: &str) -> u64 {
    text.encode_utf16().count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(attempt: u64, offset: u64, text: &str) -> Piece {
        Piece { turn: 5, step: "m1".to_owned(), epoch: 1, attempt, offset, text: text.to_owned() }
    }

    #[test]
    fn deltas_are_taken_where_they_fit() {
        let mut live = LiveText::default();
        assert_eq!(live.delta(piece(1, 3, "late joiner")), Show::Nothing, "its beginning is not known");
        assert_eq!(live.delta(piece(1, 0, "a😀")), Show::Begin("a😀".to_owned()));
        assert_eq!(live.delta(piece(1, 0, "a😀")), Show::Nothing, "doubled");
        assert_eq!(live.delta(piece(1, 9, "x")), Show::Nothing, "a gap");
        assert_eq!(live.delta(piece(1, 3, "b")), Show::Append("b".to_owned()), "the emoji is two UTF-16 units");
        assert_eq!(live.finish(4), None);
        assert_eq!(live.finish(5).as_deref(), Some("a😀b"));
    }

    #[test]
    fn another_attempt_voids_what_was_shown() {
        let mut live = LiveText::default();
        live.delta(piece(1, 0, "old"));
        assert_eq!(live.delta(piece(2, 0, "new")), Show::Replace("new".to_owned()));
        assert_eq!(live.delta(piece(1, 3, "zombie")), Show::Nothing);
    }

    #[test]
    fn a_snapshot_adds_only_what_is_missing() {
        let mut live = LiveText::default();
        assert_eq!(live.snapshot(piece(1, 0, "one")), Show::Begin("one".to_owned()));
        assert_eq!(live.snapshot(piece(1, 0, "one two")), Show::Append(" two".to_owned()));
        assert_eq!(live.snapshot(piece(1, 0, "one two")), Show::Nothing);
        assert_eq!(live.delta(piece(1, 7, "!")), Show::Append("!".to_owned()));
        assert_eq!(live.snapshot(piece(2, 0, "other")), Show::Replace("other".to_owned()));
    }
}
