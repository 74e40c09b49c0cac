//! `conch history`: a page of the log.

use conch_core::record::Record;
use serde::Deserialize;
use serde_json::Value;

use super::call;
use crate::args::HistoryArgs;
use crate::client::{HttpClient, Request};
use crate::exit::Failure;
use crate::output::{Format, Output};
use crate::target;

/// A page, as the server sends it.
#[derive(Debug, Deserialize)]
pub(super) struct Page {
    /// The records as they came.
    pub(super) messages: Vec<Value>,
    /// The head of the same snapshot.
    pub(super) head_seq: u64,
    /// The log that positions belong to.
    pub(super) log: String,
    /// Whether there are more in this direction.
    pub(super) more: bool,
}

impl Page {
    /// Asks for a page; `query` is the route's query.
    pub(super) async fn load(
        client: &HttpClient,
        conversation: &str,
        query: Vec<(&'static str, Option<String>)>,
        budget: std::time::Duration,
        output: &Output,
    ) -> Result<Self, Failure> {
        let mut request = Request::get(&["v1", "conversations", conversation, "messages"]);
        for (name, value) in query {
            request = request.with_query(name, value);
        }
        let answer = call(client, &request, budget, output).await?;
        serde_json::from_value(answer.body).map_err(|error| Failure::other(format!("unexpected answer: {error}")))
    }
}

pub(crate) async fn run(args: &HistoryArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let kinds: Vec<&str> = args.kinds.iter().map(|kind| kind.as_str()).collect();
    let query = vec![
        ("after", args.after.map(|seq| seq.to_string())),
        ("before", args.before.map(|seq| seq.to_string())),
        ("limit", Some(args.limit.to_string())),
        ("kinds", if kinds.is_empty() { None } else { Some(kinds.join(",")) }),
    ];
    let page = Page::load(&client, args.conversation.as_str(), query, args.target.budget, output).await?;
    for record in &page.messages {
        show(record, output)?;
    }
    if page.more {
        let edge = if args.after.is_some() { page.messages.last() } else { page.messages.first() };
        let seq = edge.and_then(|record| record["seq"].as_u64()).unwrap_or_default();
        let direction = if args.after.is_some() { "after" } else { "before" };
        output.notice(&format!("there are more: --{direction} {seq}"));
    }
    Ok(())
}

/// One record of a page, for people or as the JSON that came.
pub(super) fn show(record: &Value, output: &Output) -> Result<(), Failure> {
    match output.format {
        Format::Json => output.json(record),
        Format::Human => {
            let record =
                Record::deserialize(record).map_err(|error| Failure::other(format!("unexpected answer: {error}")))?;
            output.line(&output.record(&record))
        }
    }
}
