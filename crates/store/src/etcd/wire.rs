//! What etcd's JSON gateway takes and answers: 64-bit numbers as texts, keys and values in Base64, zeros left out.
//!
//! Invariant: what does not read as etcd's answer is an error that says so, never a default.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::StoreError;

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// An answer that is not what etcd says.
pub(super) fn odd(problem: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("an answer of etcd's cannot be read: {problem}"))
}

/// A number: a text, or absent for 0.
pub(super) fn number(value: &Value, name: &str) -> Result<i64, StoreError> {
    match &value[name] {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|_| odd(format!("{name} is {text:?}"))),
        other => other.as_i64().ok_or_else(|| odd(format!("{name} is {other}"))),
    }
}

/// An unsigned number: a text, or absent for 0.
pub(super) fn unsigned(value: &Value, name: &str) -> Result<u64, StoreError> {
    match &value[name] {
        Value::Null => Ok(0),
        Value::String(text) => text.parse().map_err(|_| odd(format!("{name} is {text:?}"))),
        other => other.as_u64().ok_or_else(|| odd(format!("{name} is {other}"))),
    }
}

fn bytes(value: &Value, name: &str) -> Result<Vec<u8>, StoreError> {
    let text = value[name].as_str().unwrap_or_default();
    STANDARD.decode(text).map_err(|error| odd(format!("{name}: {error}")))
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kv {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    /// 0: none.
    pub(super) lease: i64,
}

impl Kv {
    fn read(value: &Value) -> Result<Self, StoreError> {
        Ok(Self {
            key: String::from_utf8(bytes(value, "key")?).map_err(|_| odd("a key is not UTF-8"))?,
            value: bytes(value, "value")?,
            create_revision: number(value, "create_revision")?,
            mod_revision: number(value, "mod_revision")?,
            lease: number(value, "lease")?,
        })
    }
}

/// A condition of a transaction, about one key. An absent key has the revisions 0.
#[derive(Debug, Clone)]
pub(super) enum Compare {
    Created(String, i64),
    Modified(String, i64),
    Value(String, Vec<u8>),
}

impl Compare {
    fn write(&self) -> Value {
        match self {
            Self::Created(key, at) => {
                json!({"target": "CREATE", "result": "EQUAL", "key": encode(key.as_bytes()), "createRevision": at.to_string()})
            }
            Self::Modified(key, at) => {
                json!({"target": "MOD", "result": "EQUAL", "key": encode(key.as_bytes()), "modRevision": at.to_string()})
            }
            Self::Value(key, value) => {
                json!({"target": "VALUE", "result": "EQUAL", "key": encode(key.as_bytes()), "value": encode(value)})
            }
        }
    }
}

/// A step of a transaction.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// The key, the value, and the lease that it hangs on (0: none).
    Put(String, Vec<u8>, i64),
    /// One key.
    Get(String),
    /// All keys that begin so.
    List(String),
}

impl Step {
    fn write(&self) -> Value {
        match self {
            Self::Put(key, value, lease) => json!({"requestPut": {
                "key": encode(key.as_bytes()), "value": encode(value), "lease": lease.to_string()
            }}),
            Self::Get(key) => json!({"requestRange": {"key": encode(key.as_bytes())}}),
            Self::List(prefix) => {
                // The prefixes of this store end with '/', whose successor is '0'.
                let mut end = prefix.clone().into_bytes();
                if let Some(last) = end.last_mut() {
                    *last += 1;
                }
                json!({"requestRange": {"key": encode(prefix.as_bytes()), "range_end": encode(&end)}})
            }
        }
    }
}

/// A transaction's request.
pub(super) fn txn(compare: &[Compare], success: &[Step], failure: &[Step]) -> Value {
    let steps = |steps: &[Step]| steps.iter().map(Step::write).collect::<Vec<_>>();
    json!({
        "compare": compare.iter().map(Compare::write).collect::<Vec<_>>(),
        "success": steps(success),
        "failure": steps(failure),
    })
}

/// A transaction's answer.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) succeeded: bool,
    /// The store's revision; that of the change, where there was one.
    pub(super) revision: i64,
    /// What each step that reads found, in their order.
    pub(super) found: Vec<Vec<Kv>>,
}

impl Answered {
    pub(super) fn read(value: &Value) -> Result<Self, StoreError> {
        let mut found = Vec::new();
        for response in value["responses"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let Some(range) = response.get("response_range") else { continue };
            let kvs = range["kvs"].as_array().map(Vec::as_slice).unwrap_or_default();
            found.push(kvs.iter().map(Kv::read).collect::<Result<_, _>>()?);
        }
        let revision = number(&value["header"], "revision")?;
        if revision == 0 {
            return Err(odd("it has no revision"));
        }
        Ok(Self { succeeded: value["succeeded"].as_bool().unwrap_or(false), revision, found })
    }

    /// What the reading step of this index found.
    pub(super) fn list(&self, index: usize) -> Result<&[Kv], StoreError> {
        self.found.get(index).map(Vec::as_slice).ok_or_else(|| odd("it is shorter than the question"))
    }

    /// The one key that the step of this index asked for.
    pub(super) fn one(&self, index: usize) -> Result<Option<&Kv>, StoreError> {
        Ok(self.list(index)?.first())
    }
}
