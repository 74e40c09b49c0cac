//! What is checked before a node may use a database: the server, what lies between, and whose database it is.

use std::time::Duration;

use tokio_postgres::error::SqlState;

use super::error::{CallError, OpenError, sessions_are_mixed_up, text_of};
use super::schema::{self, SYSTEM_ID};
use super::session::{Dialer, SETTINGS, Session};
use super::{LeaseMode, Options};
use crate::StoreError;

/// The oldest server, as `server_version_num` counts.
const SERVER_VERSION_MIN: i32 = 150_000;
/// First pause between two tries to connect; doubled each time.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two tries.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Answers of a server that will soon be there: it starts, stops, or is full.
const PASSING: &[&str] = &["57P01", "57P02", "57P03", "53300"];

/// What a node knows of its database once it may use it.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// Where epochs of a lease store begin.
    pub(super) epoch_base: u64,
}

/// Connects, checks the server and the way to it, and brings the tables to this version.
pub(super) async fn prepare(dialer: &Dialer, options: &Options) -> Result<Session, OpenError> {
    let session = connect_alone(dialer, options.connect_patience).await?;
    check_server(&session, dialer.place()).await?;
    schema::migrate(&session, dialer.place()).await?;
    Ok(session)
}

/// As [`connect`], and refuses a way to the server on which sessions are shared, before anything is prepared on it.
pub(super) async fn connect_alone(dialer: &Dialer, patience: Duration) -> Result<Session, OpenError> {
    let session = connect(dialer, patience).await?;
    check_sessions(&session, dialer, patience).await?;
    Ok(session)
}

/// Dials until it works, the server says no for good, or the patience is spent.
pub(super) async fn connect(dialer: &Dialer, patience: Duration) -> Result<Session, OpenError> {
    let started = tokio::time::Instant::now();
    let (mut tries, mut pause) = (0, RETRY_PAUSE);
    loop {
        tries += 1;
        let error = match dialer.dial("start").await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let detail = match final_refusal(dialer, error) {
            Ok(refusal) => return Err(refusal),
            Err(detail) => detail,
        };
        let left = patience.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Err(OpenError::Connect { place: dialer.place().to_owned(), tries, detail });
        }
        tracing::debug!(tries, detail, "the database cannot be reached yet");
        // The last try is made when the patience ends.
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
}

/// `Ok`: it will not get better by waiting. `Err`: what went wrong this time.
fn final_refusal(dialer: &Dialer, error: CallError) -> Result<OpenError, String> {
    let place = dialer.place().to_owned();
    let error = match error {
        CallError::Postgres(error) => error,
        CallError::FsyncOff => return Ok(OpenError::FsyncOff),
        other => return Err(other.of_read().to_string()),
    };
    let detail = text_of(&error);
    if detail.contains("database does not allow writes") {
        return Ok(OpenError::ReadOnly { place });
    }
    match error.as_db_error() {
        // Of PgBouncer, about what the URL asks for: Conch's own settings are statements.
        Some(answer) if answer.message().contains("unsupported startup parameter") => {
            let detail = format!("{detail}; a pooler does not pass on what the URL's options set");
            Ok(OpenError::Refused { place, detail })
        }
        Some(answer) if PASSING.contains(&answer.code().code()) => Err(detail),
        Some(_) => Ok(OpenError::Refused { place, detail }),
        // A wrong password method and the like; what is not an answer may pass.
        None if error.to_string().contains("authentication") => Ok(OpenError::Refused { place, detail }),
        None => Err(detail),
    }
}

async fn check_server(session: &Session, place: &str) -> Result<(), OpenError> {
    let sql = "SELECT current_setting('server_version_num')::int, current_setting('server_version'),
               pg_is_in_recovery() OR current_setting('transaction_read_only')::bool";
    let row = first(session, place, sql).await?;
    let number: i32 = row.get(0);
    if number < SERVER_VERSION_MIN {
        return Err(OpenError::ServerVersion { found: row.get(1), needed: SERVER_VERSION_MIN / 10_000 });
    }
    if row.get(2) {
        return Err(OpenError::ReadOnly { place: place.to_owned() });
    }
    Ok(())
}

/// Shows a pooler that hands one server session to several clients, or several to one. Asks without prepared statements: a
/// pooler keeps those of whoever was there before.
async fn check_sessions(session: &Session, dialer: &Dialer, patience: Duration) -> Result<(), OpenError> {
    let place = dialer.place();
    let pooler = |evidence: String| OpenError::Pooler { evidence };
    check_settings(session, place).await?;
    // While the second session is in a transaction, a pooler has to give the first one another server process than the one
    // that it had, or the same one as the second's; with a single process it gives none at all.
    let before = pid(session, place).await?;
    let second = connect(dialer, patience).await?;
    second.batch("BEGIN", Duration::from_secs(2)).await.map_err(|error| match &error {
        // Of a pooler in statement mode; a server takes this anywhere.
        CallError::Postgres(refused) if refused.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
            pooler(format!("it refuses transactions: {}", text_of(refused)))
        }
        _ => failed(place, error),
    })?;
    let other = pid(&second, place).await?;
    let after = tokio::time::timeout(Duration::from_secs(2), pid(session, place)).await;
    let after = after.map_err(|_| pooler("a session waits for another one's transaction".to_owned()))??;
    if before != after || other == after {
        return Err(pooler(format!(
            "one session ran in the server processes {before} and {after}, another in {other}"
        )));
    }
    Ok(())
}

