//! What needs no server: the command line itself, tokens, the configuration.

use crate::node::{Done, Home, conch};

fn run(arguments: &[&str]) -> Done {
    Done::of(conch(arguments).output().expect("the binary starts"))
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let cases: [(&[&str], &str); 13] = [
        (&[], "Usage"),
        (&["sing"], "unrecognized subcommand"),
        (&["serve", "--sing"], "--sing"),
        (&["send", "room"], "<TEXT>"),
        (&["send", "a room", "hi"], "conversation: may hold only"),
        (&["create", "room", "--kind", "party"], "is not channel, direct or session"),
        (&["history", "room", "--limit", "501"], "1..=500"),
        (&["history", "room", "--kinds", "song"], "is not a record kind"),
        (&["token", "--sub", "alice", "--ttl", "soon"], "is not a duration"),
        (&["token", "--sub", "alice", "--can", "fly"], "possible values"),
        (&["history", "room", "--url", "127.0.0.1:4000"], "must begin with http://"),
        (&["history", "room", "--url", "localhost:4000"], "must begin with http://"),
        (&["history", "room", "--url", "https://localhost:4000"], "only http:// is supported"),
    ];
    for (arguments, why) in cases {
        let done = run(arguments);
        assert_eq!(done.code, 2, "{arguments:?}: {done:?}");
        assert!(done.stderr.contains(why), "{arguments:?}: {done:?}");
        assert_eq!(done.stdout, "", "{arguments:?}");
        let failure: serde_json::Value = serde_json::from_str(&done.stderr).expect("one JSON line");
        assert_eq!((done.stderr.lines().count(), failure["error"]["exit"].as_u64()), (1, Some(2)), "{arguments:?}");
    }
}

/// What has a default or a value in the environment is not needed, and no usage line says so.
#[test]
fn the_usage_of_a_mistake_names_what_is_needed_and_no_more() {
    let cases: [(&[&str], &str); 12] = [
        (&["send", "room"], "conch send [OPTIONS] <CONVERSATION> <TEXT>"),
        (&["send", "--budget", "5s", "room"], "conch send [OPTIONS] <CONVERSATION> <TEXT>"),
        (&["--json", "create"], "conch create [OPTIONS] <CONVERSATION>"),
        (&["tail"], "conch tail [OPTIONS] <CONVERSATION>"),
        (&["history"], "conch history [OPTIONS] <CONVERSATION>"),
        (&["conversations", "room"], "conch conversations [OPTIONS]"),
        (&["turn", "show", "room"], "conch turn show [OPTIONS] <CONVERSATION> <TURN>"),
        (&["turn", "cancel", "room"], "conch turn cancel [OPTIONS] <CONVERSATION> <TURN>"),
        (&["turn", "resolve", "room"], "conch turn resolve [OPTIONS] <CONVERSATION> <AWAIT> <PAYLOAD>"),
        (&["turn", "regenerate", "room"], "conch turn regenerate [OPTIONS] <CONVERSATION> <TURN>"),
        (&["drain"], "conch drain [OPTIONS] <NODE>"),
        (&["serve", "--sing"], "conch serve [OPTIONS]"),
    ];
    for (arguments, usage) in cases {
        let mut command = conch(arguments);
        command.env("CONCH_URL", "http://127.0.0.1:1").env("CONCH_TOKEN", "t").env("CONCH_CONFIG", "conch.toml");
        let done = Done::of(command.output().expect("the binary starts"));
        let failure: serde_json::Value = serde_json::from_str(&done.stderr).expect("one JSON line");
        let message = failure["error"]["message"].as_str();
        let line = message.and_then(|message| message.lines().find_map(|line| line.strip_prefix("Usage: ")));
        assert_eq!((done.code, line), (2, Some(usage)), "{arguments:?}: {done:?}");
    }
}

#[test]
fn help_lists_the_exit_codes() {
    let done = run(&["--help"]);
    assert_eq!(done.code, 0);
    for code in 0..=5 {
        assert!(done.stdout.contains(&format!("\n  {code}  ")), "{}", done.stdout);
    }
}

