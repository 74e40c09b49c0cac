//! Turns over several nodes.

use conch_cli::client::{ClientError, ConversationStream, HttpClient, Item, Request, Start};
use conch_core::ids::Seq;
use conch_core::record::RecordKind;
use serde_json::{Value, json};

use super::rig::Cluster;
use crate::node::{PATIENCE, message, until};

/// Reads a stream until something with this name comes.
async fn read_until(stream: &mut ConversationStream, wanted: &str) {
    let reading = async {
        loop {
            let name = match stream.next().await.expect("the stream goes on") {
                Item::Record(record, _) => record.kind.as_str().to_owned(),
                Item::Live { name, .. } => name,
                Item::CaughtUp(_) | Item::Resync { .. } | Item::Waiting { .. } => continue,
            };
            if name == wanted {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| panic!("no {wanted} within {PATIENCE:?}"));
}

fn stream(client: &HttpClient, room: &str) -> ConversationStream {
    ConversationStream::new(client.clone(), room, Start { after: Seq(0), log: None })
}

fn session(cluster: &Cluster, client: &HttpClient) {
    let create = Request::put(&["v1", "conversations", "desk"], json!({"kind": "session", "agent": "demo"}));
    cluster.runtime.block_on(client.attempt(&create)).expect("created");
}

/// Nodes whose agent takes its time, so that there is a middle of a turn.
fn slow(count: usize) -> Cluster {
    let mut cluster = Cluster::planned(count);
    for place in &mut cluster.places {
        place.settings.push("agents.demo.pace_ms=300".to_owned());
    }
    cluster.start_all();
    cluster
}

#[test]
fn event_on_one_node_and_socket_on_another() {
    let cluster = slow(3);
    let clients = cluster.clients(&cluster.token("person"));
    session(&cluster, &clients[0]);
    cluster.runtime.block_on(async {
        let mut watching = stream(&clients[1], "desk");
        clients[0].attempt(&message("desk", "k1", "What is 17 + 25?")).await.expect("acknowledged");
        read_until(&mut watching, "turn.started").await;
        read_until(&mut watching, "delta").await;
        // The page is loaded again, and another node answers: it sees the turn so far.
        let mut again = stream(&clients[2], "desk");
        read_until(&mut again, "turn.started").await;
        read_until(&mut again, "turn.snapshot").await;
        read_until(&mut again, "turn.completed").await;
        read_until(&mut watching, "turn.completed").await;
    });
}

#[test]
fn work_that_nobody_asks_for() {
    let mut cluster = slow(2);
    let clients = cluster.clients(&cluster.token("person"));
    session(&cluster, &clients[0]);
    let records = |cluster: &Cluster, kinds: &[RecordKind]| {
        let kinds = kinds.iter().map(|kind| (*kind as i16).to_string()).collect::<Vec<_>>().join(",");
        cluster.rows(&format!("SELECT seq FROM record WHERE kind IN ({kinds})")).len()
    };
    let sent = cluster.runtime.block_on(clients[0].attempt(&message("desk", "k1", "What is 17 + 25?")));
    sent.expect("acknowledged");
    until("the turn to begin", || (records(&cluster, &[RecordKind::TurnStarted]) == 1).then_some(()));
    let terminal = [RecordKind::TurnCompleted];
    let done = records(&cluster, &terminal);
    for node in [cluster.take(0), cluster.take(1)] {
        node.kill();
    }
    assert_eq!(done, 0, "they die in the middle of the turn");
    // The turn is gone through again where nothing of it is in the log, so it is quicker now.
    cluster.places[1].settings.push("agents.demo.pace_ms=20".to_owned());
    cluster.start(1);
    // Nobody connects; only the database is looked at.
    until("the end of the turn", || (records(&cluster, &terminal) == 1).then_some(()));
    assert_eq!(cluster.rows("SELECT why FROM conv_due"), Vec::<String>::new(), "nothing is left to do");
}

/// How many answer one await at once.
const ANSWERS: usize = 50;

/// Starts a turn that wants an approval; gives it, and what it waits for.
async fn waiting(client: &HttpClient, key: &str) -> (u64, String) {
    let input = json!({"client_msg_id": key, "input": {"text": "1 + 1, with my approval"}});
    let start = Request::post(&["v1", "conversations", "desk", "turns"], input);
    let started = client.attempt(&start).await.expect("started");
    assert_eq!(started.status, 202);
    let turn = started.body["turn"].as_u64().expect("a turn");
    let shown = in_state(client, turn, "waiting").await;
    (turn, shown["awaits"][0]["await"].as_str().expect("a name").to_owned())
}

async fn in_state(client: &HttpClient, turn: u64, state: &str) -> Value {
    let show = Request::get(&["v1", "conversations", "desk", "turns", &turn.to_string()]);
    let looking = async {
        loop {
            let shown = client.attempt(&show).await.expect("any node shows it").body;
            if shown["state"] == state {
                return shown;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("turn {turn} is not {state}"))
}

fn resolve(wait: &str, approve: bool) -> Request {
    Request::post(&["v1", "conversations", "desk", "awaits", wait], json!({"payload": {"approve": approve}}))
}

#[test]
fn concurrent_resumes_and_a_stop_from_another_node() {
    let mut cluster = Cluster::planned(3);
    for place in &mut cluster.places {
        place.settings.push("agents.demo.pace_ms=20".to_owned());
    }
    cluster.start_all();
    let clients = cluster.clients(&cluster.token("person"));
    session(&cluster, &clients[0]);
    cluster.runtime.block_on(async {
        let (turn, wait) = waiting(&clients[0], "k1").await;
        let mut answering = tokio::task::JoinSet::new();
        for number in 0..ANSWERS {
            // Both answers at once, all through a node that need not own it.
            let (client, approve) = (clients[2].clone(), number % 2 == 0);
            let request = resolve(&wait, approve);
            answering.spawn(async move { (approve, client.attempt(&request).await) });
        }
        let mut taken = Vec::new();
        for (approve, answer) in answering.join_all().await {
            match answer {
                Ok(_) => taken.push(approve),
                Err(ClientError::Refused(problem)) => assert_eq!((problem.status, &*problem.code), (409, "conflict")),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(taken.len() == ANSWERS / 2 && taken.iter().all(|approve| *approve == taken[0]), "{taken:?}");
        let done = in_state(&clients[1], turn, "completed").await;
        let calls = done["steps"].as_array().expect("steps").iter().filter(|step| step["name"].is_string());
        assert_eq!(calls.count(), usize::from(taken[0]), "the tool is called once, or not at all: {done}");
        // A turn that waits has given its lease up by then, or not: the cancel claims what nobody owns.
        let (stopped, wait) = waiting(&clients[0], "k2").await;
        let path = ["v1", "conversations", "desk", "turns", &stopped.to_string(), "cancel"];
        let cancel = Request::post(&path, json!({"mode": "rollback"}));
        clients[1].attempt(&cancel).await.expect("cancelled");
        in_state(&clients[2], stopped, "cancelled").await;
        let late = clients[2].attempt(&resolve(&wait, true)).await;
        assert!(matches!(&late, Err(ClientError::Refused(problem)) if problem.status == 409), "{late:?}");
    });
    let count = |kind: RecordKind| cluster.rows(&format!("SELECT seq FROM record WHERE kind = {}", kind as i16)).len();
    assert_eq!(count(RecordKind::AwaitResolved), 1, "one effect");
    assert_eq!((count(RecordKind::TurnCompleted), count(RecordKind::TurnCancelled)), (1, 1));
}
