//! What the benchmarks need of a database: a schema of its own in which everything is made and which is dropped again, rows
//! in bulk, counts of what was written, and the append without its fence to compare with.
//!
//! Invariant: nothing outside of that schema is touched. The statement without a fence writes to a table of its own, which
//! no other code of Conch reads.
//!
//! Deliberately absent: measuring. Only benchmarks and tests use this.

use std::time::Duration;

use conch_core::ids::Incarnation;

use super::append::Records;
use super::error::{CallError, OpenError};
use super::rows::Id;
use super::session::{Dialer, Parameters, Session};
use super::{Durability, start, url};
use crate::{Batch, Size, StoreError};

/// Longest time for making or dropping the schema, and for filling a table.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long a database that cannot be reached is tried.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// The table without a fence: as `record` is, with the same indexes, but not in partitions, which favours it. Each session
/// of a bench asks for it, one after the other.
const UNFENCED_TABLE: &str = "CREATE TABLE IF NOT EXISTS bench_unfenced(conv_id uuid NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL,
      kind smallint NOT NULL, sender text COLLATE \"C\" NOT NULL, client_msg_id text COLLATE \"C\" NOT NULL, name text,
      turn bigint, at bigint NOT NULL, edited_at bigint, deleted_at bigint, body_hash bytea NOT NULL, body text NOT NULL,
      PRIMARY KEY (conv_id, seq), UNIQUE (conv_id, sender, client_msg_id));
    CREATE INDEX IF NOT EXISTS bench_unfenced_message ON bench_unfenced(conv_id, seq) WHERE kind = 1";

/// A schema of one benchmark.
pub struct Area {
    session: Session,
    schema: String,
    url: String,
}

/// What the statistics of an area's tables say was written so far, as far as its writers' sessions have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writes {
    /// Updates of node rows.
    pub node_rows: u64,
    /// Rows of all other tables that were inserted, updated or deleted.
    pub others: u64,
    /// The sum of all nodes' beats.
    pub beats: u64,
}

impl Area {
    /// Makes the schema `name` in a database. `name`: lower-case letters, digits and underscores.
    ///
    /// # Errors
    /// As [`OpenError`] lists; a URL with `options` is refused, because the schema is named there.
    pub async fn create(database: &str, name: &str) -> Result<Self, OpenError> {
        let plain = name.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_');
        if name.is_empty() || !plain {
            return Err(OpenError::Command(format!("{name:?} is no name for a schema")));
        }
        let (_, query) = database.split_once('?').unwrap_or((database, ""));
        if query.split('&').any(|parameter| parameter.starts_with("options=")) {
            let problem = "must be left out: a benchmark names its own schema there".to_owned();
            return Err(OpenError::Url { part: "options", problem });
        }
        let joint = if database.contains('?') { '&' } else { '?' };
        let url = format!("{database}{joint}options=-csearch_path%3D{name}");
        let make = Dialer::new(url::parse(database)?, "bench".to_owned(), Durability::Unchecked);
        let failed = |error| start::failed(make.place(), error);
        let outside = start::connect(&make, CONNECT_PATIENCE).await?;
        outside.batch(&format!("CREATE SCHEMA {name}"), COMMAND_LIMIT).await.map_err(failed)?;
        let inside = Dialer::new(url::parse(&url)?, "bench".to_owned(), Durability::Unchecked);
        let session = start::connect(&inside, CONNECT_PATIENCE).await?;
        let patient = format!("SET statement_timeout = '{}s'", COMMAND_LIMIT.as_secs());
        session.batch(&patient, COMMAND_LIMIT).await.map_err(failed)?;
        Ok(Self { session, schema: name.to_owned(), url })
    }

