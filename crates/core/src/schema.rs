//! What a JSON Schema may cost whoever checks values by it, before anything else reads it.
//!
//! Invariants: counting takes at most [`EXPANDED_MAX`] visits and [`DEPTH_MAX`] frames, whatever the schema; what passes
//! refers to nothing but places within itself, never to what it is within, and has the same meaning of a place for every
//! reader, for no part of it has a base or a dialect of its own. So no value meets more than
//! [`Cost::expanded`] parts of it.
//!
//! Deliberately absent: what keywords mean. All that is written counts as if it were a schema, what `enum` lists as well, so
//! that no keyword, known or not, is a way around.

use std::collections::BTreeMap;

use serde_json::Value;

/// Largest schema, as JSON text.
pub const SCHEMA_MAX_BYTES: usize = 64 * 1024;
/// Deepest nesting of objects and arrays in a schema, with what a `$ref` names in the place of the reference.
pub const DEPTH_MAX: usize = 64;
/// Most values of a schema, with what a `$ref` names counted again for each reference.
pub const EXPANDED_MAX: u64 = 10_000;

/// Bytes of a text that weigh as much as one more value.
const TEXT_BYTES: u64 = 16;
/// Most characters of a reference that are said again.
const SHOWN_CHARACTERS: usize = 80;
/// The dialects whose places and references are understood here, without scheme and empty fragment.
const DIALECTS: [&str; 4] = [
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft-06/schema",
];

/// Why a schema is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unbounded {
    /// Its text is too long.
    #[error("must be at most {SCHEMA_MAX_BYTES} bytes of JSON")]
    TooLarge,
    /// It is nested too deeply.
    #[error("must be at most {DEPTH_MAX} levels deep, with what each $ref names in its place")]
    TooDeep,
    /// It has too many parts.
    #[error("must be at most {EXPANDED_MAX} values, with what each $ref names counted again")]
    TooWide,
    /// It refers to something that contains the reference.
    #[error("$ref {0:?} must not lead back to itself")]
    Recursive(String),
    /// It refers to something else than a place in it.
    #[error("$ref {0:?} must be # and the JSON Pointer of a place in the schema, without %")]
    Elsewhere(String),
    /// It has a keyword that is not supported.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// A part of it has a name or a dialect of its own.
    #[error("{0} is allowed at the top alone")]
    NotAtTheTop(&'static str),
    /// It is of another dialect.
    #[error("$schema must name draft 2020-12, 2019-09, 7 or 6")]
    Dialect,
    /// One of its patterns cannot be used.
    #[error("{0}")]
    Pattern(String),
}

/// What a schema may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Values in it, with what each `$ref` names counted again.
    pub expanded: u64,
    /// The weights of its patterns, counted likewise.
    pub patterns: u64,
}

impl Cost {
    const fn plus(self, other: Self) -> Self {
        Self {
            expanded: self.expanded.saturating_add(other.expanded),
            patterns: self.patterns.saturating_add(other.patterns),
        }
    }
}

/// Counts what a schema may cost. `weigh` says what a pattern weighs, or why it cannot be used.
///
/// # Errors
/// The first bound that it does not keep.
pub fn cost(schema: &Value, weigh: &mut dyn FnMut(&str) -> Result<u64, String>) -> Result<Cost, Unbounded> {
    let dialect = schema.get("$schema").and_then(Value::as_str);
    if dialect.is_some_and(|named| !is_dialect(named)) {
        return Err(Unbounded::Dialect);
    }
    let mut count = Count { root: schema, weigh, visits: 0, known: BTreeMap::new() };
    let measured = count.value(schema, 1)?;
    // Only now, for writing it takes as many frames as it is deep.
    if schema.to_string().len() > SCHEMA_MAX_BYTES {
        return Err(Unbounded::TooLarge);
    }
    Ok(measured.cost)
}

