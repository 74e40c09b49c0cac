//! What a data directory's database holds. Takes no lock and cannot write, so it runs beside a server.

use std::path::Path;

use rusqlite::Connection;

use super::directory::DATABASE_FILE;
use super::error::{OpenError, store_error};
use super::schema;
use crate::{Size, StoreError};

/// Pages in use and checkpoints, in one snapshot; what waits in the write-ahead log is counted.
const SIZE: &str =
    "SELECT (SELECT page_count FROM pragma_page_count) - (SELECT freelist_count FROM pragma_freelist_count),
    (SELECT page_size FROM pragma_page_size), (SELECT coalesce(sum(length(state)), 0) FROM checkpoint)";

/// The size of the database in a data directory.
///
/// # Errors
/// As [`OpenError`] lists, where the file is not one of ours or cannot be read.
pub fn size(directory: &Path) -> Result<Size, OpenError> {
    let file = directory.join(DATABASE_FILE);
    let connection = schema::open_reader(&file)?;
    read(&connection).map_err(|error| OpenError::Failed { file, detail: error.to_string() })
}

fn read(connection: &Connection) -> Result<Size, StoreError> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
    let (pages, page, checkpoints) = connection.query_row(SIZE, [], row).map_err(|error| store_error(&error))?;
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(Size { bytes: unsigned(pages) * unsigned(page), checkpoint_bytes: unsigned(checkpoints) })
}
