//! Turns over several nodes.

use conch_cli::client::{ConversationStream, HttpClient, Item, Request, Start};
use conch_core::ids::Seq;
use conch_core::record::RecordKind;
use serde_json::json;

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
    let terminal = [RecordKind::TurnCompleted, RecordKind::TurnFailed];
    let done = records(&cluster, &terminal);
    for node in [cluster.take(0), cluster.take(1)] {
        node.kill();
    }
    assert_eq!(done, 0, "they die in the middle of the turn");
    cluster.start(1);
    // Nobody connects; only the database is looked at.
    until("the end of the turn", || (records(&cluster, &terminal) == 1).then_some(()));
    assert_eq!(cluster.rows("SELECT why FROM conv_due"), Vec::<String>::new(), "nothing is left to do");
}
