//! Several gateways on one database, a channel, and the sessions in it: what the benches of a crowd have in common.

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use super::cluster::{Cluster, Plan};
use super::database::Database;
use super::load::Dialect;
use super::process;
use super::progress;
use super::server::metric;
use super::sessions::{SPARE_FILES, Wanted};
use crate::client::{HttpClient, Request};
use crate::exit::Failure;

/// Connections to the database that a node has at most, with the usual settings, and some more.
const CONNECTIONS_A_NODE: usize = 24;
/// Members that are added at the same time.
const ADDING: usize = 32;
/// Progress is shown after so many of them.
const SHOWN_EVERY: usize = 10_000;

/// The nodes with their channel.
pub(super) struct Gateways {
    pub(super) cluster: Cluster,
    pub(super) conversation: String,
    database: Database,
}

/// What is wanted.
pub(super) struct Crowd<'a> {
    /// A database, or none.
    pub(super) store: Option<&'a str>,
    pub(super) gateways: usize,
    /// Sessions that one gateway has to hold at most.
    pub(super) sessions_a_gateway: usize,
    /// Channels of one session.
    pub(super) width: usize,
    /// Settings of the nodes.
    pub(super) settings: &'a [String],
}

impl Gateways {
    /// Starts them, and makes the channel with its first message.
    pub(super) async fn start(crowd: &Crowd<'_>) -> Result<Self, Failure> {
        let files = process::open_files_max();
        let fit = usize::try_from(files.saturating_sub(SPARE_FILES)).unwrap_or(usize::MAX);
        if crowd.sessions_a_gateway > fit {
            return Err(Failure::usage(format!(
                "--sessions: a gateway would have to hold {} of them, and a process may open {files} files here, of \
                 which {SPARE_FILES} are for the rest; start more --gateways",
                crowd.sessions_a_gateway
            )));
        }
        let database = Database::make(crowd.store, crowd.gateways * CONNECTIONS_A_NODE).await?;
        let mut settings = vec![
            format!("limits.connections={}", fit.min(1_000_000)),
            format!("limits.sockets={}", fit.min(1_000_000)),
            format!("limits.sessions={}", (fit * crowd.width.max(1)).clamp(1, 10_000_000)),
        ];
        settings.extend_from_slice(crowd.settings);
        let (store, token, secret) = (database.url.clone(), database.token.clone(), database.secret.clone());
        let started = Cluster::start(Plan { store, token, secret, nodes: crowd.gateways, settings }).await;
        let cluster = match started {
            Ok(cluster) => cluster,
            Err(failure) => {
                database.clear().await;
                return Err(failure);
            }
        };
        let conversation = format!("bench-{}", uuid::Uuid::now_v7().simple());
        let gateways = Self { cluster, conversation, database };
        match gateways.open().await {
            Ok(()) => Ok(gateways),
            Err(failure) => {
                gateways.end().await;
                Err(failure)
            }
        }
    }

    async fn open(&self) -> Result<(), Failure> {
        self.create(&self.conversation).await?;
        // One message first: the conversation has an owner, and its own memory is not the sessions'.
        let path = ["v1", "conversations", &self.conversation, "messages"];
        let body = json!({"client_msg_id": "first", "body": {"text": "the channel is open"}});
        self.cluster.nodes[0].client.attempt(&Request::post(&path, body)).await?;
        Ok(())
    }

    /// Makes a channel.
    async fn create(&self, conversation: &str) -> Result<(), Failure> {
        let request = Request::put(&["v1", "conversations", conversation], json!({"kind": "channel"}));
        self.cluster.nodes[0].client.attempt(&request).await?;
        Ok(())
    }

    /// Makes the numbered channels of a load.
    pub(super) async fn create_numbered(&self, name: &str, count: usize) -> Result<(), Failure> {
        let names = (0..count).map(|number| format!("{name}.{number}"));
        let made = stream::iter(names).map(|name| async move { self.create(&name).await });
        made.buffer_unordered(ADDING).try_collect().await
    }

    /// Adds members who are not connected.
    pub(super) async fn add_members(&self, count: usize) -> Result<(), Failure> {
        let add = |number: usize| async move {
            let path = ["v1", "conversations", &self.conversation, "members", &format!("member-{number}")];
            self.cluster.nodes[number % self.cluster.nodes.len()].client.attempt(&Request::put(&path, json!({}))).await
        };
        let mut added = stream::iter((0..count).map(add)).buffer_unordered(ADDING);
        let mut done = 0;
        while added.try_next().await?.is_some() {
            done += 1;
            if done % SHOWN_EVERY == 0 {
                progress(&format!("{done} of {count} members"));
            }
        }
        Ok(())
    }

    /// So many sessions, in turn on all gateways.
    pub(super) fn wanted(&self, conversation: &str, sessions: usize, more: &[(&str, String)]) -> Wanted {
        Wanted {
            addresses: self.cluster.addresses(),
            dialect: Dialect::Conch,
            sessions,
            conversation: conversation.to_owned(),
            token: Some(self.database.token.clone()),
            more: more.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]).collect(),
        }
    }

    /// The ways of the gateways' clients.
    pub(super) fn clients(&self) -> Vec<HttpClient> {
        self.cluster.nodes.iter().map(|node| node.client.clone()).collect()
    }

    /// The sum of a metric over the nodes that run; `None`: they have none of this name.
    pub(super) async fn metric(&self, name: &str) -> Option<f64> {
        self.metric_without(name, usize::MAX).await
    }

    /// The same without the node at a place.
    pub(super) async fn metric_without(&self, name: &str, place: usize) -> Option<f64> {
        let mut sum = None;
        for (index, _) in self.cluster.processes().into_iter().filter(|(index, _)| *index != place) {
            let text = self.cluster.nodes[index].ops.text(&Request::get(&["metrics"])).await.ok()?;
            sum = metric(&text, name).map(|value| sum.unwrap_or(0.0) + value).or(sum);
        }
        sum
    }

    /// CPU time of the nodes that run.
    pub(super) fn cpu(&self) -> Result<std::time::Duration, Failure> {
        self.cluster.processes().into_iter().map(|(_, pid)| process::cpu(pid)).sum()
    }

    /// Their resident memory.
    pub(super) fn resident_bytes(&self) -> Result<u64, Failure> {
        self.cluster.processes().into_iter().map(|(_, pid)| process::resident_bytes(pid)).sum()
    }

    /// Ends everything.
    pub(super) async fn end(self) {
        drop(self.cluster);
        self.database.clear().await;
    }
}
