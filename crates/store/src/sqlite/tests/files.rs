//! The directory, the file and the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};

use conch_core::ids::Seq;

use super::*;
use crate::StoreError;
use crate::sqlite::{DATABASE_FILE, OpenError, verify};

fn open(bench: &Bench) -> Result<SqliteStore, OpenError> {
    SqliteStore::open(bench.path(), options(&bench.clock))
}

/// A closed store with one conversation of `records` records of 1,000 bytes.
async fn closed_with(records: u64) -> Bench {
    let mut bench = Bench::new();
    let (me, room) = (bench.register(1).await, bench.create("room").await);
    let armed = bench.won(&room, me).await;
    let text = "x".repeat(1000);
    let drafts = (0..records).map(|n| message("alice", &format!("k{n}"), &text)).collect();
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), drafts)).await);
    bench.close();
    bench
}

fn overwrite(file: &Path, offset: u64, bytes: &[u8]) {
    let mut file = OpenOptions::new().write(true).open(file).expect("opens");
    file.seek(SeekFrom::Start(offset)).expect("seeks");
    file.write_all(bytes).expect("writes");
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
    let before = fs::read(&file).expect("reads");
    let error = open(&bench).expect_err("must be refused").to_string();
    assert!(error.contains("application id 5") && error.contains(&file.display().to_string()), "{error}");
    assert_eq!(fs::read(&file).expect("reads"), before);
}

