//! The tables, their versions, and who may change them.
//!
//! Invariant: tables are changed under one lock of the database, so that nodes which start together do it once; a schema
//! of a later version, or another program's tables, are refused before anything is changed.

use std::time::Duration;

use super::error::{CallError, OpenError};
use super::session::{SETTINGS, Session, statements};

/// The version that this program writes and reads.
pub(super) const SCHEMA_VERSION: i32 = 1;
/// Partitions of `record`: enough that vacuums and indexes stay moderate, few enough that planning is cheap.
const RECORD_PARTITIONS: usize = 16;
/// The advisory lock that guards the tables: "conch" in ASCII, and the lock's number.
const MIGRATION_LOCK: i64 = 0x63_6f6e_6368_0001;
/// Longest wait for another node that changes the tables, and longest change.
const MIGRATION_LIMIT: Duration = Duration::from_secs(300);

/// All names that the store uses. `cluster_meta` shows whose they are.
const TABLES: &[&str] = &[
    "cluster_meta",
    "node_lease",
    "conversation",
    "conv_head",
    "record",
    "conv_due",
    "member",
    "cursor",
    "checkpoint",
];

/// Version 1. Times of leases and due rows are on the server's clock; times that clients see are whole milliseconds.
/// Texts that are compared or ordered are compared by bytes.
const VERSION_1: &str = r#"
CREATE TABLE cluster_meta(one bool PRIMARY KEY DEFAULT true CHECK (one), program text NOT NULL CHECK (program = 'conch'),
  schema_version int NOT NULL, system_id text NOT NULL, restores bigint NOT NULL DEFAULT 0 CHECK (restores >= 0),
  lease_mode text, etcd_cluster_id text, epoch_base bigint NOT NULL DEFAULT 0,
  secret_salt bytea NOT NULL, secret_hash bytea);
CREATE FUNCTION store_gen() RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT restores * 65536 + ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint FROM cluster_meta
$$;
CREATE TABLE node_lease(incarnation uuid PRIMARY KEY, node_name text NOT NULL, region text NOT NULL, addr text NOT NULL,
  beat bigint NOT NULL DEFAULT 0, draining bool NOT NULL DEFAULT false, expires_at timestamptz NOT NULL,
  lifeline bigint) WITH (fillfactor = 50);
CREATE TABLE conversation(conv_id uuid PRIMARY KEY, id text COLLATE "C" NOT NULL, kind smallint NOT NULL, regions text[] NOT NULL,
  home text NOT NULL, title text, agent text, settings text NOT NULL, creator text NOT NULL, created_at bigint NOT NULL);
CREATE TABLE conv_head(conv_id uuid PRIMARY KEY, epoch bigint NOT NULL CHECK (epoch > 0), owner uuid, gen bigint NOT NULL,
  last_seq bigint NOT NULL, reserved_to bigint NOT NULL, last_at bigint NOT NULL DEFAULT 0) WITH (fillfactor = 60);
CREATE TABLE conv_due(conv_id uuid PRIMARY KEY, due_at timestamptz NOT NULL, why smallint NOT NULL);
CREATE INDEX conv_due_at ON conv_due(due_at);
CREATE TABLE member(conv_id uuid NOT NULL, sub text COLLATE "C" NOT NULL, since bigint NOT NULL, PRIMARY KEY (conv_id, sub));
CREATE INDEX member_of ON member(sub, conv_id);
CREATE TABLE cursor(conv_id uuid NOT NULL, sub text COLLATE "C" NOT NULL, seq bigint NOT NULL, PRIMARY KEY (conv_id, sub))
  WITH (fillfactor = 80);
CREATE TABLE checkpoint(conv_id uuid PRIMARY KEY, epoch bigint NOT NULL, version bigint NOT NULL, at_seq bigint NOT NULL,
  state bytea NOT NULL);
CREATE TABLE record(conv_id uuid NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL, kind smallint NOT NULL,
  sender text COLLATE "C" NOT NULL, client_msg_id text COLLATE "C" NOT NULL, name text, turn bigint, at bigint NOT NULL,
  edited_at bigint, deleted_at bigint, body_hash bytea NOT NULL, body text NOT NULL,
  PRIMARY KEY (conv_id, seq), UNIQUE (conv_id, sender, client_msg_id)) PARTITION BY HASH (conv_id);
CREATE INDEX record_message ON record(conv_id, seq) WHERE kind = 1;
"#;

