//! What is streamed beside the log: events without a seq, and the fold that shows a joining viewer the same as one who
//! was there from the start.
//!
//! Invariant of [`LiveView`]: its snapshot, followed by the events after it, leaves a viewer with the text that a viewer
//! of all events has. So the text of a step stays when the step completes: those who watch still show it, until the next
//! step streams or the turn's end brings the answer as a record.
//!
//! Deliberately absent: durability. Live events may be dropped; a snapshot heals every loss.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, Seq, Subject};
use crate::record::{Record, RecordKind};
use crate::turn::StepId;

/// Most text of one step that is kept for snapshots, in bytes (1 MiB). No step's result may be larger.
pub const LIVE_TEXT_MAX_BYTES: usize = 1024 * 1024;

/// An event without a seq. Serialises to its payload; [`LiveEvent::name`] is its event name on every transport.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LiveEvent {
    /// More text of a step. It fits where the text so far is `offset` long.
    Delta(Piece),
    /// What was streamed of this step is void; it starts again.
    StepReset {
        /// The turn.
        turn: Seq,
        /// The step.
        step: StepId,
        /// The epoch of the owner that runs it now.
        epoch: Epoch,
        /// Counts the step's runs from 1.
        attempt: u32,
    },
    /// Another owner goes on with the turn.
    TurnResumed {
        /// The turn.
        turn: Seq,
        /// Its epoch.
        epoch: Epoch,
    },
    /// All text of a step so far; replaces what is shown. The next delta fits at `offset`, the text's length.
    Snapshot(Piece),
    /// Somebody types.
    Typing {
        /// Who.
        sender: Subject,
        /// Their display name.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<Arc<str>>,
    },
}

/// A piece of a step's text and where it belongs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The turn.
    pub turn: Seq,
    /// The step.
    pub step: StepId,
    /// The epoch of the owner that streams it.
    pub epoch: Epoch,
    /// Counts the step's runs from 1.
    pub attempt: u32,
    /// In UTF-16 code units, as JavaScript counts: where a delta begins, or where a snapshot ends.
    pub offset: u64,
    /// The text.
    pub text: Arc<str>,
}

impl LiveEvent {
    /// The event's name on SSE and channels.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Delta(_) => "delta",
            Self::StepReset { .. } => "step.reset",
            Self::TurnResumed { .. } => "turn.resumed",
            Self::Snapshot(_) => "turn.snapshot",
            Self::Typing { .. } => "typing",
        }
    }

    /// The payload: compact JSON, without white space outside strings.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts always serialise")
    }

    /// What [`LiveEvent::name`] and [`LiveEvent::encode`] gave, but for typing; `None`: it is none of these.
    #[must_use]
    pub fn decode(name: &str, payload: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Reset {
            turn: Seq,
            step: StepId,
            epoch: Epoch,
            attempt: u32,
        }
        #[derive(Deserialize)]
        struct Resumed {
            turn: Seq,
            epoch: Epoch,
        }
        match name {
            "delta" => serde_json::from_str(payload).ok().map(Self::Delta),
            "turn.snapshot" => serde_json::from_str(payload).ok().map(Self::Snapshot),
            "step.reset" => {
                let Reset { turn, step, epoch, attempt } = serde_json::from_str(payload).ok()?;
                Some(Self::StepReset { turn, step, epoch, attempt })
            }
            "turn.resumed" => {
                let Resumed { turn, epoch } = serde_json::from_str(payload).ok()?;
                Some(Self::TurnResumed { turn, epoch })
            }
            _ => None,
        }
    }

    /// The turn that it belongs to, but for typing.
    #[must_use]
    pub fn turn(&self) -> Option<Seq> {
        match self {
            Self::Delta(piece) | Self::Snapshot(piece) => Some(piece.turn),
            Self::StepReset { turn, .. } | Self::TurnResumed { turn, .. } => Some(*turn),
            Self::Typing { .. } => None,
        }
    }
}

