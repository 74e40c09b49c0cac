//! How a turn's end is told, in a stream and in the history.

use super::*;

#[test]
fn every_end_is_told() {
    let m1 = StepId::model(1);
    let end = |drafts: Vec<Draft>| {
        let mut turn = Telling::begun();
        turn.delta(&m1, (1, 1), 0, "one two");
        let parts = drafts.into_iter().flat_map(|draft| turn.record(draft)).collect::<Vec<_>>();
        assert_eq!(turn.next, Next::Ended);
        (parts, turn.client.whole)
    };
    let (parts, _) = end(vec![journal::failed(TURN, FailReason::AgentFailed, "it broke")]);
    assert_eq!(types(&parts), ["text-end", "finish-step", "message-metadata", "error", "finish"]);
    assert_eq!(parts[3]["errorText"], "agent_failed: it broke");
    assert_eq!(parts[2]["messageMetadata"], json!({"turn":7,"state":"failed","error":"agent_failed: it broke"}));
    let kept = vec![journal::answer(TURN, &demo(), "one two three"), cancelled(CancelMode::Keep)];
    let (parts, whole) = end(kept);
    assert_eq!(types(&parts), ["text-delta", "text-end", "finish-step", "message-metadata", "abort"]);
    assert_eq!((whole, &parts[3]["messageMetadata"]["state"]), (vec!["one two three".to_owned()], &json!("cancelled")));
    let (parts, _) = end(vec![cancelled(CancelMode::Rollback)]);
    assert_eq!(types(&parts), ["text-end", "finish-step", "message-metadata", "abort"]);
    // An agent whose answer is none of its texts.
    let (parts, whole) = end(vec![journal::answer(TURN, &demo(), "three"), journal::completed(TURN)]);
    assert_eq!(types(&parts), ["text-end", "text-start", "text-delta", "text-end", "finish-step", "finish"]);
    assert_eq!(whole, ["one two", "three"]);
    // A turn that was cancelled before it began.
    let mut queued = TurnStream::new(TURN);
    let told = queued.record(&record(8, 1, cancelled(CancelMode::Keep)));
    let parts: Vec<Value> = told.parts.iter().map(|part| json!(part)).collect();
    assert_eq!((types(&parts), told.next), (vec!["start", "message-metadata", "abort"], Next::Ended));
}

#[test]
fn what_a_turn_waited_for_is_closed_by_its_end_in_the_stream_and_in_the_history() {
    let (m1, call) = (StepId::model(1), StepId::tool(1, 0));
    let open = OpenAwait { id: AwaitId::of(TURN, &call), step: call.clone(), expires_at: Timestamp(9) };
    for (end, last) in [
        (cancelled(CancelMode::Keep), &["data-await", "message-metadata", "abort"][..]),
        (
            journal::failed(TURN, FailReason::DeadlinePassed, "late"),
            &["data-await", "message-metadata", "error", "finish"],
        ),
    ] {
        let asked = [
            journal::step_completed(TURN, &m1, &asking("May I?", &["pay"])),
            journal::await_opened(TURN, &open, &json!({ "type": "object" }), Some("May I?")),
            end,
        ];
        let mut turn = Telling::begun();
        let parts: Vec<Value> = asked.iter().flat_map(|draft| turn.record(draft.clone())).collect();
        assert!(types(&parts).ends_with(last), "before whatever a client takes for the end: {parts:?}");
        let closed = &parts[parts.len() - last.len()];
        assert_eq!((&closed["id"], &closed["data"]["state"]), (&json!("7-m1.t0"), &json!("closed")));
        assert_eq!(closed["data"]["prompt"], "May I?", "the question can still be read");
        let drafts = [input("alice", "a1", "pay"), journal::started(TURN, &demo(), Timestamp(9))];
        let records = (TURN.0..).zip(drafts.into_iter().chain(asked)).map(|(seq, draft)| record(seq, 1, draft));
        let messages = history(&records.collect::<Vec<_>>(), &"alice".parse().expect("valid"));
        let kept = messages[1].parts.iter().find_map(|part| match part {
            UiPart::DataAwait { data, .. } => Some(data),
            _ => None,
        });
        assert_eq!(kept, Some(&closed["data"]), "a page that is loaded again shows the same");
    }
}
