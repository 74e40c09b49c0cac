//! The directory, the file and the disk.

use super::*;
use crate::sqlite::{DATABASE_FILE, OpenError};

fn open(bench: &Bench) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(bench.path(), options(&bench.clock))
}

#[tokio::test]
async fn a_second_opener_is_refused_by_name() {
    let mut bench = Bench::new();
    let error = open(&bench).expect_err("must be refused").to_string();
    assert!(error.contains(&format!("process {} (node n1)", std::process::id())), "{error}");
    bench.close();
    drop(open(&bench).expect("opens when the first is gone"));
}

#[tokio::test]
async fn a_foreign_or_newer_file_is_refused_and_left_alone() {
    let mut bench = Bench::new();
    bench.close();
    let file = bench.path().join(DATABASE_FILE);
    let change = |sql: &str| rusqlite::Connection::open(&file).expect("opens").execute_batch(sql).expect("changes");
    change("PRAGMA user_version = 77");
    let error = open(&bench).expect_err("must be refused").to_string();
    assert!(error.contains("schema version 77") && error.contains(&file.display().to_string()), "{error}");
    change("PRAGMA user_version = 1; PRAGMA application_id = 5");
    let error = open(&bench).expect_err("must be refused").to_string();
    assert!(error.contains("application id 5") && error.contains(&file.display().to_string()), "{error}");
}
