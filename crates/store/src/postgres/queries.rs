//! Reads of the log and of what is derived from it, each one statement and so one snapshot.
//!
//! Bounds: a page ends at its limit or at [`PAGE_MAX_BYTES`] of bodies, whichever comes first, with `more` set; what is
//! beyond it never leaves the server.

use conch_core::body::Body;
use conch_core::ids::{ConvRef, ConversationId, Epoch, Generation, Incarnation, LogId, Seq, Subject};
use conch_core::record::{Record, RecordKind};
use conch_core::time::Timestamp;
use tokio_postgres::Row;

use super::conversations::{conversation_kind, regions};
use super::error::CallError;
use super::rows::{self, Id, damaged};
use super::session::Session;
use crate::{Direction, DueQuery, DueRow, DueWhy, Page, RangeQuery, StoreError, Summary, SummaryPage};

/// Bodies on one page, in bytes; a page holds at least one record, which may be larger.
const PAGE_MAX_BYTES: i64 = 1024 * 1024;

/// A range in one direction: the condition on `seq`, and the order.
macro_rules! range_sql {
    ($condition:literal, $order:literal) => {
        concat!(
            "SELECT v.id, coalesce(h.last_seq, 0), (SELECT system_id FROM cluster_meta), store_gen(), r.taken,
               r.seq, r.epoch, r.kind, r.sender, r.client_msg_id, r.name, r.turn, r.at, r.edited_at, r.deleted_at, r.body
             FROM conversation v LEFT JOIN conv_head h USING (conv_id)
             LEFT JOIN LATERAL (SELECT *, count(*) OVER () AS taken, sum(octet_length(body)) OVER (ORDER BY seq ", $order, ")
                 - octet_length(body) AS bytes_before
               FROM (SELECT seq, epoch, kind, sender, client_msg_id, name, turn, at, edited_at, deleted_at, body FROM record
                 WHERE conv_id = v.conv_id AND seq ", $condition, " $2 AND ($3::smallint[] IS NULL OR kind = ANY($3))
                 ORDER BY seq ", $order, " LIMIT $4) t) r ON r.bytes_before < $5
             WHERE v.conv_id = $1 ORDER BY r.seq"
        )
    };
}

pub(super) async fn range(session: &Session, query: &RangeQuery) -> Result<Option<Page>, CallError> {
    let (sql, from, descending) = match query.direction {
        Direction::After(seq) => (range_sql!(">", "ASC"), seq.to_i64(), false),
        Direction::Before(seq) => (range_sql!("<", "DESC"), seq.to_i64(), true),
        Direction::Latest => (range_sql!("<", "DESC"), i64::MAX, true),
    };
    let kinds: Option<Vec<i16>> =
        (!query.kinds.is_empty()).then(|| query.kinds.iter().map(|kind| *kind as i16).collect());
    let one_more = rows::limit(query.limit.saturating_add(1));
    let key = Id::from(query.conversation.key);
    let found = session.query(sql, &[&key, &from, &kinds, &one_more, &PAGE_MAX_BYTES]).await?;
    let Some(first) = found.first() else { return Ok(None) };
    rows::same_id(first, 0, &query.conversation)?;
    let head_seq = Seq::from_i64(rows::get(first, 1, "conv_head.last_seq")?);
    let log = log_of(first, 2)?;
    // Without records there is one row all the same, for the head.
    let taken: i64 = rows::get::<Option<i64>>(first, 4, "count")?.unwrap_or(0);
    let mut records = Vec::new();
    if taken > 0 {
        records = found.iter().map(|row| record(row, 5, &query.conversation.id)).collect::<Result<Vec<_>, _>>()?;
    }
    let more = rows::limit(records.len()) < taken || records.len() > query.limit;
    if records.len() > query.limit {
        // They ascend; the one too many is at the far end.
        if descending {
            records.remove(0);
        } else {
            records.pop();
        }
    }
    Ok(Some(Page { records, head_seq, log, more }))
}

