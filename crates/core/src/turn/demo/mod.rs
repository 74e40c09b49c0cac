//! The demo agent: a script that shows a whole turn (thinking, a tool call, an answer; an approval when the text asks for
//! one) without a key or a network.
//!
//! Invariant: the script follows from what was asked, the turn and the pace alone, and what it says is true: the tool's
//! result is computed, and the agent does not pretend to understand.
//!
//! Deliberately absent: time. The script says how long to wait; the runner waits.

mod arithmetic;

use std::time::Duration;

use serde_json::{Value, json};

use crate::ids::Seq;
use crate::turn::StepId;
use crate::turn::result::{AskedCall, StepResult, ToolStatus, Usage};

use self::arithmetic::{Calculated, Calculation};

/// Time between two words unless the configuration says otherwise; a turn then takes about ten seconds.
pub const DEFAULT_PACE: Duration = Duration::from_millis(120);
/// How many words' time the tool takes.
const TOOL_PACES: u32 = 10;
/// Most characters of the user's text that the answer repeats.
const QUOTE_MAX_CHARACTERS: usize = 120;

/// What the demo agent does in one turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// The steps, in order. The last is a model call, whose text is the answer.
    pub steps: Vec<ScriptedStep>,
    /// Somebody is to approve the second step first: the question.
    pub approval: Option<&'static str>,
}

/// What the agent is asked, and what it was told since.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asked<'a> {
    /// The input's text; `None` for an event without one.
    pub text: Option<&'a str>,
    /// The texts of inputs that joined the turn.
    pub joined: &'a [String],
    /// What came of the approval.
    pub decision: Decision,
}

/// What came of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Decision {
    /// It was not asked for, or is given.
    #[default]
    Approved,
    /// Somebody said no.
    Declined,
    /// Nobody said anything in time.
    Expired,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedStep {
    /// Its name.
    pub step: StepId,
    /// What is streamed; nothing for a tool call.
    pub pieces: Vec<TimedText>,
    /// The time between the last piece and the result.
    pub takes: Duration,
    /// Its result.
    pub result: StepResult,
}

/// A piece of text, and how long after the one before it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedText {
    /// The wait before it.
    pub after: Duration,
    /// The text.
    pub text: String,
}

impl Script {
    /// The text of the last model call.
    #[must_use]
    pub fn answer(&self) -> &str {
        match self.steps.last().map(|step| &step.result) {
            Some(StepResult::Model { output, .. }) => output,
            _ => "",
        }
    }
}

/// The script for what is asked.
#[must_use]
pub fn script(asked: Asked<'_>, turn: Seq, pace: Duration) -> Script {
    let Asked { text, joined, decision } = asked;
    let tool = choose_tool(question(text.unwrap_or_default()), turn);
    let approval = text.filter(|text| wants_approval(text)).map(|_| "May I use my tool?");
    let ask_first = if approval.is_some() { " You want to be asked first, so I wait for your approval." } else { "" };
    let thinking = format!(
        "Hello, I am the demo agent. There is no language model behind me, only a script, but my tools are real. {}{ask_first}",
        tool.intention
    );
    let finding = match decision {
        Decision::Approved => tool.finding(text),
        Decision::Declined => "You did not approve, so I did not use my tool.".to_owned(),
        Decision::Expired => "Nobody answered in time, so I did not use my tool.".to_owned(),
    };
    let meanwhile: String = joined.iter().map(|text| format!("Meanwhile you wrote: “{}” ", quotation(text))).collect();
    let answer = format!("{finding} {meanwhile}{}", closing(turn));
    let asks = AskedCall { name: tool.name.to_owned(), input: tool.input.clone(), id: None };
    let call = StepResult::Tool {
        name: tool.name.to_owned(),
        input: tool.input,
        output: tool.output,
        status: ToolStatus::Done,
    };
    let mut first = model_step(StepId::model(1), thinking, pace);
    if let StepResult::Model { calls, .. } = &mut first.result {
        calls.push(asks);
    }
    let mut steps = vec![first];
    if decision == Decision::Approved {
        let takes = pace * TOOL_PACES;
        steps.push(ScriptedStep { step: StepId::tool(1, 0), pieces: Vec::new(), takes, result: call });
    }
    steps.push(model_step(StepId::model(2), answer, pace));
    Script { steps, approval }
}

