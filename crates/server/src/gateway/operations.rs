//! What clients ask for, whichever transport it came by: the shared half of HTTP calls and channel pushes.

use std::sync::Mutex;

use conch_core::body::Body;
use conch_core::ids::{ClientMsgId, ConvRef, Seq};
use conch_core::limit::SenderLimits;
use conch_core::record::{Draft, Record, RecordKind};
use conch_core::refusal::{Code, Refusal, Retry};
use conch_core::sequencer::{Outcome, Receipt};
use conch_store::{CursorOutcome, Direction, Page, RangeQuery};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Gateway;
use super::errors::IntoRefusal;
use crate::auth::grants::{Access, Membership, Permission, Principal, RateLimit};
use crate::link::Notice;
use crate::metrics::Queue;

/// A range of history as a client asks for it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HistoryRequest {
    /// The first records above this seq.
    pub after: Option<u64>,
    /// The last records below this seq.
    pub before: Option<u64>,
    /// How many.
    pub limit: Option<usize>,
    /// Only these kinds, separated by commas.
    pub kinds: Option<String>,
}

#[derive(Serialize)]
struct History<'a> {
    messages: &'a [Record],
    head_seq: Seq,
    log: &'a str,
    more: bool,
}

impl Gateway {
    /// Checks that a principal may do something in a conversation, by grant or by membership (invariant 12).
    ///
    /// # Errors
    /// `forbidden`, or the store's refusal.
    pub(crate) async fn require(
        &self,
        principal: &Principal,
        permission: Permission,
        conversation: &ConvRef,
    ) -> Result<(), Refusal> {
        let membership = match principal.needs_membership(permission, &conversation.id) {
            true if self.is_member(principal, conversation).await? => Membership::Member,
            _ => Membership::None,
        };
        Access { principal, conversation: &conversation.id, membership }.require(permission)
    }

    /// Whether a subject belongs to a conversation, as the store says.
    ///
    /// # Errors
    /// The store's refusal.
    pub(crate) async fn is_member(&self, principal: &Principal, conversation: &ConvRef) -> Result<bool, Refusal> {
        let store = &self.node().store;
        store.is_member(conversation, &principal.sub).await.map_err(IntoRefusal::into_refusal)
    }

    /// Takes one from the sender's rate of messages.
    ///
    /// # Errors
    /// `rate_limited` with the time until the next one.
    pub(crate) fn take_rate(&self, principal: &Principal) -> Result<(), Refusal> {
        let rate = &self.shared.rate;
        self.take_from(&self.shared.rates, principal, || {
            format!("at most {} messages a second, {} at once", rate.per_second, rate.burst)
        })
    }

    /// Takes one from the sender's rate of joins: each may cost a read of the store, whose rate all who catch up share.
    ///
    /// # Errors
    /// As [`Gateway::take_rate`].
    pub(crate) fn take_join_rate(&self, principal: &Principal) -> Result<(), Refusal> {
        let rate = &self.shared.rate;
        self.take_from(&self.shared.join_rates, principal, || {
            format!("at most {} joins a second, {} at once", rate.joins_per_second, rate.joins_burst)
        })
    }

    fn take_from(
        &self,
        rates: &Mutex<SenderLimits>,
        principal: &Principal,
        detail: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        if principal.rate_limit == RateLimit::Lifted {
            return Ok(());
        }
        let now = self.node().seams.now();
        let mut rates = rates.lock().expect("no holder of the rates panics");
        let evicted = rates.evicted();
        let taken = rates.take(now, &principal.sub, 1);
        if rates.evicted() > evicted {
            self.node().metrics.limit_hit(Queue::Senders);
        }
        taken.map_err(|wait| {
            self.node().metrics.rate_limited.inc();
            let after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
            Refusal::retry(Code::RateLimited, detail(), Retry { after_ms, budget_ms: 20_000 })
        })
    }

