//! A way to the server that a test can hold up or cut: bytes from the client wait at a gate or are lost, or the answers are.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Traffic {
    /// They pass.
    Passes,
    /// What the client sends waits.
    HeldUp,
    /// What the client sends is lost, and nobody answers: a network that drops packets. The connection stays.
    Swallowed,
    /// What the client sends passes; what the server answers is lost, and the connection with it.
    AnswersLost,
}

pub(super) struct Proxy {
    traffic: Arc<watch::Sender<Traffic>>,
    connections: Arc<AtomicUsize>,
    directory: tempfile::TempDir,
}

const NUMBER: u16 = 5432;

impl Proxy {
    /// Listens, on the caller's runtime, in front of the server whose socket is in this directory.
    pub(super) fn start(server: &Path) -> Self {
        let directory =
            tempfile::Builder::new().prefix("conch-px.").tempdir_in("/tmp").expect("/tmp takes a directory");
        let listener = UnixListener::bind(socket(directory.path())).expect("binds");
        let server = socket(server);
        let traffic = Arc::new(watch::Sender::new(Traffic::Passes));
        let connections = Arc::new(AtomicUsize::new(0));
        let (held, count) = (Arc::clone(&traffic), Arc::clone(&connections));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(pass(client, server.clone(), held.subscribe()));
            }
        });
        Self { traffic, connections, directory }
    }

    /// How many connections were made through it so far.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }

    /// The URL of a database through this.
    pub(super) fn url(&self, database: &str) -> String {
        format!("postgres://postgres@/{database}?host={}&port={NUMBER}", self.directory.path().display())
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join(format!(".s.PGSQL.{NUMBER}"))
}

async fn pass(client: UnixStream, server: PathBuf, mut traffic: watch::Receiver<Traffic>) {
    let Ok(server) = UnixStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut gate = traffic.clone();
    let there = tokio::spawn(async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
            if gate.wait_for(|traffic| *traffic != Traffic::HeldUp).await.is_err() {
                return;
            }
            if *gate.borrow() == Traffic::Swallowed {
                continue;
            }
            if to_server.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    });
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
        if *traffic.borrow_and_update() == Traffic::AnswersLost || to_client.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    there.abort();
}
