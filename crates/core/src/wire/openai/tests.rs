//! What real servers send, cut anywhere, and what a broken one sends.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

fn reader() -> AnswerReader {
    AnswerReader::new(AnswerLimits::default())
}

fn read(stream: &str) -> Result<Answer, BrokenAnswer> {
    let mut reader = reader();
    reader.push(stream.as_bytes())?;
    reader.finish()
}

/// One event for each JSON text.
fn events(chunks: &[&str]) -> String {
    chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect()
}

fn call(id: &str, name: &str, arguments: &str) -> AskedCall {
    AskedCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
}

/// Text, then two calls in pieces, then the usage in a chunk without choices.
fn hosted() -> String {
    events(&[
        r#"{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"Let me "}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"löök 🦀."}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a1","type":"function","function":{"name":"weather","arguments":""}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"city\":"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"Oslo\"}"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"a2","function":{"name":"clock","arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":31,"completion_tokens":7,"total_tokens":38}}"#,
        "[DONE]",
    ])
}

fn hosted_answer() -> Answer {
    Answer {
        text: "Let me löök 🦀.".to_owned(),
        calls: vec![call("a1", "weather", r#"{"city":"Oslo"}"#), call("a2", "clock", "{}")],
        reason: FinishReason::ToolCalls,
        usage: Some(Usage { prompt_tokens: 31, completion_tokens: 7 }),
    }
}

#[test]
fn a_hosted_model_s_stream_is_read() {
    assert_eq!(read(&hosted()), Ok(hosted_answer()));
}

#[test]
fn what_small_servers_do_otherwise_is_read_too() {
    // Whole calls without an index, without ids or with the same one twice, and "stop" although there are calls.
    let stream = events(&[
        r#"{"choices":[{"delta":{"content":null,"tool_calls":[{"function":{"name":"a","arguments":"{}"}},{"function":{"name":"b","arguments":"{}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}"#,
    ]);
    let answer = read(&stream).expect("readable");
    assert_eq!(answer.calls, [call("call_0", "a", "{}"), call("call_1", "b", "{}")]);
    assert_eq!((answer.reason, answer.usage), (FinishReason::ToolCalls, None));
    let stream = events(&[
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":"{"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"a","arguments":"}"}}]}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":1,"id":"x","function":{"name":"b","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}"#,
    ]);
    assert_eq!(read(&stream).expect("readable").calls, [call("x", "a", "{}"), call("call_1", "b", "{}")]);
    // Another choice than the first was not asked for; a comment keeps the line alive.
    let stream = format!(
        ": ping\n\n{}",
        events(&[
            r#"{"choices":[{"index":1,"delta":{"content":"no"}},{"index":0,"delta":{"content":"yes"},"finish_reason":"length"}]}"#
        ])
    );
    let answer = read(&stream).expect("readable");
    assert_eq!((answer.text.as_str(), answer.reason), ("yes", FinishReason::Length));
}

#[test]
fn a_server_that_cannot_stream_answers_in_one_piece() {
    let mut reader = reader();
    let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
    assert_eq!(reader.whole(body.as_bytes()), Ok("hi".to_owned()));
    assert!(reader.is_done());
    assert_eq!(reader.finish().expect("whole").usage, Some(Usage { prompt_tokens: 3, completion_tokens: 1 }));
}

#[test]
fn an_answer_without_an_end_is_none() {
    assert_eq!(read(""), Err(BrokenAnswer::CutOff));
    let started = events(&[r#"{"choices":[{"delta":{"content":"Hel"}}]}"#]);
    assert_eq!(read(&started), Err(BrokenAnswer::CutOff));
    assert_eq!(read(&format!("{started}data: [DONE]\n\n")), Err(BrokenAnswer::CutOff));
}

#[test]
fn an_error_within_the_stream_is_told() {
    let says = |text: &str| Err(BrokenAnswer::Server(text.to_owned()));
    assert_eq!(read(&events(&[r#"{"error":{"message":"overloaded","type":"server_error"}}"#])), says("overloaded"));
    assert_eq!(read(&events(&[r#"{"error":"out of memory"}"#])), says("out of memory"));
    assert_eq!(read(&events(&[r#"{"error":{"code":7}}"#])), says(r#"{"code":7}"#));
    let ok = events(&[r#"{"error":null,"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#]);
    assert_eq!(read(&ok).expect("no error").text, "a");
}

#[test]
fn nonsense_is_refused_and_says_where() {
    for stream in ["data: {\n\n", "data: 7\n\n", "data: {\"choices\":{}}\n\n"] {
        assert!(matches!(read(stream), Err(BrokenAnswer::Malformed(_))), "{stream}");
    }
    let skipped = r#"{"choices":[{"delta":{"tool_calls":[{"index":3,"id":"x","function":{"name":"a"}}]}}]}"#;
    let refused = read(&events(&[skipped])).expect_err("three calls are missing").to_string();
    assert_eq!(refused, "not a chat completion: tool_calls: number 3 comes before number 0");
    let nameless = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x"}]},"finish_reason":"tool_calls"}]}"#;
    let refused = read(&events(&[nameless])).expect_err("a call of nothing").to_string();
    assert_eq!(refused, "not a chat completion: tool_calls[0]: has no name");
}

#[test]
fn a_flood_is_refused_with_its_limit() {
    let limits = AnswerLimits { event_bytes: 300, text_bytes: 8, calls: 1 };
    let read = |chunks: &[&str]| {
        let mut reader = AnswerReader::new(limits);
        reader.push(events(chunks).as_bytes()).map(drop).expect_err("over a limit").to_string()
    };
    let text = r#"{"choices":[{"delta":{"content":"12345"}}]}"#;
    assert_eq!(read(&[text, text]), "text: more than 8 bytes in one answer");
    let arguments =
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a","arguments":"12345"}}]}}]}"#;
    assert_eq!(read(&[arguments, arguments]), "tool_calls: more than 8 bytes in one answer");
    let two = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a"}},{"index":1,"function":{"name":"b"}}]}}]}"#;
    assert_eq!(read(&[two]), "tool_calls: more than 1 calls in one answer");
    assert_eq!(read(&[&"x".repeat(301)]), "event: more than 300 bytes in one answer");
}

#[test]
fn the_request_says_what_the_conversation_holds() {
    let parameters = r#"{"type":"object","properties":{"city":{"type":"string"}}}"#;
    let tools = [ToolSpec {
        name: "weather".to_owned(),
        description: "tells it".to_owned(),
        parameters: RawValue::from_string(parameters.to_owned()).expect("JSON"),
    }];
    let asked = call("a1", "weather", r#"{"city":"Oslo"}"#);
    let messages = [
        ChatMessage::System("be brief".to_owned()),
        ChatMessage::User { text: "wet?".to_owned() },
        ChatMessage::Assistant { text: String::new(), calls: vec![asked] },
        ChatMessage::Tool { call: "a1".to_owned(), result: r#"{"rain":true}"#.to_owned() },
        ChatMessage::Assistant { text: "Yes.".to_owned(), calls: Vec::new() },
    ];
    let request =
        ChatRequest { model: "m", messages: &messages, tools: &tools, max_tokens: Some(9), temperature: None };
    let expected = concat!(
        r#"{"model":"m","messages":[{"role":"system","content":"be brief"},{"role":"user","content":"wet?"},"#,
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a1","type":"function","#,
        r#""function":{"name":"weather","arguments":"{\"city\":\"Oslo\"}"}}]},"#,
        r#"{"role":"tool","content":"{\"rain\":true}","tool_call_id":"a1"},{"role":"assistant","content":"Yes."}],"#,
        r#""tools":[{"type":"function","function":{"name":"weather","description":"tells it","parameters":"#,
        r#"{"type":"object","properties":{"city":{"type":"string"}}}}}],"#,
        r#""stream":true,"stream_options":{"include_usage":true},"max_tokens":9}"#,
    );
    assert_eq!(request.encode(), expected);
}

proptest! {
    #[test]
    fn the_cut_does_not_matter(cuts in proptest::collection::vec(0_usize..2_000, 0..20)) {
        let stream = hosted().into_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let mut reader = reader();
        let mut shown = String::new();
        for cut in cuts.windows(2) {
            shown.push_str(&reader.push(&stream[cut[0]..cut[1]]).expect("readable"));
        }
        prop_assert_eq!(&shown, &hosted_answer().text);
        prop_assert_eq!(reader.finish(), Ok(hosted_answer()));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), json in ".{0,200}") {
        let mut reader = reader();
        let _ = reader.push(&bytes);
        let _ = reader.finish();
        let _ = read(&format!("data: {json}\n\n"));
    }
}