    /// A checked draft of a message or an event.
    ///
    /// # Errors
    /// Names the field and the limit.
    pub(crate) fn draft(
        &self,
        principal: &Principal,
        kind: RecordKind,
        client_msg_id: &str,
        body: &RawValue,
    ) -> Result<Draft, Refusal> {
        let client_msg_id: ClientMsgId = client_msg_id.parse().map_err(IntoRefusal::into_refusal)?;
        let limits = self.limits().body();
        let body = match kind {
            RecordKind::Message => Body::parse_message(body.get(), limits),
            _ => Body::parse(body.get(), limits),
        };
        let body = body.map_err(IntoRefusal::into_refusal)?;
        let name = principal.name.as_deref().map(Into::into);
        Ok(Draft::new(kind, principal.sub.clone(), client_msg_id, body).with_name(name))
    }

    /// Reads a page of history and gives its JSON.
    ///
    /// # Errors
    /// `invalid_request`, `not_found`, or the store's refusal.
    pub(crate) async fn history(&self, conversation: &ConvRef, request: &HistoryRequest) -> Result<String, Refusal> {
        let limits = self.limits();
        let direction = match (request.after, request.before) {
            (Some(_), Some(_)) => {
                return Err(Refusal::new(Code::UnprocessableRequest, "after and before: give one of them"));
            }
            (Some(after), None) => Direction::After(Seq(after)),
            (None, Some(before)) => Direction::Before(Seq(before)),
            (None, None) => Direction::Latest,
        };
        let limit = page_limit(request.limit, limits.history_default, limits.history_limit)?;
        let kinds = request.kinds.as_deref().unwrap_or_default();
        let kinds: Result<Vec<RecordKind>, _> =
            kinds.split(',').filter(|kind| !kind.is_empty()).map(str::parse::<RecordKind>).collect();
        let kinds = kinds.map_err(IntoRefusal::into_refusal)?;
        let query = RangeQuery { conversation: conversation.clone(), direction, limit, kinds };
        let page = {
            let _turn = self.shared.history_reads.acquire().await;
            self.node().store.range(&query).await.map_err(IntoRefusal::into_refusal)?
        };
        let page = page.ok_or_else(|| not_found(conversation))?;
        Ok(history_json(&page))
    }

    /// Moves the caller's read cursor; answers where it stands.
    ///
    /// # Errors
    /// `invalid_request` beyond the head, `not_found`, or the store's refusal.
    pub(crate) async fn move_cursor(
        &self,
        principal: &Principal,
        conversation: &ConvRef,
        seq: u64,
    ) -> Result<String, Refusal> {
        match self.shared.cursors.move_to(conversation, &principal.sub, Seq(seq)).await? {
            CursorOutcome::At(seq) => {
                self.people().changed_for(conversation, &principal.sub);
                let (id, sub) = (conversation.id.clone(), principal.sub.clone());
                self.notices().tell(&Notice::CursorMoved { conversation: id, sub });
                Ok(format!(r#"{{"seq":{seq}}}"#))
            }
            CursorOutcome::BeyondHead(head) => {
                let detail = format!("seq: {seq} is beyond the head, which is {head}");
                Err(Refusal::new(Code::UnprocessableRequest, detail))
            }
            CursorOutcome::NoConversation => Err(not_found(conversation)),
        }
    }
}

/// A page's size within its limits.
///
/// # Errors
/// Names the limit.
pub(crate) fn page_limit(asked: Option<usize>, default: usize, most: usize) -> Result<usize, Refusal> {
    match asked {
        None => Ok(default),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(_) => Err(Refusal::new(Code::UnprocessableRequest, format!("limit: must be 1 to {most}"))),
    }
}

/// There is no such conversation.
pub(crate) fn not_found(conversation: &ConvRef) -> Refusal {
    Refusal::new(Code::NotFound, format!("there is no conversation {}", conversation.id))
}

fn history_json(page: &Page) -> String {
    let Page { records, head_seq, log, more } = page;
    let history = History { messages: records, head_seq: *head_seq, log: log.as_str(), more: *more };
    serde_json::to_string(&history).expect("records have string keys and valid bodies only")
}

/// The answer to a send.
pub(crate) fn receipt_json(receipt: &Receipt) -> String {
    let Receipt { seq, epoch, at, outcome } = receipt;
    let duplicate = *outcome == Outcome::Duplicate;
    format!(r#"{{"seq":{seq},"epoch":{epoch},"at":"{at}","duplicate":{duplicate}}}"#)
}
