//! Each part of `conch bench turns`, tiny: that it runs to its end and counts right. What it measures is no test.

use serde_json::{Value, json};

use crate::node::{Done, conch};

/// One part on a data directory of its own; its result.
fn bench(part: &str, sizes: &[&str]) -> Value {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = conch(&["bench", "turns", "--json", "--only", part, "--dir"]);
    let done = Done::of(command.arg(directory.path()).args(sizes).output().expect("the binary starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let left = std::fs::read_dir(directory.path()).expect("it is there").count();
    assert_eq!(left, 0, "what a bench made is gone at its end");
    let mut report = done.line();
    assert_eq!(report["bench"], "turns");
    assert_eq!(report.as_object().expect("an object").len(), 2, "only what was asked for: {report}");
    report[part].take()
}

#[test]
fn deltas_are_counted_beside_those_of_a_bare_reader() {
    let report = bench("deltas", &["--streams", "3", "--rate", "20", "--seconds", "1", "--rounds", "2"]);
    assert_eq!((&report["nodes"], &report["incomplete"]), (&json!(1), &json!(0)), "{report}");
    let shown = report["delivery"]["count"].as_u64().expect("a count");
    assert_eq!(shown + report["missing"].as_u64().expect("a count"), 120, "{report}");
    assert!(shown > 0, "{report}");
    assert_eq!(report["bare"]["count"], 120, "{report}");
    assert_eq!(report["rounds"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn a_conversation_is_taken_up_again_as_often_as_asked_for() {
    let report = bench("thaw", &["--records", "1200", "--thaws", "2"]);
    assert_eq!((&report["long"]["count"], &report["short"]["count"]), (&json!(2), &json!(2)), "{report}");
    assert_eq!((&report["records"], &report["short_records"]), (&json!(1200), &json!(10)), "{report}");
    assert!(report["first_ms"].as_f64().expect("a time") > 0.0, "{report}");
    assert_eq!(report["rows_read"], Value::Null, "a directory counts none");
}

#[test]
fn turns_at_once_all_complete() {
    let report = bench("streaming", &["--turns", "5", "--seconds", "1"]);
    assert_eq!((&report["turns"], &report["completed"]), (&json!(5), &json!(5)), "{report}");
    assert_eq!((&report["incomplete"], &report["bare"]["count"]), (&json!(0), &json!(50)), "{report}");
    let shown = report["deltas"].as_u64().expect("a count");
    assert_eq!(shown + report["missing"].as_u64().expect("a count"), 50, "{report}");
}

#[test]
fn storage_is_shown_by_quarter() {
    let report = bench("storage", &["--history", "40"]);
    let bytes = report["bytes_per_turn"].as_array().expect("quarters");
    // A turn with a call has seven records, each with a hash of 32 bytes and more.
    let total: f64 = bytes.iter().map(|bytes| bytes.as_f64().expect("a number") * 10.0).sum();
    assert!(bytes.len() == 4 && total > 40.0 * 500.0, "{report}");
    let checkpoints = report["checkpoint_bytes"].as_array().expect("quarters");
    assert!(checkpoints.iter().all(|bytes| bytes.as_u64().is_some_and(|bytes| bytes > 0)), "{report}");
}

#[test]
fn what_a_flood_says_is_in_the_answer() {
    let report = bench("flood", &["--flood", "400"]);
    assert_eq!((&report["said"], &report["answered"]), (&json!(1200), &json!(1200)), "{report}");
    assert_eq!((&report["bare"]["count"], &report["livez_failed"]), (&json!(1200), &json!(0)), "{report}");
    assert!(report["livez"]["count"].as_u64().expect("a count") > 0, "{report}");
    assert!(report["shown"].as_u64().expect("a count") <= 1200, "{report}");
}
