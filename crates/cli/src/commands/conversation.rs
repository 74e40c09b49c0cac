//! `conch create`, `conch conversations` and `conch members`.

use conch_core::ids::AgentName;
use serde_json::{Value, json};

use super::call;
use crate::args::{ConversationsArgs, CreateArgs, MemberChange, MembersArgs};
use crate::client::Request;
use crate::exit::Failure;
use crate::output::{Output, Style};
use crate::safe::one_line;
use crate::target;

/// Most members asked for at a time.
const MEMBERS_PAGE: usize = 500;
/// Most pages of members that are shown.
const MEMBERS_PAGES_MAX: usize = 1_000;

pub(crate) async fn create(args: &CreateArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let conversation = args.conversation.as_str();
    let mut body = json!({"kind": args.kind});
    if let Some(title) = &args.title {
        body["title"] = json!(title);
    }
    if let Some(agent) = &args.agent {
        body["agent"] = json!(agent);
    }
    if !args.members.is_empty() {
        body["members"] = json!(args.members);
    }
    let request = Request::put(&["v1", "conversations", conversation], body);
    let answer = call(&client, &request, args.target.budget, output).await?;
    let existed = if answer.status == 201 { Existed::No } else { Existed::Before };
    output.result(&answer.body, || {
        let how = if existed == Existed::No { "created" } else { "exists already" };
        format!("{} {conversation} {how}\n  {}", args.kind, client.endpoint().console(conversation))
    })?;
    if existed == Existed::Before {
        for ignored in ignored(args, &answer.body) {
            output.warning(&ignored);
        }
    }
    Ok(())
}

/// Whether a conversation was there before it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Existed {
    No,
    Before,
}

/// What was asked for and had no effect, because the conversation existed and is otherwise.
fn ignored(args: &CreateArgs, conversation: &Value) -> Vec<String> {
    let mut ignored = Vec::new();
    let mut differs = |flag: &str, asked: Option<&str>, key: &str| {
        let found = conversation[key].as_str();
        if asked.is_some() && asked != found {
            let has = found.map_or("has none".to_owned(), |found| format!("keeps {:?}", one_line(found)));
            ignored.push(format!("{flag} has no effect: {} exists already and {has}", args.conversation.as_str()));
        }
    };
    differs("--title", args.title.as_deref(), "title");
    differs("--agent", args.agent.as_ref().map(AgentName::as_str), "agent");
    if !args.members.is_empty() {
        let id = args.conversation.as_str();
        ignored.push(format!("--member has no effect: {id} exists already; see conch members {id} add"));
    }
    ignored
}

pub(crate) async fn list(args: &ConversationsArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let request = Request::get(&["v1", "conversations"])
        .with_query("after", args.after.clone())
        .with_query("limit", Some(args.limit.to_string()));
    let page = call(&client, &request, args.target.budget, output).await?.body;
    let conversations = array(&page, "conversations")?;
    for conversation in conversations {
        output.result(conversation, || summary(output, conversation))?;
    }
    if page["more"] == true {
        let next = page["after"].as_str().unwrap_or_default();
        output.notice(&format!("there are more: conch conversations --after {next}"));
    }
    Ok(())
}

fn summary(output: &Output, conversation: &Value) -> String {
    let text = |key: &str| one_line(conversation[key].as_str().unwrap_or_default());
    let unread = match conversation["unread"].as_u64() {
        Some(0) | None => String::new(),
        Some(count) => output.styled(Style::Accent, &format!(" {count} unread")),
    };
    let title = if conversation["title"].is_string() { format!(" {}", text("title")) } else { String::new() };
    let id = output.styled(Style::Bold, &text("id"));
    let last = &conversation["last_message"];
    let last = match last["body"]["text"].as_str() {
        Some(said) => {
            let line: String = said.lines().next().unwrap_or_default().chars().take(60).collect();
            let who = last["name"].as_str().or(last["sender"].as_str()).unwrap_or_default();
            output.styled(Style::Dim, &format!("  {}: {}", one_line(who), one_line(&line)))
        }
        None => String::new(),
    };
    format!("{id} ({}){title}{unread}{last}", text("kind"))
}

pub(crate) async fn members(args: &MembersArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let conversation = args.conversation.as_str();
    let path = |sub| ["v1", "conversations", conversation, "members", sub];
    let (request, sub, done) = match &args.change {
        None => return list_members(args, output).await,
        Some(MemberChange::Add { sub }) => (Request::put(&path(sub.as_str()), json!({})), sub, "is a member of"),
        Some(MemberChange::Remove { sub }) => (Request::delete(&path(sub.as_str())), sub, "is no member of"),
    };
    call(&client, &request, args.target.budget, output).await?;
    let member = matches!(args.change, Some(MemberChange::Add { .. }));
    let result = json!({"conversation": conversation, "sub": sub, "member": member});
    output.result(&result, || format!("{} {done} {conversation}", one_line(sub.as_str())))
}

async fn list_members(args: &MembersArgs, output: &Output) -> Result<(), Failure> {
    let client = target::client(&args.target)?;
    let mut after: Option<String> = None;
    for _ in 0..MEMBERS_PAGES_MAX {
        let request = Request::get(&["v1", "conversations", args.conversation.as_str(), "members"])
            .with_query("after", after.clone())
            .with_query("limit", Some(MEMBERS_PAGE.to_string()));
        let page = call(&client, &request, args.target.budget, output).await?.body;
        let members = array(&page, "members")?;
        for member in members {
            output.result(member, || one_line(member["sub"].as_str().unwrap_or_default()))?;
        }
        if page["more"] != true {
            return Ok(());
        }
        let last = members.last().and_then(|member| member["sub"].as_str());
        after = Some(advanced(after.as_deref(), last)?);
    }
    Err(Failure::other("there are more members than this command shows"))
}

/// Where the next page begins. Members come in the order of their subs: a page that does not lead on would be asked for
/// again and again.
fn advanced(after: Option<&str>, last: Option<&str>) -> Result<String, Failure> {
    match last {
        Some(last) if after.is_none_or(|after| after < last) => Ok(last.to_owned()),
        _ => Err(Failure::other("unexpected answer: there are more members, but the page does not lead on to them")),
    }
}

fn array<'a>(page: &'a Value, key: &str) -> Result<&'a Vec<Value>, Failure> {
    page[key].as_array().ok_or_else(|| Failure::other(format!("unexpected answer: it has no {key}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_lead_on_or_end() {
        assert_eq!(advanced(None, Some("a")).expect("a first page"), "a");
        assert_eq!(advanced(Some("a"), Some("b")).expect("a next page"), "b");
        for (after, last) in [(None, None), (Some("a"), None), (Some("b"), Some("b")), (Some("b"), Some("a"))] {
            assert!(advanced(after, last).is_err(), "{after:?} {last:?}");
        }
    }
}