/// The system id of this database: the server's, which a standby shares with its primary, and the database's own number,
/// so that a dump that was loaded beside the original is told from it.
pub(super) const SYSTEM_ID: &str = "(SELECT system_identifier::text FROM pg_control_system()) || '-' ||
    (SELECT oid::text FROM pg_database WHERE datname = current_database())";

/// Brings the tables to this version, or refuses. The session is left without locks.
pub(super) async fn migrate(session: &Session, place: &str) -> Result<(), OpenError> {
    let failed = |error: CallError| of_migration(place, error);
    let begin = format!(
        "SET statement_timeout = '{limit}s'; SET lock_timeout = '{limit}s'; SELECT pg_advisory_lock({MIGRATION_LOCK})",
        limit = MIGRATION_LIMIT.as_secs()
    );
    session.batch(&begin, MIGRATION_LIMIT).await.map_err(failed)?;
    let result = migrate_locked(session, place).await;
    // The session's end would free the lock as well.
    let end = format!("SELECT pg_advisory_unlock({MIGRATION_LOCK}); {}", statements(SETTINGS));
    let ended = session.batch(&end, MIGRATION_LIMIT).await;
    result.and_then(|()| ended.map_err(|error| of_migration(place, error)))
}

async fn migrate_locked(session: &Session, place: &str) -> Result<(), OpenError> {
    let found = version(session, place).await?;
    match found {
        Some(found) if found > SCHEMA_VERSION => Err(OpenError::Version { found, known: SCHEMA_VERSION }),
        Some(_) => Ok(()),
        None => {
            tracing::info!(version = SCHEMA_VERSION, "creating the tables");
            session.batch(&creation(), MIGRATION_LIMIT).await.map_err(|error| of_migration(place, error))
        }
    }
}

/// Refuses a database that has no tables of this version, and changes nothing.
pub(super) async fn expect(session: &Session, place: &str) -> Result<(), OpenError> {
    match version(session, place).await? {
        Some(SCHEMA_VERSION) => Ok(()),
        Some(found) => Err(OpenError::Version { found, known: SCHEMA_VERSION }),
        None => Err(OpenError::Command(format!("the database at {place} holds no tables of Conch's"))),
    }
}

/// One transaction: a crash in the middle leaves nothing.
fn creation() -> String {
    let partitions = (0..RECORD_PARTITIONS).map(|number| {
        format!(
            "CREATE TABLE record_{number:02} PARTITION OF record FOR VALUES WITH (MODULUS {RECORD_PARTITIONS}, REMAINDER {number});\n"
        )
    });
    let partitions: String = partitions.collect();
    format!(
        "BEGIN; {VERSION_1} {partitions}
         INSERT INTO cluster_meta(program, schema_version, system_id, secret_salt)
         VALUES ('conch', {SCHEMA_VERSION}, {SYSTEM_ID}, uuid_send(gen_random_uuid()));
         COMMIT"
    )
}

/// The version of the tables that are there; `None`: there are none.
async fn version(session: &Session, place: &str) -> Result<Option<i32>, OpenError> {
    let failed = |error: CallError| of_migration(place, error);
    let sql = "SELECT coalesce(current_schema(), ''), c.relname FROM pg_class c
               WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ANY($1) ORDER BY c.relname";
    let rows = session.query(sql, &[&TABLES]).await.map_err(failed)?;
    let Some(first) = rows.first() else { return Ok(None) };
    let foreign = || OpenError::Foreign { schema: first.get(0), table: first.get(1) };
    let ours = "SELECT count(*) FROM pg_attribute a WHERE a.attrelid = to_regclass('cluster_meta')
                AND a.attname IN ('program', 'schema_version', 'system_id', 'restores') AND NOT a.attisdropped";
    let row = session.first(ours, &[]).await.map_err(failed)?;
    if row.is_none_or(|row| row.get::<_, i64>(0) != 4) {
        return Err(foreign());
    }
    let row =
        session.first("SELECT schema_version FROM cluster_meta WHERE program = 'conch'", &[]).await.map_err(failed)?;
    row.map(|row| row.get(0)).map(Some).ok_or_else(foreign)
}

fn of_migration(place: &str, error: CallError) -> OpenError {
    if let CallError::Postgres(error) = &error
        && let Some(answer) = error.as_db_error()
    {
        // 42501: no right; 3F000: no schema to create in.
        let detail = answer.message().to_owned();
        match answer.code().code() {
            "42501" => return OpenError::Rights { detail },
            "3F000" => {
                let detail = format!("{detail}: it sees no schema in which it may create tables");
                return OpenError::Rights { detail };
            }
            _ => {}
        }
    }
    OpenError::Failed { place: place.to_owned(), detail: error.of_read().to_string() }
}