/// What is asked, without a "with my approval:" before it.
fn question(text: &str) -> &str {
    match text.split_once(':') {
        Some((before, question)) if wants_approval(before) => question,
        _ => text,
    }
}

/// True if the text asks to be asked.
fn wants_approval(text: &str) -> bool {
    text.split(|c: char| !c.is_alphabetic())
        .any(|word| ["approve", "approval", "permission"].iter().any(|wanted| word.eq_ignore_ascii_case(wanted)))
}

struct ToolCall {
    name: &'static str,
    intention: &'static str,
    input: Value,
    output: Value,
    says: Says,
}

enum Says {
    Calculated(String),
    Counted { words: usize, characters: usize },
}

fn choose_tool(text: &str, turn: Seq) -> ToolCall {
    if let Some(Calculation { expression, result }) = arithmetic::calculate(text) {
        let (output, says) = match result {
            Calculated::Exact(value) => {
                (json!({ "result": value, "exact": true }), format!("{expression} is {value}, exactly."))
            }
            Calculated::Rounded(value) => {
                (json!({ "result": value, "exact": false }), format!("{expression} is about {value}, rounded."))
            }
            Calculated::DividesByZero => (
                json!({ "error": "division by zero" }),
                format!("{expression} divides by zero, and so it has no result."),
            ),
            Calculated::TooLarge => (
                json!({ "error": "too large" }),
                format!("{expression} needs larger numbers than my calculator can hold."),
            ),
        };
        return ToolCall {
            name: "calculator",
            intention: "Your message looks like a calculation, so let me work it out.",
            input: json!({ "expression": expression }),
            output,
            says: Says::Calculated(says),
        };
    }
    let (words, characters) = (text.split_whitespace().count(), text.chars().count());
    ToolCall {
        name: "word_count",
        intention: "Let me count the words of your message.",
        // By number: a copy of the text would outlive its erasure.
        input: json!({ "message": turn }),
        output: json!({ "words": words, "characters": characters }),
        says: Says::Counted { words, characters },
    }
}

impl ToolCall {
    fn finding(&self, text: Option<&str>) -> String {
        match (&self.says, text) {
            (Says::Calculated(says), _) => format!("I asked my calculator: {says}"),
            (Says::Counted { .. }, None) => "Your event carries no text, so there was nothing to count.".to_owned(),
            (Says::Counted { words, characters }, Some(text)) => format!(
                "You wrote: “{}” My tool counted {} and {} in it.",
                quotation(text),
                plural(*words, "word"),
                plural(*characters, "character")
            ),
        }
    }
}

fn closing(turn: Seq) -> &'static str {
    match turn.0 % 3 {
        0 => {
            "Each step that you just saw is a record in the log of this conversation, and so is this answer: reload the page, or open it from another place, and you will find them all. Send me something like 12 * (3 + 4), and I will calculate."
        }
        1 => {
            "Everyone who watches this conversation sees these words as they arrive, and whoever joins in the middle of them gets the beginning too. Try it with a second window. Send me something like 7 / 4 + 0.25, and I will calculate."
        }
        _ => {
            "You need not wait for me to finish: another message that you send while I speak is kept, and gets a turn of its own after this one. Send me something like (2 + 3) * 4, and I will calculate instead of count."
        }
    }
}

/// The text for showing it within a sentence: on one line, without control and direction marks, and not too long.
fn quotation(text: &str) -> String {
    let is_mark = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut characters = line.chars().filter(|c| !is_mark(*c));
    let mut quotation: String = characters.by_ref().take(QUOTE_MAX_CHARACTERS).collect();
    if characters.next().is_some() {
        quotation.push('…');
    }
    quotation
}

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

