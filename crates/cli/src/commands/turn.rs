//! `conch turn`: where a turn stands, its end, an answer to what it waits for, another run.

use serde_json::{Value, json};

use super::call;
use super::send::text_or_input;
use crate::args::{OfArgs, TurnCommand};
use crate::client::Request;
use crate::exit::Failure;
use crate::output::{Output, Style};
use crate::safe::{one_line, printable};
use crate::target;

pub(crate) async fn run(command: &TurnCommand, output: &Output) -> Result<(), Failure> {
    match command {
        TurnCommand::Show { of, turn } => {
            let turn = ask(of, &["turns", &turn.to_string()], None, output).await?;
            output.result(&turn, || shown(output, &turn))
        }
        TurnCommand::Cancel { of, turn, mode } => {
            let body = json!({ "mode": mode.as_str() });
            let done = ask(of, &["turns", &turn.to_string(), "cancel"], Some(body), output).await?;
            output.result(&done, || format!("turn {turn} is cancelled{}", receipt(&done)))
        }
        TurnCommand::Resolve { of, wait, payload } => {
            let payload: Value = serde_json::from_str(&text_or_input(payload)?)
                .map_err(|error| Failure::usage(format!("payload: is not valid JSON: {error}")))?;
            let done = ask(of, &["awaits", wait], Some(json!({ "payload": payload })), output).await?;
            output.result(&done, || format!("{} is resolved{}", one_line(wait), receipt(&done)))
        }
        TurnCommand::Regenerate { of, turn, client_msg_id } => {
            let key = client_msg_id.as_ref().map_or_else(|| uuid::Uuid::now_v7().to_string(), ToString::to_string);
            let body = json!({ "client_msg_id": key, "regenerate": turn });
            let mut done = ask(of, &["turns"], Some(body), output).await?;
            done["client_msg_id"] = json!(key);
            output.result(&done, || format!("turn {turn} is run again{}", receipt(&done)))
        }
    }
}

/// A call about the turns of a conversation.
async fn ask(of: &OfArgs, path: &[&str], body: Option<Value>, output: &Output) -> Result<Value, Failure> {
    let client = target::client(&of.target)?;
    let path = [&["v1", "conversations", of.conversation.as_str()], path].concat();
    let request = match body {
        Some(body) => Request::post(&path, body),
        None => Request::get(&path),
    };
    Ok(call(&client, &request, of.target.budget, output).await?.body)
}

fn receipt(done: &Value) -> String {
    let again = if done["duplicate"] == true { " (it was already)" } else { "" };
    format!(": #{}{again}", one_line(&done["seq"].to_string()))
}

/// What people are shown of a turn.
fn shown(output: &Output, turn: &Value) -> String {
    let text = |value: &Value| one_line(value.as_str().unwrap_or_default());
    let head = format!("turn {} {}", one_line(&turn["turn"].to_string()), text(&turn["state"]));
    let mut lines = vec![output.styled(Style::Bold, &head)];
    for why in ["error", "cancelled", "superseded"] {
        if !turn[why].is_null() {
            lines.push(format!("  {why}: {}", one_line(&turn[why].to_string())));
        }
    }
    for step in list(&turn["steps"]) {
        let name = if step["name"].is_string() { format!(" {}", text(&step["name"])) } else { String::new() };
        let seq = one_line(&step["seq"].to_string());
        let calls = calls(step);
        lines.push(format!("  {}{name} {}{calls} #{seq}", text(&step["step"]), text(&step["state"])));
    }
    for wait in list(&turn["awaits"]) {
        let asked = if wait["prompt"].is_string() { format!(": {}", text(&wait["prompt"])) } else { String::new() };
        let by = if wait["by"].is_string() { format!(" by {}", text(&wait["by"])) } else { String::new() };
        lines.push(format!("  await {} {}{by}{asked}", text(&wait["await"]), text(&wait["state"])));
    }
    if let Some(answer) = turn["answer"]["body"]["text"].as_str() {
        lines.push(output.styled(Style::Accent, &format!("  {}", printable(answer))));
    }
    lines.join("\n")
}

/// How often a tool was called, as far as it is known and more than once.
fn calls(step: &Value) -> String {
    let attempts = step["attempts"].as_u64().filter(|attempts| *attempts > 1);
    let written = attempts.map(|attempts| format!(", {attempts} calls")).unwrap_or_default();
    let again = step["called_again_in"].as_u64();
    written + &again.map(|epoch| format!(", called again by the owner of epoch {epoch}")).unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Colour;

    #[test]
    fn a_turn_is_shown_line_by_line_and_steers_no_terminal() {
        let turn = json!({
            "turn": 7, "state": "failed", "error": {"reason": "agent_failed"},
            "steps": [{"step": "m1", "state": "completed", "seq": 9}, {"step": "m1.t0", "name": "pay\u{1b}", "state": "started", "attempts": 1, "seq": 10},
                      {"step": "m1.t1", "name": "pay", "state": "completed", "attempts": 2, "called_again_in": 4, "seq": 12}],
            "awaits": [{"await": "7-m1.t0", "state": "open", "prompt": "May I\n?"}, {"await": "7-x", "state": "resolved", "by": "bob"}],
            "answer": {"body": {"text": "one\ntwo"}},
        });
        let mut output = Output::detect(true);
        output.colour = Colour::Off;
        let expected = [
            "turn 7 failed",
            "  error: {\"reason\":\"agent_failed\"}",
            "  m1 completed #9",
            "  m1.t0 pay\\u{1b} started #10",
            "  m1.t1 pay completed, 2 calls, called again by the owner of epoch 4 #12",
            "  await 7-m1.t0 open: May I\\u{a}?",
            "  await 7-x resolved by bob",
            "  one",
            "    two",
        ];
        assert_eq!(shown(&output, &turn).lines().collect::<Vec<_>>(), expected);
    }
}
