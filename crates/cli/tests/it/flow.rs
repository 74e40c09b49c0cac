//! The main job from outside: serve, send, watch, stop, start again, and everything is there.

use conch_cli::client::{ClientError, PhoenixSocket};

use crate::node::{Done, Home, Running, runtime, until};

fn seq(done: &Done) -> u64 {
    assert_eq!(done.code, 0, "{done:?}");
    done.line()["seq"].as_u64().expect("a number")
}

#[test]
fn what_was_sent_is_there_after_a_kill_and_a_tail_goes_on_by_itself() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    assert_eq!(home.run(&["create", "room"]).code, 0);
    let first = seq(&home.run(&["send", "room", "one"]));
    let mut tail = Running::start(home.command(&["tail", "room", "--after", "0"]));
    assert_eq!(tail.next()["body"]["text"], "one");
    let second = seq(&home.run(&["send", "room", "two"]));
    assert_eq!(tail.next()["body"]["text"], "two");

    node.kill();
    assert!(tail.is_running(), "a server that is away ends no tail");
    let node = home.start();
    let third = home.run(&["send", "room", "three"]);
    assert!(first < second && second < seq(&third), "{first} {second} {third:?}");
    assert_eq!(tail.next()["body"]["text"], "three", "neither a gap nor the same again");

    let again = Running::start(home.command(&["tail", "room", "--after", "0"]));
    let texts: Vec<String> =
        (0..3).map(|_| again.next()["body"]["text"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    let records = home.run(&["history", "room"]).lines();
    let epochs: Vec<u64> = records.iter().map(|record| record["epoch"].as_u64().expect("a number")).collect();
    assert!(epochs[0] == epochs[1] && epochs[1] < epochs[2], "a new reign after the kill: {epochs:?}");
    drop(node);
}

#[test]
fn a_tail_until_caught_up_ends() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let _node = home.start();
    assert_eq!(home.run(&["create", "room"]).code, 0);
    for text in ["one", "two"] {
        assert_eq!(home.run(&["send", "room", text]).code, 0);
    }
    let done = home.run(&["tail", "room", "--after", "0", "--until-caught-up"]);
    assert_eq!((done.code, done.lines().len()), (0, 2), "{done:?}");
    let live = home.run(&["tail", "room", "--until-caught-up", "--live"]);
    assert_eq!(live.code, 0, "{live:?}");
    assert!(live.lines().iter().filter(|line| line["kind"] == "message").count() == 2, "{live:?}");
}

