//! A node's end of the link with a scripted service, and a proxy that cuts what runs through it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use conch_core::ids::{ConversationId, Epoch, Generation, Incarnation, LogId, Seq};
use conch_core::refusal::{Code, Refusal};
use conch_core::wire::link::FEATURES;
use conch_server::auth::secret::{Mode, Secret};
use conch_server::link::{
    LinkKey, LinkLimits, LinkListener, LinkSettings, Notice, Peer, Request, Response, Service, TcpLink,
};
use conch_server::metrics::Metrics;
use conch_server::owner::{Follow, FollowFrame, FollowerReport, Reports};
use conch_server::runtime;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// Longer than anything takes: a test that reaches it fails.
pub(super) const LONG: Duration = Duration::from_secs(20);
/// The incarnation of the node that is asked.
pub(super) const OWNER: Incarnation = Incarnation(0xb);
const ASKER: Incarnation = Incarnation(0xa);

pub(super) fn conversation(name: &str) -> ConversationId {
    name.parse().expect("valid")
}

/// Limits under which a silent peer is noticed soon.
pub(super) fn quick() -> LinkLimits {
    LinkLimits { silence: Duration::from_millis(300), hello: Duration::from_millis(500), ..LinkLimits::default() }
}

pub(super) fn settings(incarnation: Incarnation, secret: u8, limits: LinkLimits) -> LinkSettings {
    LinkSettings {
        incarnation,
        node: "n".parse().expect("valid"),
        cluster: "c".to_owned(),
        features: FEATURES,
        key: LinkKey::derived(&Secret::new(vec![secret; 32])),
        tls: None,
        limits,
        metrics: Arc::new(Metrics::new()),
        seams: runtime::seams(),
    }
}

/// The asking end, with the usual secret.
pub(super) fn asker(limits: LinkLimits) -> TcpLink {
    TcpLink::new(settings(ASKER, 7, limits))
}

/// The value of a metric with its labels, as the page has it.
pub(super) fn metric(metrics: &Metrics, name: &str) -> String {
    let page = metrics.encode("").1;
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in\n{page}")).to_owned()
}

/// Answers by the conversation's name: a number is given back; `held…` waits to be released; else nothing is known.
pub(super) struct Scripted {
    pub(super) asked: AtomicUsize,
    pub(super) done: AtomicUsize,
    /// The conversations of appends, in the order in which they were begun.
    pub(super) appends: Mutex<Vec<String>>,
    pub(super) held: Notify,
    pub(super) release: Semaphore,
    pub(super) notices: mpsc::UnboundedSender<(Incarnation, Notice)>,
    reports: mpsc::UnboundedSender<FollowerReport>,
    follows: Mutex<BTreeMap<ConversationId, mpsc::Receiver<FollowFrame>>>,
}

#[async_trait]
impl Service for Scripted {
    async fn answer(&self, _: Incarnation, request: Request) -> Response {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let connected = match request {
            Request::Sessions { conversation } => {
                if conversation.as_str().starts_with("held") {
                    self.held.notify_one();
                    self.release.acquire().await.expect("never closed").forget();
                }
                conversation.as_str().parse().ok()
            }
            Request::Append { conversation, drafts, .. } => {
                self.appends.lock().expect("not poisoned").push(conversation.as_str().to_owned());
                // Nothing here is done at once.
                tokio::task::yield_now().await;
                Some(u32::try_from(drafts.len()).expect("few"))
            }
            _ => None,
        };
        self.done.fetch_add(1, Ordering::SeqCst);
        Response::Sessions { connected, presence: None }
    }

    async fn follow(&self, _: Incarnation, conversation: &ConversationId) -> Result<Follow, Refusal> {
        if conversation.as_str().starts_with("held") {
            self.held.notify_one();
            self.release.acquire().await.expect("never closed").forget();
        }
        let frames = self.follows.lock().expect("not poisoned").remove(conversation);
        let frames = frames.ok_or_else(|| Refusal::new(Code::NotFound, "nobody owns it here"))?;
        let reports = self.reports.clone();
        Ok(Follow {
            epoch: Epoch(3),
            incarnation: OWNER,
            log: LogId::new("s", Generation(1)),
            position: Seq(5),
            snapshot: None,
            frames,
            reports: Reports::new(move |report| drop(reports.send(report))),
        })
    }

    fn notice(&self, from: Incarnation, notice: Notice) {
        drop(self.notices.send((from, notice)));
    }
}

/// The end that is asked.
pub(super) struct Node {
    pub(super) addr: SocketAddr,
    pub(super) service: Arc<Scripted>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) notices: mpsc::UnboundedReceiver<(Incarnation, Notice)>,
    pub(super) reports: mpsc::UnboundedReceiver<FollowerReport>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Node {
    pub(super) async fn start(settings: LinkSettings) -> Self {
        let (notices_to, notices) = mpsc::unbounded_channel();
        let (reports_to, reports) = mpsc::unbounded_channel();
        let service = Arc::new(Scripted {
            asked: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            appends: Mutex::default(),
            held: Notify::new(),
            release: Semaphore::new(0),
            notices: notices_to,
            reports: reports_to,
            follows: Mutex::default(),
        });
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = LinkListener::bind(any, Mode::Development).await.expect("loopback");
        let (addr, metrics) = (listener.addr(), Arc::clone(&settings.metrics));
        let (stop, stopped) = oneshot::channel();
        let serving = listener.serve(settings, Arc::clone(&service) as Arc<dyn Service>, async {
            // Whether it is told to or dropped: it stops.
            let _ = stopped.await;
        });
        Self { addr, service, metrics, notices, reports, stop: Some(stop), serving: tokio::spawn(serving) }
    }

    /// With the usual secret.
    pub(super) async fn usual() -> Self {
        Self::start(settings(OWNER, 7, quick())).await
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { incarnation: OWNER, addr: self.addr.to_string() }
    }

    /// A conversation that may be followed once; what is sent here goes to the follower.
    pub(super) fn owns(&self, name: &str, room: usize) -> mpsc::Sender<FollowFrame> {
        let (to, frames) = mpsc::channel(room);
        self.service.follows.lock().expect("not poisoned").insert(conversation(name), frames);
        to
    }

    pub(super) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(LONG, &mut self.serving).await.expect("it ends").expect("without a panic");
    }
}

pub(super) fn sessions(name: &str) -> Request {
    Request::Sessions { conversation: conversation(name) }
}

pub(super) fn connected(count: u32) -> Response {
    Response::Sessions { connected: Some(count), presence: None }
}

/// What the proxy does to what runs through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nothing.
    Through,
    /// Takes nothing more from either side, and keeps both connections.
    Silent,
    /// Resets both connections.
    Reset,
}

/// A proxy to a node.
pub(super) struct Proxy {
    pub(super) addr: SocketAddr,
    pub(super) cut: watch::Sender<Cut>,
}

impl Proxy {
    pub(super) async fn to(node: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let addr = listener.local_addr().expect("bound");
        let (cut, watched) = watch::channel(Cut::Through);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut watched = watched.clone();
                watched.borrow_and_update();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(node).await.expect("the node listens");
                    let cut = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                        cut = watched.wait_for(|cut| *cut != Cut::Through) => cut.map(|cut| *cut),
                    };
                    if cut.is_ok_and(|cut| cut == Cut::Silent) {
                        // Until the test is over.
                        let _ = watched.wait_for(|cut| *cut == Cut::Reset).await;
                    }
                    for stream in [near, far] {
                        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an open socket");
                    }
                });
            }
        });
        Self { addr, cut }
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { incarnation: OWNER, addr: self.addr.to_string() }
    }
}