/// What was set is set.
async fn check_settings(session: &Session, place: &str) -> Result<(), OpenError> {
    let units = [("4s", "4000"), ("2s", "2000"), ("500ms", "500")];
    let asked: Vec<_> = SETTINGS.iter().map(|(name, _)| format!("current_setting('{name}')")).collect();
    let row = session.simple(&format!("SELECT {}", asked.join(", "))).await.map_err(|error| failed(place, error))?;
    for (index, (name, value)) in SETTINGS.iter().enumerate() {
        let found = row.get(index).unwrap_or_default();
        if found != *value && !units.contains(&(*value, found)) {
            let evidence = format!("the setting {name} is {found}, though the session asked for {value}");
            return Err(OpenError::Pooler { evidence });
        }
    }
    Ok(())
}

async fn pid(session: &Session, place: &str) -> Result<i32, OpenError> {
    let row = session.simple("SELECT pg_backend_pid()").await.map_err(|error| failed(place, error))?;
    let pid = row.get(0).and_then(|text| text.parse().ok());
    pid.ok_or_else(|| failed(place, StoreError::Damaged("pg_backend_pid() without an answer".to_owned()).into()))
}

/// Whose database is it? Records what no node has recorded yet.
pub(super) async fn join(session: &Session, place: &str, options: &Options) -> Result<Facts, OpenError> {
    check_system_id(session, place).await?;
    let (mode, cluster) = options.lease_mode.stored();
    // The first node writes; whoever comes later is compared. One row, so that two first nodes take turns at it.
    let sql = "UPDATE cluster_meta SET lease_mode = coalesce(lease_mode, $1), etcd_cluster_id =
                 CASE WHEN lease_mode IS NULL THEN $2 ELSE etcd_cluster_id END,
                 secret_hash = coalesce(secret_hash, sha256(secret_salt || $3))
               WHERE lease_mode IS NULL OR secret_hash IS NULL";
    let fingerprint = &options.secret_fingerprint[..];
    session.execute(sql, &[&mode, &cluster, &fingerprint]).await.map_err(|error| failed(place, error))?;
    let sql =
        "SELECT lease_mode, etcd_cluster_id, secret_hash = sha256(secret_salt || $1), epoch_base FROM cluster_meta";
    let row = session.first(sql, &[&fingerprint]).await.map_err(|error| failed(place, error))?;
    let row = row.ok_or_else(|| failed(place, StoreError::Damaged("cluster_meta is empty".to_owned()).into()))?;
    let (found_mode, found_cluster): (String, Option<String>) = (row.get(0), row.get(1));
    if (found_mode.as_str(), &found_cluster) != (mode, &cluster) {
        let recorded = LeaseMode::describe(&found_mode, found_cluster.as_deref());
        return Err(OpenError::LeaseMode { recorded, asked: LeaseMode::describe(mode, cluster.as_deref()) });
    }
    if !row.get::<_, bool>(2) {
        return Err(OpenError::Secret);
    }
    let epoch_base: i64 = row.get(3);
    Ok(Facts { epoch_base: u64::try_from(epoch_base).unwrap_or(0) })
}

async fn check_system_id(session: &Session, place: &str) -> Result<(), OpenError> {
    let (recorded, found) = system_ids(session, place).await?;
    if recorded == found { Ok(()) } else { Err(OpenError::Copied { recorded, found }) }
}

/// The system id that the tables were written under, and that of this database.
pub(super) async fn system_ids(session: &Session, place: &str) -> Result<(String, String), OpenError> {
    let sql = format!("SELECT system_id, {SYSTEM_ID} FROM cluster_meta");
    let rows = session.client().query(&sql, &[]).await.map_err(|error| failed(place, error.into()))?;
    let row =
        rows.first().ok_or_else(|| failed(place, StoreError::Damaged("cluster_meta is empty".to_owned()).into()))?;
    Ok((row.get(0), row.get(1)))
}

async fn first(session: &Session, place: &str, sql: &'static str) -> Result<tokio_postgres::Row, OpenError> {
    let row = session.first(sql, &[]).await.map_err(|error| failed(place, error))?;
    row.ok_or_else(|| failed(place, StoreError::Damaged("a query without a row".to_owned()).into()))
}

pub(super) fn failed(place: &str, error: CallError) -> OpenError {
    if let CallError::Postgres(error) = &error {
        if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
            return OpenError::Rights { detail: text_of(error) };
        }
        if sessions_are_mixed_up(error) {
            return OpenError::Pooler { evidence: text_of(error) };
        }
    }
    OpenError::Failed { place: place.to_owned(), detail: error.of_read().to_string() }
}
