//! Tests of [`super::overview`].

use serde_json::{Value, json};

use crate::ids::{Epoch, Seq};
use crate::record::{Draft, Record};
use crate::time::Timestamp;
use crate::turn::StepId;
use crate::turn::awaits::{AwaitId, OpenAwait, Resolution};
use crate::turn::cancel::{Cancel, CancelMode};
use crate::turn::journal::{self, FailReason};
use crate::turn::overview::Overview;
use crate::turn::result::{StepResult, ToolStatus, Usage};

const TURN: Seq = Seq(7);

/// What is shown after these records, the first of which is record 8.
fn shown(drafts: impl IntoIterator<Item = Draft>) -> Value {
    let mut overview = Overview::queued(TURN);
    for (seq, draft) in (8..).zip(drafts) {
        let at = Timestamp(i64::try_from(seq).expect("small") * 1000);
        overview.take(&Record::from_draft("c".parse().expect("valid"), Seq(seq), Epoch(1), at, draft));
    }
    let shown = serde_json::to_value(&overview).expect("serialises");
    assert_eq!(shown["state"], serde_json::to_value(overview.state()).expect("serialises"));
    shown
}

fn started() -> Draft {
    journal::started(TURN, &"demo".parse().expect("valid"), Timestamp(60_000))
}

fn open() -> OpenAwait {
    let step = StepId::tool(1, 0);
    OpenAwait { id: AwaitId::of(TURN, &step), step, expires_at: Timestamp(50_000) }
}

fn opened() -> Draft {
    journal::await_opened(TURN, &open(), &json!({ "type": "object" }), Some("May I?"))
}

fn cancelled() -> Draft {
    let by = "alice".parse().expect("valid");
    journal::cancelled(&Cancel { turn: TURN, mode: CancelMode::Keep, by, reason: None })
}

fn tool(status: ToolStatus) -> StepResult {
    StepResult::Tool { name: "pay".to_owned(), input: json!({}), output: json!("secret"), status }
}

#[test]
fn a_turn_is_shown_from_its_input_to_its_answer() {
    let (model, call) = (StepId::model(1), StepId::tool(1, 0));
    let usage = Usage { input_tokens: 5, output_tokens: 2 };
    let asks = StepResult::Model { output: "secret".to_owned(), calls: Vec::new(), usage };
    let shown = shown([
        journal::started(Seq(3), &"other".parse().expect("valid"), Timestamp(1)),
        started(),
        journal::joined(Seq(5), TURN),
        journal::joined(Seq(6), Seq(3)),
        journal::step_completed(TURN, &model, &asks),
        journal::step_started(TURN, &call, 1, "pay", &json!({})),
        journal::step_started(TURN, &call, 2, "pay", &json!({})),
        journal::step_completed(TURN, &call, &tool(ToolStatus::Done)),
        journal::answer(TURN, &"demo".parse().expect("valid"), "paid"),
        journal::completed(TURN),
    ]);
    assert_eq!(shown["answer"]["body"], json!({ "text": "paid" }));
    let journal_bytes = shown["usage"]["journal_bytes"].as_u64().expect("a number");
    assert!(journal_bytes > 100, "{shown}");
    let mut rest = shown;
    rest.as_object_mut().expect("an object").remove("answer");
    let expected = json!({
        "turn": 7, "state": "completed", "agent": "demo",
        "started_at": "1970-01-01T00:00:09.000Z", "deadline": "1970-01-01T00:01:00.000Z",
        "ended_at": "1970-01-01T00:00:17.000Z",
        "steps": [
            { "step": "m1", "type": "model", "state": "completed", "seq": 12, "at": "1970-01-01T00:00:12.000Z",
              "usage": { "input_tokens": 5, "output_tokens": 2 } },
            { "step": "m1.t0", "type": "tool", "name": "pay", "state": "completed", "attempts": 2, "seq": 15,
              "at": "1970-01-01T00:00:15.000Z" },
        ],
        "awaits": [], "joined": [5],
        "usage": { "steps": 2, "journal_bytes": journal_bytes, "input_tokens": 5, "output_tokens": 2 },
    });
    assert_eq!(rest, expected, "and nothing of what the steps wrote");
}

