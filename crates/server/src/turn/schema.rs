//! Whether what resolves an await fits the JSON Schema that its agent gave, and whether arguments fit a tool's.
//!
//! Invariants: a schema means the same on every node and for ever, for nothing outside of it is read; no schema and no value,
//! from wherever they come, take more than a bounded number of frames and steps to read and to check
//! ([`conch_core::schema`] counts before anything else looks). A schema that cannot be read opens no await, so that nobody is
//! asked for what nothing can fit.
//!
//! Deliberately absent: formats, which are notes as the standard has it; and the decision which answer counts, which is the
//! owner's.

use std::collections::BTreeMap;
use std::fmt::Display;

use conch_core::ids::{ConvRef, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::schema::{self, Cost};
use conch_core::turn::cancel::Resolve;
use conch_core::turn::journal;
use conch_store::{Store, StoreError};
use jsonschema::{PatternOptions, Validator};
use serde_json::{Value, json};

use crate::owner::store_refusal;
use crate::turn::lookup;

/// Most characters of what is said about a schema or a payload.
const PROBLEM_MAX_CHARACTERS: usize = 300;
/// Most bytes that one pattern may take when it is compiled, and where looking for that begins.
const PATTERN_MAX_BYTES: usize = 64 * 1024;
const PATTERN_MIN_BYTES: usize = 1024;
/// Most bytes that all patterns of a schema may take, those that are written twice counted once.
const PATTERNS_MAX_BYTES: usize = 256 * 1024;
/// Most bytes of all their texts, for classes of characters are large before they are made small.
const PATTERNS_MAX_TEXT: usize = 8 * 1024;
/// Steps of checking one byte by a pattern of [`PATTERN_MIN_BYTES`], at worst. A step is one value by one value of a schema.
const PATTERN_STEPS: u64 = 64;
/// Most steps of checking an answer: some tens of milliseconds. It is checked on a thread that serves others.
const ANSWER_MAX_STEPS: u64 = 4_000_000;
/// Most steps of checking arguments, by a schema that an operator wrote.
const ARGUMENTS_MAX_STEPS: u64 = 10 * ANSWER_MAX_STEPS;
/// Most steps where the place that does not fit is looked for; each may make an error that is kept meanwhile.
const PLACE_MAX_STEPS: u64 = 100_000;

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schema{place}: {problem}")]
pub struct InvalidSchema {
    /// Where in it, as a JSON Pointer.
    place: String,
    problem: String,
}

/// A JSON Schema, of draft 2020-12 unless it names another one.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    cost: Cost,
}

impl Schema {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none, is not within the bounds of [`schema::cost`], or has a pattern that may take more than linear time or
    /// too much memory.
    pub fn read(schema: &Value) -> Result<Self, InvalidSchema> {
        let mut patterns = Patterns::default();
        let cost = schema::cost(schema, &mut |pattern| patterns.weigh(pattern))
            .map_err(|unbounded| InvalidSchema { place: String::new(), problem: short(unbounded) })?;
        build(schema, PATTERN_MAX_BYTES).map(|validator| Self { validator, cost })
    }

    /// Does the payload of an answer fit?
    ///
    /// # Errors
    /// [`Code::UnprocessableRequest`] that names the first place where it does not, as a JSON Pointer, or that it is too large
    /// to be checked by this schema.
    pub fn check(&self, payload: &Value) -> Result<(), Refusal> {
        let misfit = self.misfit_within(payload, ANSWER_MAX_STEPS);
        misfit.map_or(Ok(()), |problem| Err(Refusal::new(Code::UnprocessableRequest, format!("payload{problem}"))))
    }

    /// The first place where arguments do not fit, as a JSON Pointer, and why, without their words; `None`: they do.
    #[must_use]
    pub fn misfit(&self, arguments: &Value) -> Option<String> {
        self.misfit_within(arguments, ARGUMENTS_MAX_STEPS)
    }

