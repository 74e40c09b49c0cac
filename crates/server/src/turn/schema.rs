//! Whether what resolves an await fits the JSON Schema that its agent gave.
//!
//! Invariants: a schema means the same on every node and for ever, for nothing outside of it is read; no pattern in it takes
//! more than linear time. A schema that cannot be read opens no await, so that nobody is asked for what nothing can fit.
//!
//! Deliberately absent: formats, which are notes as the standard has it; and the decision which answer counts, which is the
//! owner's.

use std::fmt::Display;

use conch_core::ids::{ConvRef, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::turn::cancel::Resolve;
use conch_core::turn::journal;
use conch_store::{Store, StoreError};
use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::owner::store_refusal;
use crate::turn::lookup;

/// Most characters of what is said about a schema or a payload.
const PROBLEM_MAX_CHARACTERS: usize = 300;

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
pub struct Schema(Validator);

impl Schema {
    /// Reads one.
    ///
    /// # Errors
    /// If it is none, refers to something outside of it, or has a pattern that may take more than linear time.
    pub fn read(schema: &Value) -> Result<Self, InvalidSchema> {
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        options.build(schema).map(Self).map_err(|error| {
            let place = error.instance_path().to_string();
            InvalidSchema { place, problem: short(error.masked()) }
        })
    }

    /// Does a payload fit?
    ///
    /// # Errors
    /// [`Code::UnprocessableRequest`] that names the first place where it does not, as a JSON Pointer.
    pub fn check(&self, payload: &Value) -> Result<(), Refusal> {
        let misfit = self.misfit(payload);
        misfit.map_or(Ok(()), |problem| Err(Refusal::new(Code::UnprocessableRequest, format!("payload{problem}"))))
    }

    /// The first place where a value does not fit, as a JSON Pointer, and why, without its words; `None`: it does.
    #[must_use]
    pub fn misfit(&self, value: &Value) -> Option<String> {
        self.0.validate(value).err().map(|error| format!("{}: {}", error.instance_path(), short(error.masked())))
    }
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
    use serde_json::json;

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
            (json!({ "properties": { "a": { "pattern": "(?=x)y" } } }), "schema/properties/a/pattern: "),
        ] {
            let problem = Schema::read(&bad).expect_err("it cannot be used").to_string();
            assert!(problem.starts_with(place), "{bad}: {problem}");
        }
    }
}
