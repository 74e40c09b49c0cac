//! Columns to values and back. A stored value that does not parse is damage, and is named by its column.

use std::str::FromStr;
use std::time::Duration;

use conch_core::ids::{ConvRef, Incarnation};
use rusqlite::types::{FromSql, ValueRef};
use rusqlite::{Connection, Params, Row};

use super::error::{damaged, store_error};
use crate::StoreError;

/// A UUID as 16 bytes, in the order in which it is read.
pub(super) fn incarnation_blob(incarnation: Incarnation) -> [u8; 16] {
    incarnation.0.to_be_bytes()
}

/// A duration for the store's clock, in milliseconds.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A count for a LIMIT.
pub(super) fn limit(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

pub(super) fn get<T: FromSql>(row: &Row<'_>, index: usize, column: &'static str) -> Result<T, StoreError> {
    row.get(index).map_err(|error| damaged(column, error))
}

/// A text column, borrowed from the row.
pub(super) fn text<'row>(row: &'row Row<'_>, index: usize, column: &'static str) -> Result<&'row str, StoreError> {
    let value = row.get_ref(index).map_err(|error| damaged(column, error))?;
    value.as_str().map_err(|error| damaged(column, error))
}

/// A text column that is an identifier.
pub(super) fn parse<T>(row: &Row<'_>, index: usize, column: &'static str) -> Result<T, StoreError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text(row, index, column)?.parse().map_err(|error| damaged(column, error))
}

/// As [`parse`], for a column that may be null.
pub(super) fn parse_optional<T>(row: &Row<'_>, index: usize, column: &'static str) -> Result<Option<T>, StoreError>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    match row.get_ref(index).map_err(|error| damaged(column, error))? {
        ValueRef::Null => Ok(None),
        _ => parse(row, index, column).map(Some),
    }
}

/// A column of 16 bytes.
pub(super) fn blob16(row: &Row<'_>, index: usize, column: &'static str) -> Result<[u8; 16], StoreError> {
    let value = row.get_ref(index).map_err(|error| damaged(column, error))?;
    let bytes = value.as_blob().map_err(|error| damaged(column, error))?;
    bytes.try_into().map_err(|_| damaged(column, format!("has {} bytes, not 16", bytes.len())))
}

pub(super) fn incarnation(
    row: &Row<'_>,
    index: usize,
    column: &'static str,
) -> Result<Option<Incarnation>, StoreError> {
    match row.get_ref(index).map_err(|error| damaged(column, error))? {
        ValueRef::Null => Ok(None),
        _ => Ok(Some(Incarnation(u128::from_be_bytes(blob16(row, index, column)?)))),
    }
}

/// The stored id under a key is the one that was asked for.
pub(super) fn same_id(row: &Row<'_>, index: usize, conversation: &ConvRef) -> Result<(), StoreError> {
    if text(row, index, "conversation.id")? == conversation.id.as_str() { Ok(()) } else { Err(StoreError::Collision) }
}

/// The first row of a query, if there is one.
pub(super) fn first<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    map: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Option<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(|error| store_error(&error))?;
    let mut found = statement.query(parameters).map_err(|error| store_error(&error))?;
    match found.next().map_err(|error| store_error(&error))? {
        Some(row) => map(row).map(Some),
        None => Ok(None),
    }
}

/// All rows of a query, which bounds them itself.
pub(super) fn collect<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    mut map: impl FnMut(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let mut statement = connection.prepare_cached(sql).map_err(|error| store_error(&error))?;
    let mut found = statement.query(parameters).map_err(|error| store_error(&error))?;
    let mut all = Vec::new();
    while let Some(row) = found.next().map_err(|error| store_error(&error))? {
        all.push(map(row)?);
    }
    Ok(all)
}