/// The length of a text in UTF-16 code units.
#[must_use]
pub fn utf16_len(text: &str) -> u64 {
    text.chars().map(|character| character.len_utf16() as u64).sum()
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It fits; the view has it.
    Fits,
    /// It is older than what the view has: do not pass it on.
    Stale,
    /// Something before it is missing, or the text is over the limit: nothing can be shown before the next snapshot,
    /// reset or step. Whoever follows another node asks it for a snapshot.
    Gap,
}

/// The text that a viewer shows: all of a step's so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShownText<'a> {
    /// The turn.
    pub turn: Seq,
    /// The step.
    pub step: &'a StepId,
    /// The epoch of the owner that streams it.
    pub epoch: Epoch,
    /// Counts the step's runs from 1.
    pub attempt: u32,
    /// The text.
    pub text: &'a str,
}

/// The live text of a conversation, at most one step's. Kept by the owner and by every hub.
#[derive(Debug, Clone, Default)]
pub struct LiveView {
    /// The last turn known to have started.
    started: Seq,
    /// The last of those known to have ended; live events of it and of those before it are stale. The end of an input that
    /// waited says nothing about the turn that runs.
    ended: Seq,
    /// The highest epoch seen; whatever an earlier owner still streams is stale.
    epoch: Epoch,
    shown: Option<Shown>,
}

#[derive(Debug, Clone)]
struct Shown {
    turn: Seq,
    step: StepId,
    epoch: Epoch,
    attempt: u32,
    state: TextState,
    text: String,
    /// The text's length in UTF-16 code units.
    offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextState {
    /// The step streams and the text is all of it.
    Whole,
    /// The step is completed: its text stays, and no more may come.
    Completed,
    /// A piece is missing.
    Torn,
}

impl LiveView {
    /// Applies an event.
    pub fn apply(&mut self, event: &LiveEvent) -> Applied {
        match event {
            LiveEvent::Typing { .. } => return Applied::Fits,
            _ if event.turn().is_some_and(|turn| turn <= self.ended) => return Applied::Stale,
            _ => {}
        }
        match event {
            LiveEvent::Delta(piece) => self.delta(piece),
            LiveEvent::Snapshot(piece) => self.replace(piece),
            LiveEvent::StepReset { turn, step, epoch, attempt } => self.replace(&Piece {
                turn: *turn,
                step: step.clone(),
                epoch: *epoch,
                attempt: *attempt,
                offset: 0,
                text: "".into(),
            }),
            LiveEvent::TurnResumed { epoch, .. } if *epoch < self.epoch => Applied::Stale,
            LiveEvent::TurnResumed { epoch, .. } => {
                // The old text stays until the new owner resets its step, as it does on the screen of a viewer.
                self.epoch = *epoch;
                Applied::Fits
            }
            LiveEvent::Typing { .. } => Applied::Fits,
        }
    }

    /// Takes note of a committed record: a turn's end drops its text, a completed step gets no more.
    pub fn committed(&mut self, record: &Record) {
        let Some(turn) = record.turn else { return };
        if record.kind == RecordKind::TurnStarted {
            self.started = self.started.max(turn);
        } else if record.kind.ends_turn() {
            if turn <= self.started {
                self.ended = self.ended.max(turn);
            }
            self.shown = self.shown.take().filter(|shown| shown.turn != turn && shown.turn > self.ended);
        } else if record.kind == RecordKind::StepCompleted
            && let Some(shown) =
                self.shown.as_mut().filter(|shown| shown.turn == turn && shown.state == TextState::Whole)
            && record.body.to_value().get("step").and_then(serde_json::Value::as_str) == Some(shown.step.as_str())
        {
            shown.state = TextState::Completed;
        }
    }

    /// What is shown now; `None`: nothing was streamed, or it is torn.
    #[must_use]
    pub fn shown(&self) -> Option<ShownText<'_>> {
        let shown = self.shown.as_ref().filter(|shown| shown.state != TextState::Torn)?;
        let Shown { turn, ref step, epoch, attempt, ref text, .. } = *shown;
        Some(ShownText { turn, step, epoch, attempt, text })
    }

