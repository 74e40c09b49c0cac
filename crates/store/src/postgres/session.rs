//! One connection to the server, its settings and its prepared statements.
//!
//! Invariants: every session runs READ COMMITTED, with the time-outs of [`SETTINGS`] and on a server that takes writes and, as it
//! says when the session begins, syncs them;
//! a call that gets no answer in time gives its session up, so that nobody waits for it again; a server's warning while
//! a statement runs ends the session, because the one that matters says "committed here, but not replicated".
//!
//! Deliberately absent: retries, and cancelling. A statement that was sent is awaited or abandoned.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row, SimpleQueryMessage, SimpleQueryRow, Statement};

use super::Durability;
use super::error::{CallError, sessions_are_mixed_up, text_of};
use super::url::{Encryption, Target};
use crate::StoreError;

/// A connection is made within this time, or not at all.
pub(super) const DIAL_LIMIT: Duration = Duration::from_secs(4);
/// Longest wait for an answer; a little more than the server's own limits, so that it answers first.
pub(super) const CALL_LIMIT: Duration = Duration::from_millis(5_500);
/// What every session runs with (design: leases and fences). Set by statements, before anything else: poolers in session mode
/// pass these on, and not what a connection is opened with. So a RESET does not come back to it; see [`statements`].
pub(super) const SETTINGS: &[(&str, &str)] = &[
    ("statement_timeout", "4s"),
    ("lock_timeout", "2s"),
    ("idle_in_transaction_session_timeout", "2s"),
    ("client_connection_check_interval", "500ms"),
    ("synchronous_commit", "on"),
    ("default_transaction_isolation", "read committed"),
    ("idle_session_timeout", "0"),
];

/// Parameters of a statement.
pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Makes sessions.
pub(super) struct Dialer {
    target: Target,
    node: String,
    durability: Durability,
    /// Settings besides [`SETTINGS`].
    further: &'static [(&'static str, &'static str)],
}

impl Dialer {
    pub(super) fn new(target: Target, node: String, durability: Durability) -> Self {
        Self { target, node, durability, further: &[] }
    }

    /// The same for sessions with these settings besides [`SETTINGS`].
    pub(super) fn with(&self, further: &'static [(&'static str, &'static str)]) -> Self {
        Self { target: self.target.clone(), node: self.node.clone(), durability: self.durability, further }
    }

    /// Hosts and ports, for messages.
    pub(super) fn place(&self) -> &str {
        &self.target.place
    }

    /// Dials, on the runtime that it is called on. `purpose` is shown in the server's list of activity.
    pub(super) async fn dial(&self, purpose: &str) -> Result<Session, CallError> {
        let (session, driver) = self.dial_watched(purpose).await?;
        drop(driver);
        Ok(session)
    }

    /// As [`Dialer::dial`], with the task that ends when the session does.
    pub(super) async fn dial_watched(&self, purpose: &str) -> Result<(Session, JoinHandle<()>), CallError> {
        let mut config = self.target.config.clone();
        config.application_name(format!("conch/{}/{purpose}", self.node));
        let settings = [statements(SETTINGS), statements(self.further)].concat();
        let dialled = tokio::time::timeout(DIAL_LIMIT, async {
            let opening = Opening(Some(match &self.target.encryption {
                Encryption::Off => {
                    let (client, connection) = config.connect(NoTls).await?;
                    Session::start(client, connection)
                }
                Encryption::Tls(connector) => {
                    let (client, connection) = config.connect(connector.clone()).await?;
                    Session::start(client, connection)
                }
            }));
            opening.set(&settings, self.durability).await
        });
        dialled.await.unwrap_or(Err(CallError::TimedOut(DIAL_LIMIT)))
    }
}

/// The statements that set these, to be sent at once.
pub(super) fn statements(settings: &[(&str, &str)]) -> String {
    settings.iter().map(|(name, value)| format!("SET {name} = '{value}';")).collect()
}

/// A session without its settings, which is given up if it does not get them, or nobody waits for that.
struct Opening(Option<(Session, JoinHandle<()>)>);

impl Opening {
    /// In one message, so that it is one round trip; not armed, for no statement of ours runs yet. The server may have been
    /// restarted without what was checked when the node started.
    async fn set(mut self, settings: &str, durability: Durability) -> Result<(Session, JoinHandle<()>), CallError> {
        let (session, _) = self.0.as_ref().expect("it is there until it is taken below");
        let answer = session.client.simple_query(&format!("{settings}SHOW fsync")).await?;
        let syncs = answer.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("on"),
            _ => false,
        });
        if !syncs && durability == Durability::Checked {
            return Err(CallError::FsyncOff);
        }
        Ok(self.0.take().expect("it was there"))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some((session, _)) = &self.0 {
            session.give_up();
        }
    }
}

/// A connection in use.
pub(super) struct Session {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
    driver: tokio::task::AbortHandle,
    /// Set with the first statement: from then on a warning is about one of ours.
    armed: Arc<AtomicBool>,
}

impl Session {
    fn start<S, T>(client: Client, connection: Connection<S, T>) -> (Self, JoinHandle<()>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let armed = Arc::new(AtomicBool::new(false));
        let driver = tokio::spawn(drive(connection, Arc::clone(&armed)));
        let session = Self { client, statements: Mutex::default(), driver: driver.abort_handle(), armed };
        (session, driver)
    }

