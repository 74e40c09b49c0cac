//! `conch bench turns` on a database, tiny: two nodes, and rows that are counted.

use serde_json::json;

use super::rig::{SECRET, shared_server};
use crate::node::{Done, conch};

#[test]
fn turns_are_watched_on_another_node_and_rows_are_counted() {
    let database = shared_server().database();
    let mut command = conch(&["bench", "turns", "--json", "--only", "deltas,thaw", "--store", &database.url()]);
    command.args([
        "--streams",
        "2",
        "--rate",
        "20",
        "--seconds",
        "1",
        "--rounds",
        "1",
        "--records",
        "10000",
        "--thaws",
        "1",
    ]);
    let done = Done::of(command.env("CONCH_AUTH_SECRET", SECRET).output().expect("the binary starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.line();
    let deltas = &report["deltas"];
    assert_eq!((&deltas["nodes"], &deltas["incomplete"]), (&json!(2), &json!(0)), "{report}");
    assert_eq!(deltas["bare"]["count"], 40, "{report}");
    assert!(deltas["delivery"]["count"].as_u64().expect("a count") > 0, "{report}");
    let rows = &report["thaw"]["rows_read"];
    let (long, short) = (rows["long"].as_i64().expect("rows"), rows["short"].as_i64().expect("rows"));
    // What is thawed, and the newest 2,000 records of which a turn makes its context, with those between them.
    assert!(short > 0 && long < 5_000, "a checkpoint saves reading the log: {report}");
    let left = shared_server().url(database.name());
    let schemas = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'conch_bench_%'";
    let mut psql = std::process::Command::new("psql");
    let listed = psql.args(["--no-psqlrc", "-At", "-c", schemas, &left]).output().expect("psql runs");
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "", "the schemas are gone");
}