    /// What a viewer who joins now gets after the records; `None`: nothing was streamed, or it is torn.
    #[must_use]
    pub fn snapshot(&self) -> Option<LiveEvent> {
        let shown = self.shown.as_ref().filter(|shown| shown.state != TextState::Torn)?;
        Some(LiveEvent::Snapshot(Piece {
            turn: shown.turn,
            step: shown.step.clone(),
            epoch: shown.epoch,
            attempt: shown.attempt,
            offset: shown.offset,
            text: shown.text.as_str().into(),
        }))
    }

    fn delta(&mut self, piece: &Piece) -> Applied {
        match self.place(piece) {
            Place::Before => return Applied::Stale,
            // A step's text begins with its first piece; without that, it cannot be shown.
            Place::Beyond => self.show(piece, 0, ""),
            Place::Same => {}
        }
        let Some(shown) = &mut self.shown else { return Applied::Gap };
        match shown.state {
            TextState::Completed => return Applied::Stale,
            TextState::Torn => return Applied::Gap,
            TextState::Whole if piece.offset < shown.offset => return Applied::Stale,
            TextState::Whole => {}
        }
        if piece.offset > shown.offset || shown.text.len() + piece.text.len() > LIVE_TEXT_MAX_BYTES {
            shown.state = TextState::Torn;
            shown.text = String::new();
            return Applied::Gap;
        }
        shown.text.push_str(&piece.text);
        shown.offset += utf16_len(&piece.text);
        Applied::Fits
    }

    fn replace(&mut self, piece: &Piece) -> Applied {
        let older = match self.place(piece) {
            Place::Before => true,
            Place::Same => {
                self.shown.as_ref().is_some_and(|shown| shown.state != TextState::Torn && piece.offset < shown.offset)
            }
            Place::Beyond => false,
        };
        if older {
            return Applied::Stale;
        }
        if self.shown.as_ref().is_some_and(|shown| shown.holds(piece)) {
            return Applied::Fits;
        }
        if piece.text.len() > LIVE_TEXT_MAX_BYTES {
            self.show(piece, 0, "");
            return Applied::Gap;
        }
        self.show(piece, piece.offset, &piece.text);
        Applied::Fits
    }

    /// Where a piece's run stands to what is shown. Steps have no order of their own: one owner streams them in theirs,
    /// so another step of the same or a later epoch is the next one.
    fn place(&self, piece: &Piece) -> Place {
        if piece.epoch < self.epoch {
            return Place::Before;
        }
        let Some(shown) = &self.shown else { return Place::Beyond };
        if piece.turn != shown.turn {
            return if piece.turn < shown.turn { Place::Before } else { Place::Beyond };
        }
        if piece.epoch > shown.epoch || piece.step != shown.step {
            return Place::Beyond;
        }
        match piece.attempt.cmp(&shown.attempt) {
            std::cmp::Ordering::Less => Place::Before,
            std::cmp::Ordering::Equal => Place::Same,
            std::cmp::Ordering::Greater => Place::Beyond,
        }
    }

    fn show(&mut self, piece: &Piece, offset: u64, text: &str) {
        self.epoch = self.epoch.max(piece.epoch);
        self.started = self.started.max(piece.turn);
        self.shown = Some(Shown {
            turn: piece.turn,
            step: piece.step.clone(),
            epoch: piece.epoch,
            attempt: piece.attempt,
            state: TextState::Whole,
            text: text.to_owned(),
            offset,
        });
    }
}

impl Shown {
    /// True for a snapshot of what is here already; a completed step stays completed.
    fn holds(&self, piece: &Piece) -> bool {
        let same = self.turn == piece.turn && self.step == piece.step && self.epoch == piece.epoch;
        same && self.attempt == piece.attempt && self.offset == piece.offset && self.state != TextState::Torn
    }
}

enum Place {
    Before,
    Same,
    Beyond,
}