#[test]
fn the_state_is_that_of_the_last_record() {
    let resolved = |resolution: &Resolution| journal::await_resolved(&open().id, resolution);
    let yes = Resolution::Payload(json!(true));
    let cases: [(Vec<Draft>, &str); 9] = [
        (vec![], "queued"),
        (vec![started()], "running"),
        (vec![started(), opened()], "waiting"),
        (vec![started(), opened(), resolved(&yes)], "running"),
        (vec![started(), opened(), resolved(&Resolution::Expired)], "running"),
        (vec![started(), opened(), cancelled()], "cancelled"),
        (vec![cancelled()], "cancelled"),
        (vec![journal::joined(TURN, Seq(3))], "superseded"),
        (vec![started(), journal::completed(TURN), journal::regenerated(TURN)], "superseded"),
    ];
    for (drafts, state) in cases {
        let kinds: Vec<&str> = drafts.iter().map(|draft| draft.kind.as_str()).collect();
        assert_eq!(shown(drafts.clone())["state"], state, "{kinds:?}");
    }
    let again = shown([started(), journal::completed(TURN), journal::regenerated(TURN)]);
    assert_eq!(again["ended_at"], "1970-01-01T00:00:09.000Z", "it ended when it ended");
    assert_eq!(again["superseded"], json!({ "reason": "regenerate" }));
}

#[test]
fn an_end_says_why() {
    let failed = shown([started(), journal::failed(TURN, FailReason::NoProgress, "ten owners")]);
    assert_eq!((&failed["state"], &failed["error"]["reason"]), (&json!("failed"), &json!("no_progress")));
    assert_eq!(failed["error"]["detail"], "ten owners");
    let cancelled = shown([started(), cancelled()]);
    assert_eq!(cancelled["cancelled"], json!({ "mode": "keep", "by": "alice" }));
    assert_eq!(shown([journal::joined(TURN, Seq(3))])["superseded"], json!({ "into": 3 }));
}

#[test]
fn only_an_open_await_says_what_it_asks_for() {
    let waiting = shown([started(), opened()]);
    let await_shown = &waiting["awaits"][0];
    assert_eq!(await_shown["await"], "7-m1.t0");
    assert_eq!((&await_shown["state"], &await_shown["prompt"]), (&json!("open"), &json!("May I?")));
    assert_eq!(await_shown["schema"], json!({ "type": "object" }));
    let yes = journal::await_resolved(&open().id, &Resolution::Payload(json!("secret")));
    let expired = journal::await_resolved(&open().id, &Resolution::Expired);
    for (over, state, by) in [
        (yes.with_name(Some("bob".into())), "resolved", json!("bob")),
        (expired, "expired", Value::Null),
        (cancelled(), "closed", Value::Null),
    ] {
        let shown = shown([started(), opened(), over]);
        let await_shown = &shown["awaits"][0];
        assert_eq!((&await_shown["state"], &await_shown["by"]), (&json!(state), &by));
        assert!(await_shown.get("schema").is_none() && await_shown.get("prompt").is_none(), "{await_shown}");
        assert!(!shown.to_string().contains("secret"), "{shown}");
    }
}

#[test]
fn a_call_that_another_owner_made_again_says_so() {
    let call = StepId::tool(1, 0);
    let shown = |intent: u64, status: ToolStatus| {
        let mut overview = Overview::queued(TURN);
        let intents = [(1, 1), (intent, 2)].into_iter().take(usize::try_from(intent).expect("small"));
        let intents =
            intents.map(|(epoch, attempt)| (epoch, journal::step_started(TURN, &call, attempt, "pay", &json!({}))));
        let result = (2, journal::step_completed(TURN, &call, &tool(status)));
        for (seq, (epoch, draft)) in (8..).zip(intents.chain([result])) {
            overview.take(&Record::from_draft(
                "c".parse().expect("valid"),
                Seq(seq),
                Epoch(epoch),
                Timestamp(0),
                draft,
            ));
        }
        let step = &serde_json::to_value(&overview).expect("serialises")["steps"][0];
        (step["attempts"].clone(), step["called_again_in"].clone())
    };
    assert_eq!(shown(1, ToolStatus::Done), (json!(1), json!(2)), "by the owner of epoch 2, which wrote no intent");
    assert_eq!(shown(1, ToolStatus::Failed), (json!(1), json!(2)));
    assert_eq!(shown(1, ToolStatus::Unknown), (json!(1), Value::Null), "nobody knows");
    assert_eq!(shown(2, ToolStatus::Done), (json!(2), Value::Null), "both calls are written down");
}

#[test]
fn a_call_that_is_not_over_or_went_wrong_is_told_apart() {
    let call = StepId::tool(1, 0);
    let intent = journal::step_started(TURN, &call, 1, "pay", &json!({}));
    let begun = shown([started(), intent.clone()]);
    assert_eq!((&begun["steps"][0]["state"], &begun["steps"][0]["name"]), (&json!("started"), &json!("pay")));
    assert_eq!(begun["usage"]["steps"], 0, "only what is done counts");
    for (status, state) in [(ToolStatus::Failed, "failed"), (ToolStatus::Unknown, "unknown")] {
        let over = journal::step_completed(TURN, &call, &tool(status));
        let steps = &shown([started(), intent.clone(), over])["steps"];
        assert_eq!((&steps[0]["state"], steps.as_array().map(Vec::len)), (&json!(state), Some(1)));
    }
}