    fn misfit_within(&self, value: &Value, most: u64) -> Option<String> {
        let steps = self.steps(value);
        if steps > most {
            return Some(format!(": is too large for its schema: checking it takes {steps} steps, at most {most}"));
        }
        if self.validator.is_valid(value) {
            return None;
        }
        if steps > PLACE_MAX_STEPS {
            return Some(": does not fit its schema".to_owned());
        }
        self.validator
            .validate(value)
            .err()
            .map(|error| format!("{}: {}", error.instance_path(), short(error.masked())))
    }

    /// How many steps checking a value takes at most.
    fn steps(&self, value: &Value) -> u64 {
        let values = schema::weight(value).saturating_mul(self.cost.expanded);
        if self.cost.patterns == 0 {
            return values;
        }
        let bytes = value.to_string().len() as u64;
        bytes.saturating_mul(self.cost.patterns).saturating_mul(PATTERN_STEPS).saturating_add(values)
    }
}

/// What the patterns of a schema weigh, each by the multiple of [`PATTERN_MIN_BYTES`] that it takes.
#[derive(Default)]
struct Patterns {
    known: BTreeMap<String, u64>,
    bytes: usize,
    text: usize,
}

impl Patterns {
    fn weigh(&mut self, pattern: &str) -> Result<u64, String> {
        if let Some(weight) = self.known.get(pattern) {
            return Ok(*weight);
        }
        self.text += pattern.len();
        if self.text > PATTERNS_MAX_TEXT {
            return Err(format!("patterns must be at most {PATTERNS_MAX_TEXT} bytes together"));
        }
        let alone = json!({ "pattern": pattern });
        let sizes = std::iter::successors(Some(PATTERN_MIN_BYTES), |bytes| Some(bytes * 2));
        let size = sizes.take_while(|bytes| *bytes <= PATTERN_MAX_BYTES).find(|bytes| build(&alone, *bytes).is_ok());
        let size = size.ok_or_else(|| {
            let shown: String = pattern.chars().take(PROBLEM_MAX_CHARACTERS / 3).collect();
            format!("pattern {shown:?} must be a regular expression without look-around and of at most {PATTERN_MAX_BYTES} bytes when compiled")
        })?;
        self.bytes += size;
        if self.bytes > PATTERNS_MAX_BYTES {
            return Err(format!("patterns must be at most {PATTERNS_MAX_BYTES} bytes together when compiled"));
        }
        let weight = (size / PATTERN_MIN_BYTES) as u64;
        self.known.insert(pattern.to_owned(), weight);
        Ok(weight)
    }
}

fn build(schema: &Value, pattern_bytes: usize) -> Result<Validator, InvalidSchema> {
    let patterns = PatternOptions::regex().size_limit(pattern_bytes);
    let options = jsonschema::options().with_pattern_options(patterns).should_validate_formats(false);
    options.build(schema).map_err(|error| {
        let place = error.instance_path().to_string();
        InvalidSchema { place, problem: short(error.masked()) }
    })
}

fn short(problem: impl Display) -> String {
    problem.to_string().chars().take(PROBLEM_MAX_CHARACTERS).collect()
}

/// Does the answer to an await fit what its agent asked for? Records do not change, so any node may say. An await that is not
/// in the log passes: the owner has the word for it.
///
/// # Errors
/// As [`Schema::check`]; a refusal with a directive when the log cannot be read.
pub async fn fits(store: &dyn Store, conversation: &ConvRef, answer: &Resolve) -> Result<(), Refusal> {
    match schema_of(store, conversation, answer).await.map_err(|error| store_refusal(&error))? {
        Some(schema) => Schema::read(&schema)
            .map_err(|invalid| Refusal::new(Code::UnprocessableRequest, invalid.to_string()))?
            .check(&answer.payload),
        None => Ok(()),
    }
}