/// How much a value weighs that is checked by a schema: its values and names, and more for long texts.
#[must_use]
pub fn weight(value: &Value) -> u64 {
    match value {
        Value::String(text) => text_weight(text),
        Value::Array(items) => items.iter().fold(1, |sum: u64, item| sum.saturating_add(weight(item))),
        Value::Object(members) => members
            .iter()
            .fold(1, |sum: u64, (name, member)| sum.saturating_add(text_weight(name)).saturating_add(weight(member))),
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

const fn text_weight(text: &str) -> u64 {
    1 + text.len() as u64 / TEXT_BYTES
}

fn is_dialect(named: &str) -> bool {
    let bare = named.strip_suffix('#').unwrap_or(named);
    let bare = bare.strip_prefix("https://").or_else(|| bare.strip_prefix("http://"));
    bare.is_some_and(|bare| DIALECTS.contains(&bare))
}

#[derive(Debug, Clone, Copy)]
struct Measured {
    cost: Cost,
    /// Levels from here to the deepest.
    height: usize,
}

struct Count<'schema, 'weigh> {
    root: &'schema Value,
    weigh: &'weigh mut dyn FnMut(&str) -> Result<u64, String>,
    visits: u64,
    /// What was counted, by where it is in memory; `None`: it is being counted.
    known: BTreeMap<*const Value, Option<Measured>>,
}

impl<'schema> Count<'schema, '_> {
    fn value(&mut self, value: &'schema Value, depth: usize) -> Result<Measured, Unbounded> {
        self.visits += 1;
        if self.visits > EXPANDED_MAX {
            return Err(Unbounded::TooWide);
        }
        let one = Measured { cost: Cost { expanded: 1, patterns: 0 }, height: 0 };
        if !value.is_object() && !value.is_array() {
            return Ok(one);
        }
        let place = std::ptr::from_ref(value);
        let measured = match self.known.get(&place) {
            Some(Some(known)) => *known,
            Some(None) => return Err(Unbounded::Recursive(String::new())),
            None if depth > DEPTH_MAX => return Err(Unbounded::TooDeep),
            None => {
                self.known.insert(place, None);
                let measured = self.parts(value, one, depth)?;
                self.known.insert(place, Some(measured));
                measured
            }
        };
        if depth + measured.height > DEPTH_MAX + 1 {
            return Err(Unbounded::TooDeep);
        }
        Ok(measured)
    }

    /// A value with all that is in it.
    fn parts(&mut self, value: &'schema Value, one: Measured, depth: usize) -> Result<Measured, Unbounded> {
        let mut sum = one;
        let mut add = |part: Measured| {
            sum.cost = sum.cost.plus(part.cost);
            sum.height = sum.height.max(part.height);
            if sum.cost.expanded > EXPANDED_MAX { Err(Unbounded::TooWide) } else { Ok(()) }
        };
        match value {
            Value::Array(items) => {
                for item in items {
                    add(self.value(item, depth + 1)?)?;
                }
            }
            Value::Object(members) => {
                for (name, member) in members {
                    add(self.member(name, member, depth)?)?;
                    add(self.value(member, depth + 1)?)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        sum.height += 1;
        Ok(sum)
    }

    /// What a member costs beside its value.
    fn member(&mut self, name: &str, member: &'schema Value, depth: usize) -> Result<Measured, Unbounded> {
        let nothing = Measured { cost: Cost::default(), height: 0 };
        match (name, member) {
            ("$ref", Value::String(reference)) => self.reference(reference, depth),
            ("$dynamicRef", Value::String(_)) => Err(Unbounded::Unsupported("$dynamicRef")),
            ("$recursiveRef", Value::String(_)) => Err(Unbounded::Unsupported("$recursiveRef")),
            // Each looks again at what all its neighbours looked at, so that a few in one another take for ever.
            ("unevaluatedProperties", _) => Err(Unbounded::Unsupported("unevaluatedProperties")),
            ("unevaluatedItems", _) => Err(Unbounded::Unsupported("unevaluatedItems")),
            ("$id", Value::String(_)) if depth > 1 => Err(Unbounded::NotAtTheTop("$id")),
            ("$schema", Value::String(_)) if depth > 1 => Err(Unbounded::NotAtTheTop("$schema")),
            ("pattern", Value::String(pattern)) => {
                let patterns = (self.weigh)(pattern).map_err(Unbounded::Pattern)?;
                Ok(Measured { cost: Cost { expanded: 0, patterns }, ..nothing })
            }
            ("patternProperties", Value::Object(by_pattern)) => {
                let mut sum = nothing;
                for pattern in by_pattern.keys() {
                    // Twice, for additionalProperties asks them again.
                    let patterns = (self.weigh)(pattern).map_err(Unbounded::Pattern)?.saturating_mul(2);
                    sum.cost = sum.cost.plus(Cost { expanded: 0, patterns });
                }
                Ok(sum)
            }
            _ => Ok(nothing),
        }
    }

    fn reference(&mut self, reference: &str, depth: usize) -> Result<Measured, Unbounded> {
        let shown = || reference.chars().take(SHOWN_CHARACTERS).collect::<String>();
        let pointer = reference.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let named = pointer.and_then(|pointer| self.root.pointer(pointer));
        let named = named.ok_or_else(|| Unbounded::Elsewhere(shown()))?;
        self.value(named, depth + 1).map_err(|problem| match problem {
            Unbounded::Recursive(within) if within.is_empty() => Unbounded::Recursive(shown()),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counted(schema: &Value) -> Result<Cost, Unbounded> {
        cost(schema, &mut |pattern| if pattern == "bad" { Err("no".to_owned()) } else { Ok(3) })
    }

    /// `definitions` of them, each made by its number.
    fn definitions(count: usize, each: impl Fn(usize) -> Value) -> Value {
        let all = (1..count).map(|number| (format!("a{number}"), each(number - 1)));
        let all: serde_json::Map<_, _> = all.chain([("a0".to_owned(), json!({ "type": "integer" }))]).collect();
        json!({ "$defs": all, "$ref": format!("#/$defs/a{}", count - 1) })
    }

    fn nested(levels: usize) -> Value {
        (1..levels).fold(json!({}), |inner, _| json!({ "not": inner }))
    }

    #[test]
    fn references_count_as_often_as_they_are_written() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": { "a": { "$ref": "#/$defs/a~1b" }, "b": { "$ref": "#/$defs/a~1b" } },
            "$defs": { "a/b": { "type": "string", "pattern": "x" } },
        });
        // Six objects and the five texts in them, and what is in the definition twice more.
        assert_eq!(counted(&schema), Ok(Cost { expanded: 11 + 2 * 3, patterns: 9 }));
        let twice = json!({ "patternProperties": { "x": true, "y": true } });
        assert_eq!(counted(&twice), Ok(Cost { expanded: 4, patterns: 12 }));
    }

    #[test]
    fn a_schema_is_counted_by_what_its_references_stand_for() {
        let doubled = |number: usize| {
            let reference = json!({ "$ref": format!("#/$defs/a{number}") });
            json!({ "anyOf": [reference, reference] })
        };
        assert!(counted(&definitions(8, doubled)).is_ok());
        assert_eq!(counted(&definitions(26, doubled)), Err(Unbounded::TooWide));
        let chained = |number: usize| json!({ "$ref": format!("#/$defs/a{number}") });
        assert!(counted(&definitions(40, chained)).is_ok());
        assert_eq!(counted(&definitions(90, chained)), Err(Unbounded::TooDeep));
        let far = counted(&definitions(20_000, chained));
        assert!(matches!(far, Err(Unbounded::TooDeep | Unbounded::TooWide)), "{far:?}");
        assert!(counted(&json!({ "enum": vec![1; 9_000] })).is_ok());
        assert_eq!(counted(&json!({ "enum": vec![1; 10_000] })), Err(Unbounded::TooWide));
    }

    #[test]
    fn depth_and_bytes_have_a_limit() {
        assert!(counted(&nested(DEPTH_MAX)).is_ok());
        assert_eq!(counted(&nested(DEPTH_MAX + 1)), Err(Unbounded::TooDeep));
        // Far deeper than what is counted first: found again, deeper than it was.
        let again =
            json!({ "$defs": { "deep": nested(40) }, "not": { "not": { "allOf": [{ "$ref": "#/$defs/deep" }] } } });
        assert!(counted(&again).is_ok());
        let deeper = (0..30).fold(json!({ "$ref": "#/$defs/deep" }), |inner, _| json!({ "not": inner }));
        assert_eq!(counted(&json!({ "$defs": { "deep": nested(40) }, "not": deeper })), Err(Unbounded::TooDeep));
        let text = |bytes: usize| json!({ "title": "x".repeat(bytes) });
        assert!(counted(&text(SCHEMA_MAX_BYTES - 12)).is_ok());
        assert_eq!(counted(&text(SCHEMA_MAX_BYTES - 11)), Err(Unbounded::TooLarge));
    }

    #[test]
    fn what_leads_back_elsewhere_or_has_a_base_of_its_own_is_refused() {
        let recursive = |reference: &str| Unbounded::Recursive(reference.to_owned());
        let elsewhere = |reference: &str| Unbounded::Elsewhere(reference.to_owned());
        for (schema, problem) in [
            (json!({ "properties": { "a": { "$ref": "#" } } }), recursive("#")),
            (json!({ "$defs": { "a": { "items": { "$ref": "#/$defs/a" } } } }), recursive("#/$defs/a")),
            (json!({ "a": { "$ref": "#/b" }, "b": { "$ref": "#/a" } }), recursive("#/a")),
            (json!({ "$ref": "https://schemas.example/one.json" }), elsewhere("https://schemas.example/one.json")),
            (json!({ "$ref": "#name", "a": { "$anchor": "name" } }), elsewhere("#name")),
            (json!({ "$ref": "#/a%62", "a%62": {}, "ab": {} }), elsewhere("#/a%62")),
            (json!({ "$ref": "#/nowhere" }), elsewhere("#/nowhere")),
            (json!({ "$dynamicRef": "#" }), Unbounded::Unsupported("$dynamicRef")),
            (json!({ "$recursiveRef": "#" }), Unbounded::Unsupported("$recursiveRef")),
            (json!({ "unevaluatedProperties": false }), Unbounded::Unsupported("unevaluatedProperties")),
            (json!({ "unevaluatedItems": {} }), Unbounded::Unsupported("unevaluatedItems")),
            (json!({ "a": { "$id": "https://schemas.example/" } }), Unbounded::NotAtTheTop("$id")),
            (
                json!({ "a": { "$schema": "https://json-schema.org/draft-07/schema" } }),
                Unbounded::NotAtTheTop("$schema"),
            ),
            (json!({ "$schema": "http://json-schema.org/draft-04/schema#" }), Unbounded::Dialect),
            (json!({ "pattern": "bad" }), Unbounded::Pattern("no".to_owned())),
            (json!({ "patternProperties": { "bad": {} } }), Unbounded::Pattern("no".to_owned())),
        ] {
            assert_eq!(counted(&schema), Err(problem), "{schema}");
        }
        let properties =
            json!({ "$id": "https://schemas.example/", "properties": { "$ref": {}, "$id": { "type": "null" } } });
        assert!(counted(&properties).is_ok(), "names of properties are no keywords");
    }

    #[test]
    fn what_is_checked_weighs_by_values_names_and_length() {
        assert_eq!(weight(&json!([1, null, "ab"])), 4);
        assert_eq!(weight(&json!({ "a": true })), 3);
        assert_eq!(weight(&json!("x".repeat(32))), 3);
    }
}
