//! `conch send`: one message, the same until it is acknowledged.

use std::io::Read;

use serde_json::json;

use super::call;
use crate::args::SendArgs;
use crate::client::Request;
use crate::exit::Failure;
use crate::output::Output;
use crate::safe::one_line;
use crate::target;

/// Most bytes that are read from standard input; the server's own limit is lower and says so itself.
const INPUT_BYTES_MAX: u64 = 4 * 1024 * 1024;

pub(crate) async fn run(args: &SendArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let text = text_or_input(&args.text)?;
    let key = match &args.client_msg_id {
        Some(key) => key.to_string(),
        None => uuid::Uuid::now_v7().to_string(),
    };
    let conversation = args.conversation.as_str();
    let body = json!({"client_msg_id": key, "body": {"text": text}});
    let request = Request::post(&["v1", "conversations", conversation, "messages"], body);
    let answer = call(&client, &request, args.target.budget, output).await?;
    let mut result = answer.body;
    result["conversation"] = json!(conversation);
    result["client_msg_id"] = json!(key);
    output.result(&result, || {
        let again = if result["duplicate"] == true { " (it was there already)" } else { "" };
        format!("#{} in {conversation}{again}", one_line(&result["seq"].to_string()))
    })
}

/// An argument; `-` stands for standard input.
pub(super) fn text_or_input(argument: &str) -> Result<String, Failure> {
    if argument == "-" { read_input() } else { Ok(argument.to_owned()) }
}

fn read_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(INPUT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::other(format!("standard input: {error}")))?;
    if text.len() as u64 > INPUT_BYTES_MAX {
        return Err(Failure::usage(format!("standard input: more than {INPUT_BYTES_MAX} bytes")));
    }
    // The line break that a shell or an editor adds is not part of what was said.
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}
