//! Tools and webhooks of sessions whose owners are killed or stand still.

use std::collections::BTreeSet;
use std::sync::Arc;

use conch_cli::client::{ConversationStream, HttpClient, Item, Request, Start};
use conch_core::ids::Seq;
use conch_core::record::RecordKind;
use conch_server::fake::{self, Fake, Reply, chunk};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::rig::{Cluster, write};
use crate::node::{PATIENCE, message, until};

/// How many tools the model asks for at once.
const CALLS: usize = 3;

/// A model that asks for some calls, and says something once it has their results.
async fn model() -> Fake {
    Fake::start(|request, mut reply| async move {
        reply.begin("text/event-stream").await;
        let has_results = request.body["messages"].to_string().contains(r#""role":"tool""#);
        if has_results {
            reply.more(&chunk(&json!({ "content": "done" }), Some("stop"))).await;
        } else {
            let call = |index: usize| {
                let id = format!("call-{index}");
                json!({ "index": index, "id": id, "function": { "name": "pay", "arguments": "{}" } })
            };
            let calls: Vec<Value> = (0..CALLS).map(call).collect();
            reply.more(&chunk(&json!({ "tool_calls": calls }), Some("tool_calls"))).await;
        }
        reply.more("data: [DONE]\n\n").await;
        reply.end().await;
    })
    .await
}

/// What a tool is asked, as far as these tests look.
#[derive(Debug, Clone)]
struct Asked {
    step: String,
    epoch: u64,
    key: String,
}

impl Asked {
    fn of(request: &fake::Request) -> Self {
        Self {
            step: request.header("conch-step").to_owned(),
            epoch: request.header("conch-epoch").parse().expect("a number"),
            key: request.header("idempotency-key").to_owned(),
        }
    }
}

/// Nodes with an agent that has a model and a tool, and a session that it answers in.
struct Shop {
    cluster: Cluster,
    clients: Vec<HttpClient>,
    tool: Fake,
    _model: Fake,
}

impl Shop {
    /// `script` answers the tool's calls.
    fn open<F>(nodes: usize, script: impl Fn(Asked, Reply) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut cluster = Cluster::planned(nodes);
        let model = cluster.runtime.block_on(model());
        let tool = cluster.runtime.block_on(Fake::start(move |request, reply| script(Asked::of(&request), reply)));
        let file = cluster.scratch.path().join("agents.toml");
        let lines = [
            "[agents.shop]".to_owned(),
            "kind = 'openai'".to_owned(),
            "model = 'm'".to_owned(),
            format!("base_url = '{}'", model.url("/v1")),
            "[[agents.shop.tools]]".to_owned(),
            "name = 'pay'".to_owned(),
            "description = 'Pays.'".to_owned(),
            "on_unknown = 'retry'".to_owned(),
            format!("url = '{}'", tool.url("/pay")),
        ];
        write(&file, &lines);
        for place in &mut cluster.places {
            place.variables.push(("CONCH_CONFIG", file.to_str().expect("UTF-8").to_owned()));
        }
        cluster.start_all();
        let clients = cluster.clients(&cluster.token("person"));
        let create = Request::put(&["v1", "conversations", "till"], json!({"kind": "session", "agent": "shop"}));
        cluster.runtime.block_on(clients[0].attempt(&create)).expect("created");
        Self { cluster, clients, tool, _model: model }
    }

    fn says(&self, node: usize, key: &str) {
        let sent = self.cluster.runtime.block_on(self.clients[node].attempt(&message("till", key, "Pay them.")));
        sent.expect("acknowledged");
    }

    fn asked(&self) -> Vec<Asked> {
        self.tool.seen().iter().map(Asked::of).collect()
    }

    /// Waits until the tool was asked this, and returns by which epoch.
    fn asked_for(&self, step: &str, above: u64) -> u64 {
        let found = || self.asked().into_iter().find(|asked| asked.step == step && asked.epoch > above);
        until("a tool's call", found).epoch
    }

    /// Records of this kind.
    fn count(&self, kind: RecordKind) -> usize {
        self.cluster.rows(&format!("SELECT seq FROM record WHERE kind = {}", kind as i16)).len()
    }

    fn until_it_ends(&self) {
        until("the end of the turn", || (self.count(RecordKind::TurnCompleted) == 1).then_some(()));
    }
}

/// Somebody who watches at one node.
struct Watching(ConversationStream);

impl Watching {
    fn of(shop: &Shop, node: usize) -> Self {
        Self(ConversationStream::new(shop.clients[node].clone(), "till", Start { after: Seq(0), log: None }))
    }

    async fn next(&mut self) -> Item {
        let next = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("something comes");
        next.expect("the stream goes on")
    }

    /// Waits for so many records of this kind.
    fn sees(&mut self, shop: &Shop, kind: RecordKind, count: usize) {
        shop.cluster.runtime.block_on(async {
            let mut seen = 0;
            while seen < count {
                seen += usize::from(matches!(self.next().await, Item::Record(record, _) if record.kind == kind));
            }
        });
    }

    /// What this epoch still showed before the connection was lost.
    fn rest(&mut self, shop: &Shop, epoch: u64) -> Vec<String> {
        shop.cluster.runtime.block_on(async {
            let mut shown = Vec::new();
            loop {
                match self.next().await {
                    Item::Record(record, json) if record.epoch.0 == epoch => shown.push(json),
                    Item::Live { name, data } => {
                        let event: Value = serde_json::from_str(&data).expect("JSON");
                        if event["epoch"] == epoch {
                            shown.push(format!("{name} {data}"));
                        }
                    }
                    Item::Waiting { .. } => return shown,
                    Item::Record(..) | Item::CaughtUp(_) | Item::Resync { .. } => {}
                }
            }
        })
    }
}

#[test]
fn tool_runs_twice_after_a_retry() {
    // The third call of the first owner is never answered.
    let (first, held) = (Arc::new(std::sync::OnceLock::new()), "m1.t2");
    let mut shop = Shop::open(2, move |asked, reply| {
        let is_first = *first.get_or_init(|| asked.epoch) == asked.epoch;
        async move {
            if is_first && asked.step == held { reply.stall().await } else { reply.whole(200, "", "\"paid\"").await }
        }
    });
    shop.says(0, "k1");
    let killed = shop.asked_for(held, 0);
    let owner = shop.cluster.owned("till");
    shop.cluster.take(owner).kill();
    // Nobody connects.
    shop.until_it_ends();
    let asked = shop.asked();
    let keys: BTreeSet<&str> = asked.iter().map(|asked| &*asked.key).collect();
    assert_eq!(keys.len(), CALLS, "each tool's effect once, by its key: {asked:?}");
    assert_eq!(asked.len(), CALLS + 1, "what has a result is not asked for again: {asked:?}");
    assert!(asked[CALLS].epoch > killed && asked[CALLS].key == asked[CALLS - 1].key, "{asked:?}");
    assert_eq!((shop.count(RecordKind::StepCompleted), shop.count(RecordKind::TurnFailed)), (CALLS + 2, 0));
}

#[test]
fn orphan_goes_on_calling_tools() {
    // The second call of the first owner is answered once it was replaced; the third one of the next when the first is gone.
    let (phase, phases) = watch::channel(0);
    let first = Arc::new(std::sync::OnceLock::new());
    let mut shop = Shop::open(2, move |asked, reply| {
        let is_first = *first.get_or_init(|| asked.epoch) == asked.epoch;
        let mut phases = phases.clone();
        async move {
            let from = match (is_first, &*asked.step) {
                (true, "m1.t1") => 1,
                (false, "m1.t2") => 2,
                _ => 0,
            };
            // A phase that never comes is the end of the test.
            let _ = phases.wait_for(|phase| *phase >= from).await;
            reply.whole(200, "", "\"paid\"").await;
        }
    });
    shop.says(0, "k1");
    let old = shop.asked_for("m1.t1", 0);
    let owner = shop.cluster.owned("till");
    let mut watching = Watching::of(&shop, owner);
    watching.sees(&shop, RecordKind::StepStarted, 2);
    shop.cluster.node(owner).signal(Signal::STOP);
    shop.cluster.taken_from("till", owner);
    shop.asked_for("m1.t2", old);
    let of_the_orphan = |shop: &Shop| shop.asked().iter().filter(|asked| asked.epoch == old).count();
    assert_eq!(of_the_orphan(&shop), 2);
    phase.send_replace(1);
    let orphan = shop.cluster.take(owner);
    orphan.signal(Signal::CONT);
    assert_ne!(orphan.wait().code(), Some(0), "it ends because it lost its lease");
    assert_eq!(watching.rest(&shop, old), Vec::<String>::new(), "it shows those who watch at it nothing more");
    assert!(of_the_orphan(&shop) <= 3, "at most the one call that is past its check: {:?}", shop.asked());
    phase.send_replace(2);
    shop.until_it_ends();
    let asked = shop.asked();
    let late = asked.iter().filter(|asked| asked.step == "m1.t2" && asked.epoch == old);
    assert!(late.clone().count() <= 1 && late.clone().all(|late| late.epoch < shop.asked_for("m1.t2", old)));
    let keys: BTreeSet<&str> = asked.iter().map(|asked| &*asked.key).collect();
    assert_eq!(keys.len(), CALLS, "each tool's effect once, by its key: {asked:?}");
    let epochs: Vec<u64> = shop
        .cluster
        .rows("SELECT epoch FROM record ORDER BY seq")
        .iter()
        .map(|epoch| epoch.parse().expect("a number"))
        .collect();
    assert!(epochs.is_sorted() && epochs.first() < epochs.last(), "the orphan appends nothing more: {epochs:?}");
    assert_eq!(shop.count(RecordKind::StepCompleted), CALLS + 2);
}

#[test]
fn webhook_delivered_three_times() {
    let mut cluster = Cluster::started(3);
    let clients = cluster.clients(&cluster.token("hooks"));
    let create = Request::put(&["v1", "conversations", "desk"], json!({"kind": "session", "agent": "demo"}));
    cluster.runtime.block_on(clients[0].attempt(&create)).expect("created");
    let event = json!({"kind": "event", "client_msg_id": "evt_1", "body": {"text": "paid"}});
    let event = Request::post(&["v1", "conversations", "desk", "messages"], event);
    let seqs = |cluster: &Cluster, nodes: &[usize]| -> Vec<Value> {
        let delivered = nodes.iter().map(|node| {
            until("an answer", || cluster.runtime.block_on(clients[*node].attempt(&event)).ok()).body["seq"].clone()
        });
        delivered.collect()
    };
    let before = seqs(&cluster, &[0, 1, 2]);
    let owner = cluster.owned("desk");
    cluster.take(owner).kill();
    let others: Vec<usize> = (0..3).filter(|node| *node != owner).collect();
    let after = seqs(&cluster, &others);
    assert!(before.iter().chain(&after).all(|seq| *seq == before[0]), "{before:?} {after:?}");
    let count = |kind: RecordKind| cluster.rows(&format!("SELECT seq FROM record WHERE kind = {}", kind as i16)).len();
    until("the end of the turn", || (count(RecordKind::TurnCompleted) == 1).then_some(()));
    assert_eq!((count(RecordKind::Event), count(RecordKind::TurnStarted)), (1, 1), "one turn");
}
