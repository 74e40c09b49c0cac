//! A node in the bench's own process: owners, sequencers and group commit as `conch serve` has them, without connections.
//! What a server loses beside it is the price of its sockets and of reading and writing what goes over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conch_core::body::Body;
use conch_core::ids::{ConvRef, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_server::cluster::heartbeat::{self, LeaseState};
use conch_server::cluster::nodes::Nodes;
use conch_server::config::Config;
use conch_server::events::Events;
use conch_server::link::NoLink;
use conch_server::metrics::Metrics;
use conch_server::node::{Node, Validity};
use conch_server::pressure::Pressure;
use conch_server::router::{Parts, Router};
use conch_server::rules::Rules;
use conch_server::runtime;
use conch_server::turn::agents::Agents;
use conch_store::Store;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::AppendArgs;
use super::super::histogram::{Histogram, Percentiles};
use super::bare;
use crate::exit::Failure;

/// Conversations that are claimed at the same time.
const CLAIMING: usize = 32;

/// A node without connections.
pub(in crate::bench) struct InProcess {
    node: Arc<Node>,
    /// The heart beats as long as somebody listens to it. Whoever loses the lease refuses every send, which the bench reports.
    _lease: watch::Receiver<LeaseState>,
    pub(in crate::bench) router: Router,
}

impl InProcess {
    /// Registers it, alone in its store.
    pub(in crate::bench) async fn start(store: Arc<dyn Store>, config: &Config) -> Result<Self, Failure> {
        let seams = runtime::seams();
        let node = Arc::new(Node {
            me: seams.incarnation(),
            name: "bench-in-process".parse().expect("a valid name"),
            region: config.region.clone(),
            store,
            timing: config.lease.timing(),
            validity: Validity::default(),
            limits: config.owner_limits(),
            rules: Rules::default(),
            metrics: Arc::new(Metrics::new()),
            pressure: Pressure::default(),
            nodes: Nodes::default(),
            events: Events::new(Arc::clone(&seams.clock)),
            seams,
        });
        let lease = heartbeat::start(&node, String::new()).await;
        let lease = lease.map_err(|error| Failure::other(format!("the node in this process: {error}")))?;
        let parts =
            Parts { agents: Arc::new(Agents::default()), on_published: Arc::new(|_, _| {}), link: Arc::new(NoLink) };
        let router = Router::start(Arc::clone(&node), parts);
        Ok(Self { node, _lease: lease, router })
    }

    /// Makes conversations and claims them.
    pub(super) async fn conversations(&self, count: u32) -> Result<Vec<ConvRef>, Failure> {
        let made = bare::create(&self.node.store, "in-process", &self.node.region, count).await?;
        self.claim(&made).await?;
        Ok(made)
    }

    /// Starts an owner for each.
    pub(in crate::bench) async fn claim(&self, conversations: &[ConvRef]) -> Result<(), Failure> {
        let claims = conversations.iter().map(|conversation| async move {
            self.router.place(conversation, None).await.map(drop).map_err(|refusal| Failure::other(refusal.to_string()))
        });
        stream::iter(claims).buffer_unordered(CLAIMING).try_collect().await
    }
}

/// The load of `bench append` on such a node.
pub(super) struct Load {
    node: InProcess,
    conversations: Arc<Vec<ConvRef>>,
    next: Arc<AtomicUsize>,
    body: Body,
}

impl Load {
    pub(super) async fn open(store: Arc<dyn Store>, config: &Config, args: &AppendArgs) -> Result<Self, Failure> {
        let node = InProcess::start(store, config).await?;
        let conversations = Arc::new(node.conversations(args.conversations).await?);
        let body = Body::of(&json!({"text": "x".repeat(args.bytes as usize)}));
        Ok(Self { node, conversations, next: Arc::default(), body })
    }

    /// Sends for this long, as many at a time; acknowledged sends a second, and how long one took.
    pub(super) async fn round(&self, in_flight: u32, duration: Duration) -> Result<(f64, Percentiles), Failure> {
        let (begun, mut tasks) = (Instant::now(), JoinSet::new());
        for _ in 0..in_flight {
            let (router, conversations) = (self.node.router.clone(), Arc::clone(&self.conversations));
            let (next, body) = (Arc::clone(&self.next), self.body.clone());
            let sender: Subject = "bench".parse().expect("a valid subject");
            tasks.spawn(async move {
                let mut acks = Histogram::default();
                while begun.elapsed() < duration {
                    let conversation = &conversations[next.fetch_add(1, Ordering::Relaxed) % conversations.len()];
                    let key = uuid::Uuid::now_v7().to_string().parse().expect("a UUID is printable");
                    let draft = Draft::new(RecordKind::Message, sender.clone(), key, body.clone());
                    let sent = Instant::now();
                    let appended = router.append(conversation, vec![draft]).await;
                    appended.map_err(|refusal| Failure::other(format!("a send in this process: {refusal}")))?;
                    acks.add(sent.elapsed());
                }
                Ok::<_, Failure>(acks)
            });
        }
        let mut acks = Histogram::default();
        while let Some(done) = tasks.join_next().await {
            acks.merge(&done.map_err(|error| Failure::other(error.to_string()))??);
        }
        Ok((acks.count() as f64 / begun.elapsed().as_secs_f64(), acks.percentiles()))
    }
}