#[tokio::test]
async fn a_damaged_file_is_refused_at_start_by_name() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 5] = [
        ("text", |file| {
            fs::write(file, "this is not a database, but longer than its header\n".repeat(99)).expect("writes")
        }),
        ("the header", |file| overwrite(file, 0, &[0x55; 100])),
        ("the schema", |file| overwrite(file, 100, &[0x55; 3000])),
        ("a page in the middle", |file| overwrite(file, 40 * 4096, &[0x55; 4096])),
        ("the second half", |file| {
            let half = fs::metadata(file).expect("exists").len() / 2 / 4096 * 4096;
            OpenOptions::new().write(true).open(file).expect("opens").set_len(half).expect("cuts");
        }),
    ];
    for (name, damage) in damages {
        let bench = closed_with(200).await;
        let file = bench.path().join(DATABASE_FILE);
        damage(&file);
        let error = open(&bench).expect_err(name);
        assert!(matches!(error, OpenError::Damaged { .. }), "{name}: {error}");
        assert!(error.to_string().contains(&file.display().to_string()), "{name}: {error}");
        assert!(error.to_string().contains("is damaged"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_page_that_rots_under_a_running_server_is_an_error_of_its_readers_only() {
    let mut bench = closed_with(400).await;
    bench.reopen();
    let file = bench.path().join(DATABASE_FILE);
    for page in 20..120 {
        overwrite(&file, page * 4096, &[0x55; 4096]);
    }
    let query = crate::RangeQuery {
        conversation: conversation("room"),
        direction: crate::Direction::After(Seq(0)),
        limit: 1000,
        kinds: Vec::new(),
    };
    let error = bench.store().range(&query).await.expect_err("cannot be read");
    assert!(matches!(error, StoreError::Damaged(_)), "{error}");
    assert!(bench.store().nodes().await.is_ok(), "other pages are still read");
}

#[tokio::test]
async fn a_full_database_refuses_and_goes_on_when_there_is_room() {
    let bench = Bench::new();
    let (me, room, small) = (bench.register(1).await, bench.create("room").await, bench.create("small").await);
    let (armed, on_small) = (bench.won(&room, me).await, bench.won(&small, me).await);
    landed(bench.append(me, batch(&room, &armed, Seq(0), Seq(1), vec![message("alice", "k1", "one")])).await);
    let limit_pages = async |pages: i64| {
        let set = move |write: &crate::sqlite::writer::WriteTransaction<'_>| {
            let pragma = write.connection.pragma_update(None, "max_page_count", pages);
            pragma.map_err(|error| crate::sqlite::error::store_error(&error))
        };
        bench.store().writer.write(0, set).await.expect("sets");
    };
    // SQLite takes no limit below the present size, which this therefore is.
    limit_pages(1).await;
    let text = "x".repeat(60_000);
    let big = batch(&room, &armed, Seq(1), Seq(2), vec![message("alice", "k2", &text), message("alice", "k3", &text)]);
    let little = batch(&small, &on_small, Seq(0), Seq(1), vec![message("bob", "k", "hi")]);
    let error = bench.store().append(me, vec![little, big.clone()]).await.expect_err("no room");
    assert!(matches!(error, StoreError::Full(_)), "{error}");
    assert_eq!(bench.store().count_after(&room, Seq(0), 10).await, Ok(1), "nothing was applied");
    assert_eq!(bench.store().count_after(&small, Seq(0), 10).await, Ok(0), "to any of them");
    assert_eq!(bench.store().renew(me, TTL).await, Ok(Some(1)), "what needs no room goes on");
    limit_pages(1_000_000).await;
    landed(bench.append(me, big).await);
}

#[tokio::test]
async fn a_database_is_verified_beside_its_server_and_each_damage_is_found() {
    let mut bench = closed_with(20).await;
    bench.reopen();
    let report = verify(bench.path(), |_| {}).expect("verifies");
    assert_eq!((report.conversations, report.records, report.violations_total), (1, 20, 0));
    bench.close();
    let file = bench.path().join(DATABASE_FILE);
    let mutants = [
        ("UPDATE record SET epoch = 0 WHERE seq = 5", 1, Some(5)),
        ("UPDATE record SET body = '{\"text\":\"forged\"}' WHERE seq = 6", 3, Some(6)),
        ("UPDATE conv_head SET last_seq = 10", 2, Some(11)),
        ("UPDATE conv_head SET reserved_to = 3", 2, None),
        ("UPDATE record SET epoch = 9 WHERE seq = 20", 8, Some(20)),
        ("INSERT INTO cursor(conv_id, sub, seq) SELECT conv_id, 'alice', 99 FROM conversation", 11, None),
        ("UPDATE conversation SET id = 'other'", 2, None),
        ("DELETE FROM conversation", 3, None),
    ];
    for (sql, invariant, seq) in mutants {
        let copy = tempfile::tempdir().expect("a temporary directory");
        let copied = copy.path().join(DATABASE_FILE);
        fs::copy(&file, &copied).expect("copies");
        rusqlite::Connection::open(&copied).expect("opens").execute_batch(sql).expect("changes");
        let report = verify(copy.path(), |_| {}).expect("verifies");
        let found = report.violations.iter().any(|v| v.invariant as u8 == invariant && v.seq == seq.map(Seq));
        assert!(found, "{sql}: {:?}", report.violations);
    }
}

#[test]
fn verifying_nothing_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let error = verify(directory.path(), |_| {}).expect_err("there is none").to_string();
    assert!(error.ends_with("conch.db: there is no database"), "{error}");
    File::create(directory.path().join(DATABASE_FILE)).expect("creates");
    let error = verify(directory.path(), |_| {}).expect_err("it is empty").to_string();
    assert!(error.ends_with("conch.db: there is no database"), "{error}");
}

/// It holds what people write. A directory that was there before may be open to others; the file is not.
#[tokio::test]
async fn a_new_database_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;

    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let temporary = tempfile::tempdir().expect("a temporary directory");
    let (made, found) = (temporary.path().join("made"), temporary.path().join("found"));
    std::fs::create_dir(&found).expect("makes a directory");
    std::fs::set_permissions(&found, std::fs::Permissions::from_mode(0o755)).expect("opens it to all");
    let clock = Arc::new(AtomicI64::new(START_MS));
    let stores = [&made, &found].map(|directory| SqliteStore::open(directory, options(&clock)).expect("opens"));
    assert_eq!(mode(&made), 0o700);
    assert_eq!(mode(&found), 0o755, "somebody's decision stays");
    for directory in [&made, &found] {
        let files = ["conch.db", "conch.db-wal", "conch.db-shm"].map(|file| mode(&directory.join(file)));
        assert_eq!(files, [0o600; 3], "{}", directory.display());
    }
    drop(stores);
}