    /// The URL under which a store sees this schema alone.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Inserts conversations `PREFIX0` to `PREFIX(count - 1)`, open to everybody, without a head: nobody owns them yet.
    ///
    /// # Errors
    /// As the server's.
    pub async fn conversations(&self, prefix: &str, count: u32) -> Result<(), StoreError> {
        let sql = "INSERT INTO conversation(conv_id, id, kind, regions, home, settings, creator, created_at)
                   SELECT encode(substr(sha256(convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid, id, 1, '{}', 'bench', '{}', 'bench', 0
                   FROM (SELECT $1::text || number AS id FROM generate_series(0, $2::bigint - 1) AS number) AS named";
        self.fill(sql, &[&prefix, &i64::from(count)]).await.map(drop)
    }

    /// Makes one registered incarnation the owner of all of an area's conversations that have no head.
    ///
    /// # Errors
    /// As the server's.
    pub async fn own_all(&self, owner: Incarnation) -> Result<u64, StoreError> {
        let sql = "INSERT INTO conv_head(conv_id, epoch, owner, gen, last_seq, reserved_to)
                   SELECT conv_id, 1, $1, store_gen(), 0, 0 FROM conversation ON CONFLICT DO NOTHING";
        self.fill(sql, &[&Id::from(owner)]).await
    }

    /// Runs a statement that takes its time.
    async fn fill(&self, sql: &str, parameters: Parameters<'_>) -> Result<u64, StoreError> {
        self.session.client().execute(sql, parameters).await.map_err(|error| CallError::from(error).of_write())
    }

    /// What was written so far.
    ///
    /// # Errors
    /// As the server's.
    pub async fn writes(&self) -> Result<Writes, StoreError> {
        // This session's own writes are told only now and then, too.
        self.session.query("SELECT pg_stat_force_next_flush()", &[]).await.map_err(|error| error.of_read())?;
        let sql = "SELECT coalesce(sum(n_tup_upd) FILTER (WHERE relname = 'node_lease'), 0)::bigint,
                     coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del) FILTER (WHERE relname <> 'node_lease'), 0)::bigint,
                     (SELECT coalesce(sum(beat), 0)::bigint FROM node_lease)
                   FROM pg_stat_user_tables WHERE schemaname = current_schema()";
        let row = self.session.first(sql, &[]).await.map_err(|error| error.of_read())?;
        let row = row.ok_or_else(|| StoreError::Damaged("a sum has no row".to_owned()))?;
        let number = |index| u64::try_from(row.get::<_, i64>(index)).unwrap_or(0);
        Ok(Writes { node_rows: number(0), others: number(1), beats: number(2) })
    }

    /// Rows that were read so far, by scans of tables and of indexes, of all tables but that of the nodes, whose hearts beat.
    ///
    /// # Errors
    /// As the server's.
    pub async fn rows_read(&self) -> Result<u64, StoreError> {
        let sql = "SELECT coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
                   FROM pg_stat_user_tables WHERE schemaname = current_schema() AND relname <> 'node_lease'";
        let row = self.session.first(sql, &[]).await.map_err(|error| error.of_read())?;
        let row = row.ok_or_else(|| StoreError::Damaged("a sum has no row".to_owned()))?;
        Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
    }

    /// What all tables of the schema take, with their indexes.
    ///
    /// # Errors
    /// As the server's.
    pub async fn size(&self) -> Result<Size, StoreError> {
        let sql = "SELECT (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
                       WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'),
                     (SELECT coalesce(sum(octet_length(state)), 0)::bigint FROM checkpoint)";
        let row = self.session.first(sql, &[]).await.map_err(|error| error.of_read())?;
        let row = row.ok_or_else(|| StoreError::Damaged("a sum has no row".to_owned()))?;
        let number = |index| u64::try_from(row.get::<_, i64>(index)).unwrap_or(0);
        Ok(Size { bytes: number(0), checkpoint_bytes: number(1) })
    }

    /// A session that appends without a fence.
    ///
    /// # Errors
    /// As the server's.
    pub async fn unfenced(&self) -> Result<Unfenced, OpenError> {
        let dialer = Dialer::new(url::parse(&self.url)?, "bench".to_owned(), Durability::Unchecked);
        let session = start::connect(&dialer, CONNECT_PATIENCE).await?;
        session.batch(UNFENCED_TABLE, COMMAND_LIMIT).await.map_err(|error| start::failed(dialer.place(), error))?;
        Ok(Unfenced { session })
    }

    /// Drops the schema with all that is in it.
    ///
    /// # Errors
    /// As the server's.
    pub async fn remove(self) -> Result<(), StoreError> {
        let drop = format!("DROP SCHEMA {} CASCADE", self.schema);
        self.session.batch(&drop, COMMAND_LIMIT).await.map_err(|error| error.of_write())
    }
}

/// Writes the same rows as an append does, and looks at no head.
pub struct Unfenced {
    session: Session,
}

impl Unfenced {
    /// Inserts the records of these batches in one statement; how many are new.
    ///
    /// # Errors
    /// As the server's.
    pub async fn append(&self, batches: &[Batch]) -> Result<u64, StoreError> {
        let sql = "INSERT INTO bench_unfenced(conv_id, seq, epoch, kind, sender, client_msg_id, name, turn, at, body_hash, body)
                   SELECT conv_id, seq, 1, kind, sender, client_msg_id, name, turn,
                     floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint, body_hash, body
                   FROM unnest($1::uuid[], $2::bigint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::bigint[],
                     $8::bytea[], $9::text[])
                     AS m(conv_id, seq, kind, sender, client_msg_id, name, turn, body_hash, body)
                   ON CONFLICT (conv_id, sender, client_msg_id) DO NOTHING";
        let records = Records::of(batches);
        self.session.execute(sql, &records.parameters()).await.map_err(|error| error.of_write())
    }
}