    /// True once nothing can be asked any more.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.driver.is_finished()
    }

    /// Ends the connection without waiting for anything. What was sent may still be carried out.
    pub(super) fn give_up(&self) {
        self.driver.abort();
    }

    /// Runs a statement, prepared once a session, and returns its rows.
    pub(super) async fn query(&self, sql: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, CallError> {
        self.bounded(CALL_LIMIT, async {
            let statement = self.prepared(sql).await?;
            self.client.query(&statement, parameters).await.map_err(CallError::from)
        })
        .await
    }

    /// As [`Session::query`], for statements that have at most one row.
    pub(super) async fn first(&self, sql: &'static str, parameters: Parameters<'_>) -> Result<Option<Row>, CallError> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    /// Runs a statement and returns how many rows it changed.
    pub(super) async fn execute(&self, sql: &'static str, parameters: Parameters<'_>) -> Result<u64, CallError> {
        self.bounded(CALL_LIMIT, async {
            let statement = self.prepared(sql).await?;
            self.client.execute(&statement, parameters).await.map_err(CallError::from)
        })
        .await
    }

    /// Runs statements without parameters, within `limit`.
    pub(super) async fn batch(&self, sql: &str, limit: Duration) -> Result<(), CallError> {
        self.bounded(limit, async { self.client.batch_execute(sql).await.map_err(CallError::from) }).await
    }

    /// Runs a statement without a prepared one, and returns its only row.
    pub(super) async fn simple(&self, sql: &str) -> Result<SimpleQueryRow, CallError> {
        let answer = self.bounded(CALL_LIMIT, async { self.client.simple_query(sql).await.map_err(CallError::from) });
        let row = answer.await?.into_iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        row.ok_or_else(|| StoreError::Damaged("a query without a row".to_owned()).into())
    }

    /// The client itself, for a transaction or a stream.
    pub(super) fn client(&self) -> &Client {
        self.armed.store(true, Ordering::Relaxed);
        &self.client
    }

    async fn bounded<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        if self.is_closed() {
            return Err(StoreError::Unavailable("the connection to the database was lost".to_owned()).into());
        }
        self.armed.store(true, Ordering::Relaxed);
        match tokio::time::timeout(limit, work).await {
            Ok(answer) => answer,
            Err(_) => {
                self.give_up();
                Err(CallError::TimedOut(limit))
            }
        }
    }

    pub(super) async fn prepared(&self, sql: &'static str) -> Result<Statement, CallError> {
        let known = self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        // Nothing was written yet, whatever goes wrong here. Mixed-up sessions are passed on as what they are.
        let statement = self.client.prepare(sql).await.map_err(|error| match sessions_are_mixed_up(&error) {
            true => CallError::Postgres(error),
            false => StoreError::Unavailable(text_of(&error)).into(),
        })?;
        self.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(sql, statement.clone());
        Ok(statement)
    }
}

/// Drives the connection until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, armed: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|context| connection.poll_message(context)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                let warning = matches!(notice.code().code(), "01000" | "57P01");
                if warning && armed.load(Ordering::Relaxed) {
                    tracing::warn!(message = notice.message(), "the database warned; the connection is given up");
                    return;
                }
                tracing::debug!(message = notice.message(), "a notice from the database");
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(error = text_of(&error), "a connection to the database ended");
                return;
            }
            None => return,
        }
    }
}

/// A place for one session that is dialled again when it was lost. All who wait for it wait for the same dial, and share
/// its end: with a server that does not answer nobody waits longer than for one.
///
/// Its sessions live on the runtime that it is used on.
pub(super) struct Slot {
    purpose: &'static str,
    latest: Mutex<Latest>,
}

#[derive(Default)]
struct Latest {
    number: u64,
    dial: Option<Dial>,
}

/// What a dial led to; nothing as long as it is under way.
type Dial = watch::Receiver<Option<Result<Arc<Session>, StoreError>>>;

impl Slot {
    pub(super) fn new(purpose: &'static str) -> Self {
        Self { purpose, latest: Mutex::default() }
    }

    /// The session; a new one if there is none that lives. Cancel safe: a dial goes on for the others.
    pub(super) async fn get(&self, dialer: &Arc<Dialer>) -> Result<Arc<Session>, StoreError> {
        Ok(self.numbered(dialer).await?.0)
    }

    /// The same with the session's number: another session has a higher one.
    pub(super) async fn numbered(&self, dialer: &Arc<Dialer>) -> Result<(Arc<Session>, u64), StoreError> {
        let (number, mut dial) = self.dial(dialer);
        let ended = || StoreError::Unavailable("the runtime ended meanwhile".to_owned());
        let dialled = dial.wait_for(Option::is_some).await.map_err(|_| ended())?.clone();
        Ok((dialled.unwrap_or_else(|| Err(ended()))?, number))
    }

    /// The dial that is under way, or the last one if its session lives; else a new one.
    fn dial(&self, dialer: &Arc<Dialer>) -> (u64, Dial) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dial) = latest.dial.as_ref().filter(|dial| is_of_use(dial)) {
            return (latest.number, dial.clone());
        }
        let (done, dial) = watch::channel(None);
        let (dialer, purpose) = (Arc::clone(dialer), self.purpose);
        tokio::spawn(async move {
            let dialled = dialer.dial(purpose).await.map(Arc::new).map_err(|error| not_dialled(&dialer, error));
            // The slot may be gone.
            let _ = done.send(Some(dialled));
        });
        latest.number += 1;
        latest.dial = Some(dial.clone());
        (latest.number, dial)
    }
}

fn is_of_use(dial: &Dial) -> bool {
    match &*dial.borrow() {
        Some(Ok(session)) => !session.is_closed(),
        Some(Err(_)) => false,
        // An error: its runtime has ended.
        None => dial.has_changed().is_ok(),
    }
}

/// A failed dial is definite: nothing was asked yet.
pub(super) fn not_dialled(dialer: &Dialer, error: CallError) -> StoreError {
    let detail = match error {
        CallError::Postgres(error) => text_of(&error),
        other => other.of_read().to_string(),
    };
    StoreError::Unavailable(format!("cannot connect to the database at {}: {detail}", dialer.place()))
}