/// A record from eleven columns that begin at `first`.
fn record(row: &Row, first: usize, conversation: &ConversationId) -> Result<Record, StoreError> {
    let kind: i16 = rows::get(row, first + 2, "record.kind")?;
    let name: Option<&str> = rows::get(row, first + 5, "record.name")?;
    let turn: Option<i64> = rows::get(row, first + 6, "record.turn")?;
    let edited_at: Option<i64> = rows::get(row, first + 8, "record.edited_at")?;
    let deleted_at: Option<i64> = rows::get(row, first + 9, "record.deleted_at")?;
    Ok(Record {
        seq: Seq::from_i64(rows::get(row, first, "record.seq")?),
        kind: RecordKind::from_number(kind.into())
            .ok_or_else(|| damaged("record.kind", format!("{kind} is not a kind")))?,
        conversation: conversation.clone(),
        sender: rows::parse(row, first + 3, "record.sender")?,
        name: name.map(std::sync::Arc::from),
        client_msg_id: Some(rows::parse(row, first + 4, "record.client_msg_id")?),
        at: Timestamp(rows::get(row, first + 7, "record.at")?),
        epoch: Epoch::from_i64(rows::get(row, first + 1, "record.epoch")?),
        turn: turn.map(Seq::from_i64),
        edited_at: edited_at.map(Timestamp),
        deleted_at: deleted_at.map(Timestamp),
        body: Body::from_store(rows::get(row, first + 10, "record.body")?),
    })
}

pub(super) async fn log(session: &Session) -> Result<LogId, CallError> {
    let row = session.first("SELECT system_id, store_gen() FROM cluster_meta", &[]).await?;
    let row = row.ok_or_else(|| damaged("cluster_meta.one", "the table is empty"))?;
    Ok(log_of(&row, 0)?)
}

/// From the system id and the generation.
fn log_of(row: &Row, first: usize) -> Result<LogId, StoreError> {
    let system_id: &str = rows::get(row, first, "cluster_meta.system_id")?;
    Ok(LogId::new(system_id, Generation::from_i64(rows::get(row, first + 1, "store_gen()")?)))
}

pub(super) async fn count_after(
    session: &Session,
    conversation: &ConvRef,
    after: Seq,
    limit: usize,
) -> Result<usize, CallError> {
    let sql = "SELECT count(*) FROM (SELECT 1 FROM record WHERE conv_id = $1 AND seq > $2 LIMIT $3) t";
    let row = session.first(sql, &[&Id::from(conversation.key), &after.to_i64(), &rows::limit(limit)]).await?;
    let count = row.map(|row| rows::count(&row, 0, "count")).transpose()?;
    Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}

/// Conversations of a member with what a list shows of each: `$1` the member, and a condition. The activity is the last
/// record's time, else the creation's. Unread messages are counted to the cap ([`crate::UNREAD_CAP`], 100).
macro_rules! summaries_sql {
    ($condition:literal) => {
        concat!(
            "WITH page AS MATERIALIZED (SELECT * FROM (SELECT v.conv_id, v.id, v.kind, v.title, v.agent,
                 coalesce(h.last_seq, 0) AS head_seq, coalesce(c.seq, 0) AS cursor_seq,
                 coalesce(nullif(h.last_at, 0), v.created_at) AS updated_at
               FROM member m JOIN conversation v USING (conv_id) LEFT JOIN conv_head h USING (conv_id)
               LEFT JOIN cursor c ON c.conv_id = m.conv_id AND c.sub = m.sub WHERE m.sub = $1) listed
               WHERE ", $condition, ")
             SELECT p.id, p.kind, p.title, p.agent, p.head_seq, p.cursor_seq, u.unread, p.updated_at,
               (SELECT system_id FROM cluster_meta), store_gen(),
               r.seq, r.epoch, r.kind, r.sender, r.client_msg_id, r.name, r.turn, r.at, r.edited_at, r.deleted_at, r.body
             FROM page p
             CROSS JOIN LATERAL (SELECT count(*) AS unread FROM (SELECT 1 FROM record WHERE conv_id = p.conv_id
               AND seq > p.cursor_seq AND kind = 1 AND sender <> $1 LIMIT 100) t) u
             LEFT JOIN LATERAL (SELECT * FROM record WHERE conv_id = p.conv_id AND kind = 1 ORDER BY seq DESC LIMIT 1) r ON true
             ORDER BY p.updated_at DESC, p.id"
        )
    };
}

pub(super) async fn summaries(
    session: &Session,
    sub: &Subject,
    after: Option<&(Timestamp, ConversationId)>,
    limit: usize,
) -> Result<SummaryPage, CallError> {
    let sql = summaries_sql!(
        "($2::bigint IS NULL OR updated_at < $2 OR (updated_at = $2 AND id > $3)) ORDER BY updated_at DESC, id LIMIT $4"
    );
    let after_ms = after.map(|(at, _)| at.0);
    let after_id = after.map(|(_, id)| id.as_str());
    let one_more = rows::limit(limit.saturating_add(1));
    let mut found = session.query(sql, &[&sub.as_str(), &after_ms, &after_id, &one_more]).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let log = match found.first() {
        Some(row) => log_of(row, 8)?,
        None => log(session).await?,
    };
    let summaries = found.iter().map(summary_of).collect::<Result<_, _>>()?;
    Ok(SummaryPage { summaries, log, more })
}