#[test]
fn the_configuration_is_shown_without_secrets() {
    let secret = "a-very-secret-secret-of-more-than-32-bytes";
    let mut command = conch(&["config", "--listen", "127.0.0.1:4100"]);
    let done = Done::of(command.env("CONCH_AUTH_SECRET", secret).env("CONCH_NODE", "n7").output().expect("starts"));
    assert_eq!(done.code, 0, "{done:?}");
    let config = done.line();
    assert_eq!((config["listen"].as_str(), config["node"].as_str()), (Some("127.0.0.1:4100"), Some("n7")));
    assert!(!config["auth"]["secret"].is_null(), "that there is one may be known: {config}");
    assert!(!format!("{done:?}").contains(secret));
}

#[test]
fn a_variable_that_is_no_setting_is_named_and_no_reason_to_stop() {
    let mut command = conch(&["config"]);
    let done = Done::of(command.env("CONCH_LISTNE", "a value").env("CONCH_NODE", "n7").output().expect("starts"));
    assert_eq!((done.code, done.line()["node"].as_str()), (0, Some("n7")), "{done:?}");
    let warning: serde_json::Value = serde_json::from_str(&done.stderr).expect("one JSON line");
    let message = warning["warning"]["message"].as_str().expect("a message");
    assert!(message.ends_with(": CONCH_LISTNE"), "{message}");
}

#[test]
fn a_wrong_configuration_is_exit_code_2_and_names_the_setting() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("conch.toml");
    std::fs::write(&file, "listne = \"127.0.0.1:1\"\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    for command in ["serve", "config"] {
        let done = run(&[command, "--config", path]);
        assert_eq!(done.code, 2, "{done:?}");
        assert!(done.stderr.contains("unknown setting") && done.stderr.contains("listne"), "{done:?}");
    }
}

#[test]
fn tokens_are_minted_with_the_configured_secret_and_refused_without_one() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(&scratch.path().join("none"));
    let without = home.run(&["token", "--sub", "alice"]);
    assert_eq!(without.code, 1, "{without:?}");
    assert!(without.stderr.contains("CONCH_AUTH_SECRET"), "{without:?}");
    let secret = "0123456789abcdef0123456789abcdef";
    let mut command = home.command(&["token", "--sub", "alice", "--name", "Alice", "--conversations", "team:*"]);
    let with = Done::of(command.env("CONCH_AUTH_SECRET", secret).output().expect("starts"));
    assert_eq!(with.code, 0, "{with:?}");
    assert_eq!(with.stdout.trim().split('.').count(), 3, "the bare token: {with:?}");
    let mut command = home.command(&["token", "--sub", "@start"]);
    let reserved = Done::of(command.env("CONCH_AUTH_SECRET", secret).output().expect("starts"));
    assert_eq!(reserved.code, 2, "reserved senders are the server's: {reserved:?}");
    let mut command = home.command(&["token", "--sub", "alice", "--ttl", "99999999999h"]);
    let endless = Done::of(command.env("CONCH_AUTH_SECRET", secret).output().expect("starts"));
    assert_eq!(endless.code, 2, "{endless:?}");
    assert!(endless.stderr.contains("up to the year 9999"), "{endless:?}");
}

#[test]
fn a_server_that_is_away_is_exit_code_4() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let done = home.run(&["send", "room", "hi", "--token", "x.y.z", "--budget", "300ms"]);
    assert_eq!(done.code, 4, "{done:?}");
    let failure: serde_json::Value = serde_json::from_str(&done.stderr).expect("one JSON line");
    assert_eq!(failure["error"]["exit"], 4);
}

#[test]
fn verify_says_when_there_is_nothing_to_verify() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let done = home.run(&["verify", "--store", &home.store()]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stderr.contains("there is no database"), "{done:?}");
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let done = conch(&["config"]).stdout(writer).stderr(std::process::Stdio::piped()).output().expect("starts");
    assert_eq!((done.status.code(), done.stderr.len()), (Some(0), 0), "{done:?}");
}
