//! `conch bench fanout --gateways` and `conch bench storm`, tiny: that they run to their end, and that every session had every
//! message in order. What they measure is no test.

use serde_json::{Value, json};

use super::rig::{SECRET, shared_server};
use crate::node::{Done, conch};

/// A whole check of so many sessions.
fn whole(sessions: u64) -> Value {
    json!({"looked_at": sessions, "complete": sessions, "missing": 0, "unknown": 0})
}

#[test]
fn every_message_reaches_every_session_of_an_incident() {
    let database = shared_server().database();
    let directory = tempfile::tempdir().expect("a directory");
    let plot = directory.path().join("incident.svg");
    let mut command = conch(&["bench", "fanout", "--json", "--gateways", "2", "--sessions", "600", "--rate", "10"]);
    command.args(["--ramp", "3", "--seconds", "2", "--baseline", "without", "--store", &database.url()]);
    command.args(["--workspace-channels", "40", "--workspace-rate", "10..30", "--workspace-percent", "50"]);
    command.args(["--live", "2", "--stalled", "3", "--members", "7", "--plot"]).arg(&plot);
    let done = Done::of(command.env("CONCH_AUTH_SECRET", SECRET).output().expect("the binary starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.line();
    assert_eq!((&report["gateways"], &report["joined"]), (&json!(2), &json!(600)), "{report}");
    assert!(report["sent"].as_u64().expect("a count") >= 10, "{report}");
    assert_eq!(report["sessions_checked"], whole(600), "{report}");
    assert_eq!((&report["out_of_order"], &report["unknown_sends"]), (&json!(0), &json!(0)), "{report}");
    let workspace = &report["beside"]["workspace"];
    assert_eq!((&workspace["channels"], &workspace["percent"]), (&json!(20), &json!(50)), "{report}");
    assert_eq!((&workspace["checked"], &workspace["out_of_order"]), (&whole(40), &json!(0)), "{report}");
    assert!(workspace["sent"].as_u64().expect("a count") > 0, "{report}");
    assert!(report["beside"]["live_pushed"].as_u64().expect("a count") > 0, "{report}");
    assert!(report["livez"]["count"].as_u64().expect("a count") > 0, "{report}");
    assert!(report["history"]["count"].as_u64().expect("a count") > 0, "{report}");
    assert!(std::fs::read_to_string(&plot).expect("it was drawn").starts_with("<svg "), "{report}");
}

#[test]
fn the_sessions_of_a_killed_gateway_come_back_without_a_gap() {
    let mut command = conch(&["bench", "storm", "--json", "--kill", "--gateways", "3", "--sessions", "240"]);
    command.args(["--rate", "10", "--before", "1", "--others", "2", "--jitter-ms", "500"]);
    let done = Done::of(command.output().expect("the binary starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.line();
    assert!(report["lost"].as_u64().expect("a count") >= 80, "{report}");
    assert_eq!(report["returned"], report["lost"], "{report}");
    assert!(report["all_back_s"].is_number(), "{report}");
    assert_eq!(report["sessions_checked"], whole(240), "{report}");
    assert_eq!((&report["out_of_order"], &report["gave_up"]), (&json!(0), &json!(0)), "{report}");
    assert_eq!((&report["ended_with"], &report["jitter_ms"]), (&json!("SIGKILL"), &json!(500)), "{report}");
    assert!(report["others"]["count"].as_u64().expect("a count") > 0, "{report}");
}