pub(super) async fn summary(
    session: &Session,
    sub: &Subject,
    conversation: &ConvRef,
) -> Result<Option<Summary>, CallError> {
    let sql = summaries_sql!("conv_id = $2");
    let row = session.first(sql, &[&sub.as_str(), &Id::from(conversation.key)]).await?;
    let Some(row) = row else { return Ok(None) };
    rows::same_id(&row, 0, conversation)?;
    Ok(Some(summary_of(&row)?))
}

fn summary_of(row: &Row) -> Result<Summary, StoreError> {
    let id: ConversationId = rows::parse(row, 0, "conversation.id")?;
    let last: Option<i64> = rows::get(row, 10, "record.seq")?;
    let last_message = if last.is_some() { Some(record(row, 10, &id)?) } else { None };
    Ok(Summary {
        id,
        kind: conversation_kind(rows::get(row, 1, "conversation.kind")?)?,
        title: rows::get(row, 2, "conversation.title")?,
        agent: rows::parse_optional(row, 3, "conversation.agent")?,
        head_seq: Seq::from_i64(rows::get(row, 4, "conv_head.last_seq")?),
        cursor: Seq::from_i64(rows::get(row, 5, "cursor.seq")?),
        unread: u32::try_from(rows::count(row, 6, "unread")?).unwrap_or(crate::UNREAD_CAP),
        last_message,
        updated_at: Timestamp(rows::get(row, 7, "updated_at")?),
    })
}

/// The list of due work. Times are compared as they are stored, to the microsecond.
macro_rules! due_sql {
    ($nobody_owns_it:literal) => {
        concat!(
            "SELECT v.id, d.why, (extract(epoch FROM d.due_at) * 1000000)::bigint, v.regions, v.home
               FROM conv_due d JOIN conversation v USING (conv_id) LEFT JOIN conv_head h USING (conv_id),
                    (SELECT timestamptz 'epoch' + $2::bigint * interval '1 microsecond' AS at) a
              WHERE d.due_at <= clock_timestamp() AND d.due_at >= a.at AND (d.due_at > a.at OR v.id > $3)
                AND (cardinality(v.regions) = 0 OR $1 = ANY(v.regions)) AND ",
            $nobody_owns_it,
            " ORDER BY d.due_at, v.id LIMIT $4"
        )
    };
}

/// Due work whose owner has no row in `node_lease`.
pub(super) async fn due(session: &Session, query: &DueQuery) -> Result<Vec<DueRow>, CallError> {
    let sql = due_sql!("NOT EXISTS (SELECT 1 FROM node_lease n WHERE n.incarnation = h.owner)");
    let (after_us, after_id) = behind(query);
    let rows = session.query(sql, &[&query.region.as_str(), &after_us, &after_id, &rows::limit(query.limit)]).await?;
    due_rows(&rows)
}

/// Due work whose owner is none of these.
pub(super) async fn due_unowned(
    session: &Session,
    live: &[Incarnation],
    query: &DueQuery,
) -> Result<Vec<DueRow>, CallError> {
    let sql = due_sql!("(h.owner IS NULL OR h.owner <> ALL($5))");
    let live: Vec<Id> = live.iter().map(|incarnation| Id::from(*incarnation)).collect();
    let (after_us, after_id) = behind(query);
    let limit = rows::limit(query.limit);
    due_rows(&session.query(sql, &[&query.region.as_str(), &after_us, &after_id, &limit, &live]).await?)
}

/// What the rows of a query come behind; no id is empty, and nothing was due in 1970.
fn behind(query: &DueQuery) -> (i64, &str) {
    query.after.as_ref().map_or((0, ""), |mark| (mark.at_us, mark.conversation.as_str()))
}

fn due_rows(found: &[Row]) -> Result<Vec<DueRow>, CallError> {
    let row = |row: &Row| {
        let why: i16 = rows::get(row, 1, "conv_due.why")?;
        let why =
            DueWhy::from_number(why.into()).ok_or_else(|| damaged("conv_due.why", format!("{why} is not a reason")))?;
        Ok(DueRow {
            conversation: rows::parse(row, 0, "conversation.id")?,
            why,
            at_us: rows::get(row, 2, "conv_due.due_at")?,
            regions: regions(&rows::get::<Vec<&str>>(row, 3, "conversation.regions")?)?,
            home: rows::parse(row, 4, "conversation.home")?,
        })
    };
    Ok(found.iter().map(row).collect::<Result<_, StoreError>>()?)
}
