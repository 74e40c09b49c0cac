//! Runs nodes in this process and speaks to them as clients do. Everything waits for a condition with a deadline.

mod cluster;
mod http;
mod logs;
mod sse;
mod websocket;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conch_core::time::Timestamp;
use conch_server::auth::grants::{Grant, Permission, RateLimit};
use conch_server::auth::secret::{DEVELOPMENT_SECRET_FILE, Mode};
use conch_server::auth::token::{Mint, TokenKey};
use conch_server::config::{Config, Secret, StoreUrl};
use conch_server::serve::{self, ServeError, Started};
use conch_server::stores::OpenStoreError;
use conch_store::sqlite::OpenError;
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) use cluster::Cluster;
pub(crate) use conch_server::fake::{Fake, Reply, Request, chunk};
pub(crate) use http::{Answer, Client, Raw};
pub(crate) use logs::captured_logs;
pub(crate) use sse::{Event, Stream};
pub(crate) use websocket::{RawSocket, Socket, Topic};

/// How long anything may take before a test gives up. Generous: a loaded machine is no failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Between two looks at a condition.
const POLL: Duration = Duration::from_millis(5);
/// The key of the tokens.
const SECRET: &[u8] = b"a key that only these tests have, 32 bytes or more";

/// A change of the configuration, before the start.
pub(crate) type Change = fn(&mut Config);
/// One that knows more than the code.
type AnyChange = Arc<dyn Fn(&mut Config) + Send + Sync>;

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let search = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    within(what, search).await
}

/// Waits for a future, but not for ever.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// The calendar.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the calendar is after 1970");
    Timestamp(i64::try_from(since.as_millis()).expect("the calendar is before the year 292,000,000"))
}

/// A configuration on free ports of loopback, with a key.
pub(crate) fn config(data: &Path) -> Config {
    let mut config = Config { store: StoreUrl::Sqlite(data.to_owned()), ..Config::default() };
    config.listen = loopback();
    config.ops_listen = loopback();
    config.auth.secret = Some(Secret::new(SECRET.to_vec()));
    config
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

/// A running node and its data.
pub(crate) struct Node {
    pub(crate) started: Started,
    pub(crate) data: TempDir,
    change: AnyChange,
    key: TokenKey,
    stop: Option<oneshot::Sender<()>>,
    running: oneshot::Receiver<Result<(), ServeError>>,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: Change) -> Self {
        Self::start_as(change).await
    }

    pub(crate) async fn start_as(change: impl Fn(&mut Config) + Send + Sync + 'static) -> Self {
        Self::start_in(TempDir::new().expect("a temporary directory"), Arc::new(change)).await
    }

    async fn start_in(data: TempDir, change: AnyChange) -> Self {
        logs::capture();
        let mut config = config(data.path());
        change(&mut config);
        config.check().expect("a valid configuration");
        let begun = tokio::time::Instant::now();
        let (started, stop, running) = loop {
            match run(config.clone()).await {
                Ok(running) => break running,
                // What a node leaves behind when it ends (threads of its store) may take a moment to go.
                Err(ServeError::Store(OpenStoreError::Sqlite(OpenError::InUse { .. })))
                    if begun.elapsed() < PATIENCE => {}
                Err(error) => panic!("the node did not start: {error}"),
            }
        };
        let secret = match started.mode {
            Mode::Configured => config.auth.secret.expect("it was configured"),
            Mode::Development => {
                Secret::new(std::fs::read(data.path().join(DEVELOPMENT_SECRET_FILE)).expect("the node made a key"))
            }
        };
        let key = TokenKey::new(&secret).expect("a usable key");
        Self { started, data, change, key, stop: Some(stop), running }
    }

    /// Asks the node to end; does not wait.
    pub(crate) fn ask_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the node's end; gives its data back.
    pub(crate) async fn ended(mut self) -> TempDir {
        self.ask_to_stop();
        let ended = within("the node to end", self.running).await;
        ended.expect("the node does not panic").expect("the node ends well");
        self.data
    }

    /// Ends the node in order and starts another on the same data.
    pub(crate) async fn restart(self) -> Self {
        let change = Arc::clone(&self.change);
        Self::start_in(self.ended().await, change).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.started.listen)
    }

    /// Signs a token.
    pub(crate) fn mint(&self, mint: &Mint) -> String {
        self.key.mint(mint, now()).expect("a valid token")
    }

    /// A token for a subject with these grants, good for an hour.
    pub(crate) fn token(&self, sub: &str, grants: &[(&str, &[Permission])]) -> String {
        self.mint(&mint(sub, grants))
    }

    /// A client who may do everything, without a rate limit.
    pub(crate) fn client(&self, sub: &str) -> Client {
        let mint = Mint { rate_limit: RateLimit::Lifted, ..mint(sub, &[("*", &Permission::ALL)]) };
        Client::new(self.started.listen, Some(self.mint(&mint)))
    }

    /// A client with these grants and the default rate limit.
    pub(crate) fn client_with(&self, sub: &str, grants: &[(&str, &[Permission])]) -> Client {
        Client::new(self.started.listen, Some(self.token(sub, grants)))
    }

    /// A client without a token.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(self.started.listen, None)
    }

    /// The value of a metric's line; 0 while there is no such line.
    pub(crate) async fn metric(&self, line: &str) -> f64 {
        let page = Client::new(self.started.ops_listen, None).get("/metrics").await.text;
        let value = page.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Waits until a metric is what it should be.
    pub(crate) async fn metric_becomes(&self, line: &str, wanted: f64) {
        until(&format!("{line} to be {wanted}"), async || {
            ((self.metric(line).await - wanted).abs() < 0.5).then_some(())
        })
        .await;
    }
}

type Running = (Started, oneshot::Sender<()>, oneshot::Receiver<Result<(), ServeError>>);

/// Runs a node on a thread and a runtime of its own, as a process would.
async fn run(config: Config) -> Result<Running, ServeError> {
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let (end, mut ended) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        // A test that ends without stopping its node has dropped the sender.
        let stop = async move { drop(stopped.await) };
        let started = |started| {
            // Nobody may wait for it any more.
            let _ = ready.send(started);
        };
        let result = runtime.block_on(serve::run(config, started, stop)).map(drop);
        drop(runtime);
        let _ = end.send(result);
    });
    match within("the node to start", is_ready).await {
        Ok(started) => Ok((started, stop, ended)),
        Err(_) => match within("the node's refusal", &mut ended).await.expect("the node does not panic") {
            Err(error) => Err(error),
            Ok(()) => panic!("the node ended before it started"),
        },
    }
}

/// Why a node does not start with this configuration.
pub(crate) async fn refusal_to_start(change: Change) -> ServeError {
    let data = TempDir::new().expect("a temporary directory");
    let mut config = config(data.path());
    change(&mut config);
    match run(config).await {
        Ok(_) => panic!("the node started"),
        Err(error) => error,
    }
}

/// A token's claims, good for an hour.
pub(crate) fn mint(sub: &str, grants: &[(&str, &[Permission])]) -> Mint {
    let grant = |(glob, can): &(&str, &[Permission])| Grant {
        conversations: glob.parse().expect("a valid pattern"),
        can: can.to_vec(),
    };
    Mint {
        sub: sub.to_owned(),
        name: None,
        expires_at: Timestamp(now().0 + 3_600_000),
        grants: grants.iter().map(grant).collect(),
        rate_limit: RateLimit::Default,
    }
}