#[test]
fn every_command_prints_json_lines_and_the_documented_code() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let _node = home.start();
    let created = home.run(&["create", "room", "--title", "The room", "--member", "bob"]);
    assert_eq!((created.code, created.line()["id"].as_str()), (0, Some("room")), "{created:?}");
    let again = home.run(&["create", "room", "--title", "The room"]);
    assert_eq!((again.code, again.stderr.as_str()), (0, ""), "again is no mistake: {again:?}");
    let otherwise = home.run(&["create", "room", "--title", "Another", "--member", "carol"]);
    assert_eq!((otherwise.code, &otherwise.line()["title"]), (0, &"The room".into()), "{otherwise:?}");
    let warnings: Vec<&str> = otherwise.stderr.lines().collect();
    assert_eq!(warnings.len(), 2, "{otherwise:?}");
    assert!(warnings[0].contains("--title has no effect") && warnings[1].contains("--member has no effect"));
    let other_kind = home.run(&["create", "room", "--kind", "session", "--agent", "demo"]);
    assert_eq!(other_kind.code, 3, "{other_kind:?}");

    let sent = home.run(&["send", "room", "hi", "--client-msg-id", "k1"]);
    assert_eq!(sent.line()["duplicate"], false, "{sent:?}");
    let again = home.run(&["send", "room", "hi", "--client-msg-id", "k1"]);
    assert_eq!((again.line()["seq"].clone(), again.line()["duplicate"] == true), (sent.line()["seq"].clone(), true));
    let reused = home.run(&["send", "room", "other", "--client-msg-id", "k1"]);
    assert_eq!(reused.code, 3, "{reused:?}");
    let failure: serde_json::Value = serde_json::from_str(&reused.stderr).expect("one JSON line");
    assert_eq!(failure["error"]["problem"]["code"], "idempotency_key_reused");

    let history = home.run(&["history", "room", "--kinds", "message", "--limit", "10"]);
    assert_eq!((history.code, history.lines().len()), (0, 1), "{history:?}");
    let mine = home.run(&["conversations"]);
    assert_eq!((mine.code, mine.line()["id"].as_str()), (0, Some("room")), "{mine:?}");

    assert_eq!(home.run(&["members", "room", "add", "carol"]).line()["member"], true);
    let members = home.run(&["members", "room"]);
    let subs: Vec<String> =
        members.lines().iter().map(|line| line["sub"].as_str().expect("a sub").to_owned()).collect();
    assert_eq!(subs, ["bob", "carol", "tester"]);
    assert_eq!(home.run(&["members", "room", "remove", "carol"]).line()["member"], false);

    let unknown = home.run(&["send", "nowhere", "hi"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");
    let verified = home.run(&["verify", "--store", &home.store()]);
    assert_eq!((verified.code, verified.line()["violations_total"].as_u64()), (0, Some(0)), "{verified:?}");
}

#[test]
fn turns_are_shown_resolved_cancelled_and_run_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let mut serve = home.serve();
    serve.args(["--set", "agents.demo.pace_ms=20"]);
    let _node = home.start_with(serve);
    assert_eq!(home.run(&["create", "desk", "--kind", "session", "--agent", "demo"]).code, 0);
    let turn = seq(&home.run(&["send", "desk", "1 + 1, with my approval"])).to_string();
    let in_state = |turn: &str, state: &str| {
        until(&format!("turn {turn} to be {state}"), || {
            Some(home.run(&["turn", "show", "desk", turn]).line()).filter(|shown| shown["state"] == state)
        })
    };
    let wait = in_state(&turn, "waiting")["awaits"][0]["await"].as_str().expect("a name").to_owned();
    let no_json = home.run(&["turn", "resolve", "desk", &wait, "yes"]);
    assert_eq!(no_json.code, 2, "{no_json:?}");
    let unfit = home.run(&["turn", "resolve", "desk", &wait, "{}"]);
    assert_eq!(unfit.code, 3, "{unfit:?}");
    let resolved = home.run(&["turn", "resolve", "desk", &wait, r#"{"approve":true}"#]);
    assert_eq!((resolved.code, &resolved.line()["duplicate"]), (0, &false.into()), "{resolved:?}");
    assert_eq!(in_state(&turn, "completed")["awaits"][0]["by"], "tester");
    let late = home.run(&["turn", "cancel", "desk", &turn]);
    assert_eq!(late.code, 3, "{late:?}");
    let again = home.run(&["turn", "regenerate", "desk", &turn, "--client-msg-id", "again"]);
    assert_eq!(again.code, 0, "{again:?}");
    let second = again.line()["turn"].to_string();
    in_state(&second, "waiting");
    assert_eq!(in_state(&turn, "superseded")["superseded"]["reason"], "regenerate");
    let cancelled = home.run(&["turn", "cancel", "desk", &second, "--mode", "rollback"]);
    assert_eq!((cancelled.code, cancelled.line()["turn"].to_string()), (0, second.clone()), "{cancelled:?}");
    assert_eq!(in_state(&second, "cancelled")["cancelled"]["mode"], "rollback");
    in_state(&turn, "completed");
}

#[test]
fn nodes_are_listed_and_a_dead_one_can_be_expelled() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    let listed = until("the node to have seen itself", || {
        let done = home.run(&["nodes"]);
        assert_eq!(done.code, 0, "{done:?}");
        done.lines().first().cloned()
    });
    assert_eq!((&listed["name"], &listed["owned"], &listed["draining"]), (&"conch-1".into(), &0.into(), &false.into()));
    let incarnation = listed["incarnation"].as_str().expect("a UUID").to_owned();
    let store = home.store();
    let expel = |incarnation: &str| home.run(&["expel", incarnation, "--store", &store]);
    let refused = expel(&incarnation);
    assert_eq!(refused.code, 1, "its process lives and holds the directory: {refused:?}");
    assert_eq!(expel("not-a-uuid").code, 2);
    drop(node);
    let expelled = expel(&incarnation);
    assert_eq!(
        (expelled.code, &expelled.line()["expelled"]),
        (0, &false.into()),
        "the lock had proved it: {expelled:?}"
    );
}

#[test]
fn a_second_process_on_the_directory_is_refused_and_names_the_holder() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    let refused = home.twin().start_refused();
    assert_eq!(refused.code, 1, "{refused:?}");
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("in use") && said.contains(&node.pid().to_string()), "{said}");
    assert_eq!(home.run(&["create", "room"]).code, 0, "the first one goes on");
}

#[test]
fn sigterm_finishes_releases_closes_with_1012_and_exits_0() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    assert_eq!(home.run(&["create", "room"]).code, 0);
    let before = home.run(&["send", "room", "before"]).line();
    let endpoint = home.unlimited("watcher");
    let runtime = runtime();
    let mut socket = runtime.block_on(PhoenixSocket::connect(&endpoint)).expect("upgrades");
    runtime.block_on(socket.join("conversation:room", "{}", &mut drop)).expect("joins");

    let status = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| node.terminate());
        let end = loop {
            match runtime.block_on(socket.next()) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(&end, ClientError::Unreachable(why) if why.contains("1012")), "{end}");
        stopping.join().expect("it ends")
    });
    assert_eq!(status.code(), Some(0), "{status:?}");

    let _node = home.start();
    let after = home.run(&["send", "room", "after"]).line();
    let number = |line: &serde_json::Value, key: &str| line[key].as_u64().expect("a number");
    assert_eq!(number(&after, "seq"), number(&before, "seq") + 1, "a clean release leaves no hole");
    assert!(number(&after, "epoch") > number(&before, "epoch"), "another reign");
}

#[test]
fn a_terminal_that_is_gone_is_a_clean_stop() {
    let ignored = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    if ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1) {
        // Under `nohup` the node inherits that SIGHUP is ignored, and must go on.
        return;
    }
    let scratch = tempfile::tempdir().expect("a directory");
    let status = Home::new(scratch.path()).start().stop(rustix::process::Signal::HUP);
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[test]
fn a_send_waits_for_a_server_that_is_restarted() {
    let scratch = tempfile::tempdir().expect("a directory");
    let home = Home::new(scratch.path());
    let node = home.start();
    assert_eq!(home.run(&["create", "room"]).code, 0);
    node.kill();
    let sending = Running::start(home.command(&["send", "room", "patience", "--client-msg-id", "k"]));
    let _node = home.start();
    assert_eq!(sending.next()["client_msg_id"], "k");
    let there = until("the message", || {
        let lines = home.run(&["history", "room"]).lines();
        (!lines.is_empty()).then_some(lines)
    });
    assert_eq!((there.len(), there[0]["body"]["text"].as_str()), (1, Some("patience")));
}
