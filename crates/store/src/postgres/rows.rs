//! Columns to values and back. A stored value that does not parse is damage, and is named by its column.

use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use bytes::BytesMut;
use conch_core::ids::{ConvKey, ConvRef, Incarnation};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::StoreError;

/// Sixteen bytes, as a `uuid` column holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(pub(super) [u8; 16]);

impl From<ConvKey> for Id {
    fn from(key: ConvKey) -> Self {
        Self(key.0)
    }
}

impl From<Incarnation> for Id {
    fn from(incarnation: Incarnation) -> Self {
        Self(incarnation.0.to_be_bytes())
    }
}

impl From<Id> for Incarnation {
    fn from(id: Id) -> Self {
        Self(u128::from_be_bytes(id.0))
    }
}

impl From<Id> for ConvKey {
    fn from(id: Id) -> Self {
        Self(id.0)
    }
}

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Id {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// A duration for the database's clock, in milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A count for a LIMIT.
pub(super) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn get<'row, T: FromSql<'row>>(row: &'row Row, index: usize, column: &'static str) -> Result<T, StoreError> {
    row.try_get(index).map_err(|error| damaged(column, error))
}

/// A text column that is an identifier.
pub(super) fn parse<T>(row: &Row, index: usize, column: &'static str) -> Result<T, StoreError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    get::<&str>(row, index, column)?.parse().map_err(|error| damaged(column, error))
}

/// As [`parse`], for a column that may be null.
pub(super) fn parse_optional<T>(row: &Row, index: usize, column: &'static str) -> Result<Option<T>, StoreError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    let text: Option<&str> = get(row, index, column)?;
    text.map(|text| text.parse().map_err(|error| damaged(column, error))).transpose()
}

/// A column of 16 bytes in a `bytea`.
pub(super) fn bytes16(row: &Row, index: usize, column: &'static str) -> Result<[u8; 16], StoreError> {
    let bytes: &[u8] = get(row, index, column)?;
    bytes.try_into().map_err(|_| damaged(column, format!("has {} bytes, not 16", bytes.len())))
}

/// A number that is never negative.
pub(super) fn count(row: &Row, index: usize, column: &'static str) -> Result<u64, StoreError> {
    let number: i64 = get(row, index, column)?;
    u64::try_from(number).map_err(|error| damaged(column, error))
}

pub(super) fn incarnation(row: &Row, index: usize, column: &'static str) -> Result<Option<Incarnation>, StoreError> {
    Ok(get::<Option<Id>>(row, index, column)?.map(Incarnation::from))
}

/// The stored id under a key is the one that was asked for.
pub(super) fn same_id(row: &Row, index: usize, conversation: &ConvRef) -> Result<(), StoreError> {
    let stored: &str = get(row, index, "conversation.id")?;
    if stored == conversation.id.as_str() { Ok(()) } else { Err(StoreError::Collision) }
}

/// A stored value that is not what was written there.
pub(super) fn damaged(column: &'static str, problem: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("column {column}: {problem}"))
}
