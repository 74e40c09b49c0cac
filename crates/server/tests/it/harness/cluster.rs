//! Several whole nodes in this process, over one store in memory, joined by their links on loopback.

use conch_server::auth::secret::SigningKey;
use conch_store::memory::MemoryStore;

use super::*;

/// Nodes that share a store. Each has a runtime of its own, as a process would.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    kill: Vec<Option<oneshot::Sender<()>>>,
}

impl Cluster {
    pub(crate) async fn start(count: usize) -> Self {
        Self::start_with(count, |_| {}).await
    }

    pub(crate) async fn start_with(count: usize, change: Change) -> Self {
        Self::start_as(count, change).await
    }

    pub(crate) async fn start_as(count: usize, change: impl Fn(&mut Config) + Send + Sync + 'static) -> Self {
        logs::capture();
        let change: AnyChange = Arc::new(change);
        let begun = std::time::Instant::now();
        let clock = move || i64::try_from(begun.elapsed().as_millis()).expect("a test is short");
        let store = Arc::new(MemoryStore::new("cluster", Arc::new(clock)));
        let mut cluster = Self { nodes: Vec::new(), kill: Vec::new() };
        for number in 0..count {
            let (node, kill) = member(Arc::clone(&store), number, Arc::clone(&change)).await;
            cluster.nodes.push(node);
            cluster.kill.push(Some(kill));
        }
        cluster.all_know(count).await;
        cluster
    }

    /// Waits until every node that runs sees so many.
    pub(crate) async fn all_know(&self, count: usize) {
        for (node, _) in self.nodes.iter().zip(&self.kill).filter(|(_, kill)| kill.is_some()) {
            let operator = node.client("operator");
            until("the nodes to see each other", async || {
                let seen = operator.get("/v1/nodes").await.ok(200);
                (seen["nodes"].as_array().map(Vec::len) == Some(count)).then_some(())
            })
            .await;
        }
    }

    /// Ends a node as a crash does: nothing is finished, nobody is told.
    pub(crate) fn kill(&mut self, index: usize) {
        drop(self.kill[index].take());
    }

    /// The index of the node that owns a conversation.
    pub(crate) async fn owner_of(&self, id: &str) -> usize {
        let (alive, _) = self.kill.iter().enumerate().find(|(_, kill)| kill.is_some()).expect("a node is left");
        let client = self.nodes[alive].client("operator");
        until("an owner", async || {
            let shown = client.get(&format!("/v1/conversations/{id}")).await.ok(200);
            let name = shown["owner"]["node"].as_str()?.strip_prefix("node-")?.parse::<usize>().expect("a number");
            self.kill[name].is_some().then_some(name)
        })
        .await
    }
}

async fn member(store: Arc<MemoryStore>, number: usize, change: AnyChange) -> (Node, oneshot::Sender<()>) {
    let data = TempDir::new().expect("a temporary directory");
    let mut config = config(data.path());
    config.node = format!("node-{number}").parse().expect("a name");
    config.link_listen = Some(loopback());
    change(&mut config);
    config.check().expect("a valid configuration");
    let secret = config.auth.secret.clone().expect("it is configured");
    let key = TokenKey::new(&secret).expect("a usable key");
    let (kill, killed) = oneshot::channel::<()>();
    let (ready, is_ready) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let (end, running) = oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime starts");
        let stop = async move { drop(stopped.await) };
        let started = |started| {
            // Nobody may wait for it any more.
            let _ = ready.send(started);
        };
        let signing = SigningKey { secret, mode: Mode::Configured };
        let result = runtime.block_on(async move {
            // A node that is killed is not asked for anything again.
            tokio::select! {
                biased;
                _ = killed => Ok(()),
                result = serve::run_on(store, signing, config, started, stop) => result.map(drop),
            }
        });
        runtime.shutdown_background();
        let _ = end.send(result);
    });
    let started = within("the node to start", is_ready).await.expect("it starts");
    (Node { started, data, change, key, stop: Some(stop), running }, kill)
}