async fn schema_of(store: &dyn Store, conversation: &ConvRef, answer: &Resolve) -> Result<Option<Value>, StoreError> {
    let (sender, key) = (Subject::system(journal::AWAIT_SENDER), answer.draft().client_msg_id);
    let Some(opened) = store.find(conversation, &sender, &key).await? else { return Ok(None) };
    let record = lookup::record_at(store, conversation, opened.seq).await?;
    Ok(record.and_then(|record| journal::schema_of(&record.body)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use jsonschema::{Keyword, ValidationError};

    use super::*;

    fn refused(schema: &Value, payload: &Value) -> String {
        let schema = Schema::read(schema).expect("a schema");
        let refusal = schema.check(payload).expect_err("it does not fit");
        assert_eq!((refusal.code, refusal.retry), (Code::UnprocessableRequest, None));
        refusal.detail
    }

    #[test]
    fn a_payload_that_does_not_fit_is_refused_by_its_place_and_without_its_words() {
        let schema = json!({
            "type": "object",
            "required": ["decision"],
            "properties": { "decision": { "enum": ["retry", "fail"] }, "notes": { "items": { "$ref": "#/$defs/note" } } },
            "$defs": { "note": { "type": "string", "maxLength": 3, "pattern": "^[a-z]+$" } },
        });
        let fits = json!({ "decision": "retry", "notes": ["abc"] });
        assert_eq!(Schema::read(&schema).expect("a schema").check(&fits), Ok(()));
        assert!(
            Schema::read(&json!({})).expect("a schema").check(&json!(null)).is_ok(),
            "all fits where nothing is asked"
        );
        for (payload, place) in [
            (json!("secret"), "payload: "),
            (json!({}), "payload: "),
            (json!({ "decision": "secret" }), "payload/decision: "),
            (json!({ "decision": "fail", "notes": ["abc", "secret"] }), "payload/notes/1: "),
        ] {
            let detail = refused(&schema, &payload);
            assert!(detail.starts_with(place) && !detail.contains("secret"), "{payload}: {detail}");
        }
    }

    #[test]
    fn a_schema_that_is_none_or_looks_elsewhere_or_back_is_refused() {
        for (bad, place) in [
            (json!({ "type": "thing" }), "schema/type: "),
            (json!(7), "schema: "),
            (json!({ "$ref": "https://schemas.example/one.json" }), "schema: "),
            (json!({ "$ref": "file:///etc/passwd" }), "schema: "),
            (json!({ "properties": { "a": { "pattern": "(?=x)y" } } }), "schema: pattern \"(?=x)y\""),
        ] {
            let problem = Schema::read(&bad).expect_err("it cannot be used").to_string();
            assert!(problem.starts_with(place), "{bad}: {problem}");
        }
    }

    /// `count` definitions, each made from the reference to the one before.
    fn definitions(count: usize, each: impl Fn(Value) -> Value) -> Value {
        let before = |number: usize| json!({ "$ref": format!("#/$defs/a{}", number - 1) });
        let all = (1..count).map(|number| (format!("a{number}"), each(before(number))));
        let all: serde_json::Map<_, _> = all.chain([("a0".to_owned(), json!({ "type": "integer" }))]).collect();
        json!({ "$defs": all, "$ref": format!("#/$defs/a{}", count - 1) })
    }

    #[test]
    fn a_schema_that_stands_for_more_than_can_be_checked_is_refused_before_anything_reads_it() {
        for (bad, problem) in [
            (definitions(20_000, |before| before), "levels deep"),
            (definitions(20_000, |before| json!({ "not": before })), "levels deep"),
            (definitions(26, |before| json!({ "anyOf": [before, before] })), "10000 values"),
            (json!({ "properties": { "a": { "$ref": "#" } } }), "must not lead back"),
            (json!({ "enum": vec![0; 100_000] }), "10000 values"),
            (json!({ "title": "x".repeat(70_000) }), "65536 bytes of JSON"),
            (json!({ "pattern": "^(([a-z]{0,60}){0,60}x)*$" }), "65536 bytes when compiled"),
            (json!({ "patternProperties": { "^(([a-z]{0,60}){0,60}x)*$": {} } }), "65536 bytes when compiled"),
        ] {
            let said = Schema::read(&bad).expect_err("it cannot be used").to_string();
            assert!(said.starts_with("schema: ") && said.contains(problem), "{problem}: {said}");
        }
        let many = |each: fn(usize) -> String| {
            let all: Vec<_> = (0..20).map(|number| json!({ "pattern": each(number) })).collect();
            Schema::read(&json!({ "anyOf": all })).expect_err("too many patterns").to_string()
        };
        let compiled = many(|number| format!("(a*b*x*){{40}}q{{{number}}}"));
        assert!(compiled.contains("262144 bytes together when compiled"), "{compiled}");
        let text = many(|number| format!("^{}{number}$", "[a]".repeat(150)));
        assert!(text.contains("8192 bytes together"), "{text}");
    }

    #[test]
    fn a_payload_that_takes_too_many_steps_is_refused_without_being_checked() {
        // As deep and as wide as may be, and nothing fits: what is not refused is answered, with or without the place.
        let widest = Schema::read(&definitions(9, |before| json!({ "anyOf": [before, before] }))).expect("a schema");
        assert!(widest.check(&json!("x")).is_err());
        let items =
            Schema::read(&json!({ "items": { "anyOf": vec![json!({ "type": "string" }); 100] } })).expect("a schema");
        for (values, said) in [(10, "payload/0: "), (5_000, "payload: does not fit"), (30_000, "payload: is too large")]
        {
            let refusal = items.check(&json!(vec![1; values])).expect_err("numbers are no text");
            assert!(refusal.detail.starts_with(said), "{values}: {}", refusal.detail);
        }
        let pattern = Schema::read(&json!({ "pattern": "(a*b*x*){20}q" })).expect("a schema");
        for (bytes, said) in [(100, "payload: "), (60_000, "payload: is too large")] {
            let refusal = pattern.check(&json!("ab".repeat(bytes / 2))).expect_err("it has no q");
            assert!(refusal.detail.starts_with(said), "{bytes}: {}", refusal.detail);
        }
        assert!(pattern.misfit(&json!("q")).is_none());
        let date = Schema::read(&json!({ "pattern": "^\\d{4}-\\d{2}-\\d{2}$" })).expect("a schema");
        assert_eq!(date.check(&json!("2026-12-01")), Ok(()));
        assert_eq!(date.cost.patterns, 1, "digits are those of ASCII");
    }

    #[test]
    fn steps_are_counted_from_above() {
        let looks = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&looks);
        let options = jsonschema::options().with_keyword("looked", move |_, _, _| {
            Ok(Box::new(Looked(Arc::clone(&counter))) as Box<dyn for<'value> Keyword<'value>>)
        });
        let each = |before: Value| json!({ "allOf": [before, before], "if": before, "then": before, "items": before });
        let mut schema = definitions(4, each);
        schema["$defs"]["a0"] = json!({ "looked": 1 });
        let value = json!([[1, 2], [[3], "x"], 4]);
        let cost = schema::cost(&schema, &mut |_| Ok(1)).expect("within the bounds");
        let validator = options.build(&schema).expect("a schema");
        assert!(validator.is_valid(&value), "everything is looked at");
        let seen = looks.load(Ordering::Relaxed);
        assert!(seen > 10 && seen <= cost.expanded * schema::weight(&value), "{seen} of {cost:?}");
    }

    struct Looked(Arc<AtomicU64>);

    impl<'value> Keyword<'value> for Looked {
        fn validate(&self, value: &'value Value) -> Result<(), ValidationError<'value>> {
            self.is_valid(value);
            Ok(())
        }

        fn is_valid(&self, _value: &'value Value) -> bool {
            self.0.fetch_add(1, Ordering::Relaxed);
            true
        }
    }
}