fn model_step(step: StepId, output: String, pace: Duration) -> ScriptedStep {
    let pieces = output.split_inclusive(' ').map(|word| TimedText { after: pace, text: word.to_owned() }).collect();
    let result = StepResult::Model { output, calls: Vec::new(), usage: Usage::default() };
    ScriptedStep { step, pieces, takes: Duration::ZERO, result }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(text: &str) -> Asked<'_> {
        Asked { text: Some(text), ..Asked::default() }
    }

    #[test]
    fn a_text_that_asks_for_it_is_asked_about_and_a_no_is_obeyed() {
        let text = "With my approval: what is 6 * 7?";
        let before = script(asked(text), Seq(3), DEFAULT_PACE);
        assert_eq!(before.approval, Some("May I use my tool?"));
        assert_eq!(script(asked("disapproved 6 * 7"), Seq(3), DEFAULT_PACE).approval, None);
        for decision in [Decision::Declined, Decision::Expired] {
            let script = script(Asked { decision, ..asked(text) }, Seq(3), DEFAULT_PACE);
            assert_eq!(script.steps.len(), 2, "no tool is used");
            assert_eq!(script.steps[0], before.steps[0], "what is done already does not depend on it");
            assert!(!script.answer().contains("42"), "{}", script.answer());
        }
        assert!(before.answer().contains("6 * 7 is 42"));
    }

    #[test]
    fn what_joins_is_answered_too() {
        let joined = ["and 1 more".to_owned()];
        let with = Asked { joined: &joined, ..asked("hello") };
        let answer = script(with, Seq(3), DEFAULT_PACE).answer().to_owned();
        assert!(answer.contains("Meanwhile you wrote: “and 1 more”"), "{answer}");
    }

    fn length(script: &Script) -> Duration {
        let of = |step: &ScriptedStep| step.takes + step.pieces.iter().map(|piece| piece.after).sum::<Duration>();
        script.steps.iter().map(of).sum()
    }

    #[test]
    fn words_are_counted_and_quoted() {
        let script = script(asked("  Guten Tag,\nliebe Welt 🌍 "), Seq(3), DEFAULT_PACE);
        let StepResult::Tool { name, input, output, .. } = &script.steps[1].result else { panic!("a tool call") };
        assert_eq!(name, "word_count");
        assert_eq!(input, &json!({ "message": 3 }));
        assert_eq!(output, &json!({ "words": 5, "characters": 26 }));
        let says = "You wrote: “Guten Tag, liebe Welt 🌍” My tool counted 5 words and 26 characters in it. ";
        assert!(script.answer().starts_with(says), "{}", script.answer());
    }

    #[test]
    fn calculations_are_calculated() {
        let script = script(asked("What is 12 * (3 + 4)?"), Seq(3), DEFAULT_PACE);
        let StepResult::Tool { name, input, output, .. } = &script.steps[1].result else { panic!("a tool call") };
        assert_eq!(name, "calculator");
        assert_eq!(input, &json!({ "expression": "12 * (3 + 4)" }));
        assert_eq!(output, &json!({ "result": "84", "exact": true }));
        assert!(script.answer().starts_with("I asked my calculator: 12 * (3 + 4) is 84, exactly. "));
    }

    #[test]
    fn an_event_without_text_is_said_to_have_none() {
        let script = script(Asked::default(), Seq(3), DEFAULT_PACE);
        assert!(script.answer().starts_with("Your event carries no text, so there was nothing to count. "));
    }

    #[test]
    fn steps_have_their_names_and_a_turn_takes_about_ten_seconds() {
        for turn in 0..3 {
            let script = script(asked("hello there, how are you?"), Seq(turn), DEFAULT_PACE);
            let names: Vec<&str> = script.steps.iter().map(|step| step.step.as_str()).collect();
            assert_eq!(names, ["m1", "m1.t0", "m2"]);
            let seconds = length(&script).as_secs_f64();
            assert!((9.0..12.5).contains(&seconds), "{seconds} s");
        }
    }

    #[test]
    fn long_texts_and_marks_are_tamed() {
        let long = format!("\u{202e}a\u{0}b {}", "word ".repeat(10_000));
        let quoted = quotation(&long);
        assert!(quoted.starts_with("ab word word"));
        assert!(quoted.ends_with('…'));
        assert_eq!(quoted.chars().count(), QUOTE_MAX_CHARACTERS + 1);
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_result_and_the_script_follows_from_its_input(text in any::<String>(), turn in any::<u64>()) {
            let once = script(asked(&text), Seq(turn), DEFAULT_PACE);
            prop_assert_eq!(&once, &script(asked(&text), Seq(turn), DEFAULT_PACE));
            for step in &once.steps {
                let streamed: String = step.pieces.iter().map(|piece| piece.text.as_str()).collect();
                match &step.result {
                    StepResult::Model { output, .. } => prop_assert_eq!(&streamed, output),
                    StepResult::Tool { .. } | StepResult::Own { .. } => prop_assert!(step.pieces.is_empty()),
                }
            }
            prop_assert!(!once.answer().is_empty());
        }
    }
}
