//! Reads of the log and of what is derived from it, each in one snapshot.
//!
//! Bounds: a page ends at its limit or at [`PAGE_MAX_BYTES`] of bodies, whichever comes first, with `more` set.

use conch_core::body::Body;
use conch_core::conversation::ConversationKind;
use conch_core::ids::{ConvRef, ConversationId, Epoch, Seq, Subject};
use conch_core::record::{Record, RecordKind};
use conch_core::time::Timestamp;
use rusqlite::{Connection, Row, params};

use super::conversations::{REGION_SEPARATOR, regions};
use super::error::{damaged, store_error};
use super::readers::ReadTransaction;
use super::rows;
use crate::{
    Checkpoint, Direction, DueQuery, DueRow, DueWhy, Page, RangeQuery, StoreError, Summary, SummaryPage, UNREAD_CAP,
};

/// Microseconds of a millisecond.
const MICROS: i64 = 1_000;

/// Bodies on one page, in bytes; a page holds at least one record, which may be larger.
pub(super) const PAGE_MAX_BYTES: usize = 1024 * 1024;

/// All kinds, as the mask that the statements below take: bit n is the kind with number n.
const ALL_KINDS: i64 = i64::MAX;

const AFTER: &str =
    "SELECT seq, epoch, kind, sender, client_msg_id, name, turn, at, edited_at, deleted_at, body FROM record
    WHERE conv_id = ?1 AND seq > ?2 AND (?3 >> kind) & 1 ORDER BY seq LIMIT ?4";
const BEFORE: &str =
    "SELECT seq, epoch, kind, sender, client_msg_id, name, turn, at, edited_at, deleted_at, body FROM record
    WHERE conv_id = ?1 AND seq < ?2 AND (?3 >> kind) & 1 ORDER BY seq DESC LIMIT ?4";

pub(super) fn range(read: &ReadTransaction<'_>, query: &RangeQuery) -> Result<Option<Page>, StoreError> {
    let Some(head_seq) = head_seq(read.connection, &query.conversation)? else { return Ok(None) };
    let (sql, from, descending) = match query.direction {
        Direction::After(seq) => (AFTER, seq.to_i64(), false),
        Direction::Before(seq) => (BEFORE, seq.to_i64(), true),
        Direction::Latest => (BEFORE, i64::MAX, true),
    };
    let mask = query.kinds.iter().fold(0, |mask, kind| mask | (1_i64 << (*kind as i64)));
    let mask = if query.kinds.is_empty() { ALL_KINDS } else { mask };
    let one_more = rows::limit(query.limit.saturating_add(1));
    let mut statement = read.connection.prepare_cached(sql).map_err(|error| store_error(&error))?;
    let mut found = statement
        .query(params![query.conversation.key.0, from, mask, one_more])
        .map_err(|error| store_error(&error))?;
    let (mut records, mut bytes, mut more) = (Vec::new(), 0_usize, false);
    while let Some(row) = found.next().map_err(|error| store_error(&error))? {
        if records.len() == query.limit || bytes >= PAGE_MAX_BYTES {
            more = true;
            break;
        }
        let record = record(row, &query.conversation.id)?;
        bytes += record.body.as_str().len();
        records.push(record);
    }
    if descending {
        records.reverse();
    }
    Ok(Some(Page { records, head_seq, log: read.shared.identity.log.clone(), more }))
}

/// The last seq; 0 if nothing was ever written; `None` for an unknown conversation.
pub(super) fn head_seq(connection: &Connection, conversation: &ConvRef) -> Result<Option<Seq>, StoreError> {
    let sql = "SELECT v.id, h.last_seq FROM conversation v LEFT JOIN conv_head h USING (conv_id) WHERE v.conv_id = ?1";
    rows::first(connection, sql, params![conversation.key.0], |row| {
        rows::same_id(row, 0, conversation)?;
        let last_seq: Option<i64> = rows::get(row, 1, "conv_head.last_seq")?;
        Ok(Seq::from_i64(last_seq.unwrap_or(0)))
    })
}

/// A record from the columns that the statements above select.
fn record(row: &Row<'_>, conversation: &ConversationId) -> Result<Record, StoreError> {
    let kind: i64 = rows::get(row, 2, "record.kind")?;
    let name: Option<std::sync::Arc<str>> = rows::get(row, 5, "record.name")?;
    let turn: Option<i64> = rows::get(row, 6, "record.turn")?;
    let edited_at: Option<i64> = rows::get(row, 8, "record.edited_at")?;
    let deleted_at: Option<i64> = rows::get(row, 9, "record.deleted_at")?;
    Ok(Record {
        seq: Seq::from_i64(rows::get(row, 0, "record.seq")?),
        kind: RecordKind::from_number(kind).ok_or_else(|| damaged("record.kind", format!("{kind} is not a kind")))?,
        conversation: conversation.clone(),
        sender: rows::parse(row, 3, "record.sender")?,
        name,
        client_msg_id: Some(rows::parse(row, 4, "record.client_msg_id")?),
        at: Timestamp(rows::get(row, 7, "record.at")?),
        epoch: Epoch::from_i64(rows::get(row, 1, "record.epoch")?),
        turn: turn.map(Seq::from_i64),
        edited_at: edited_at.map(Timestamp),
        deleted_at: deleted_at.map(Timestamp),
        body: Body::from_store(rows::text(row, 10, "record.body")?),
    })
}

pub(super) fn count_after(
    read: &ReadTransaction<'_>,
    conversation: &ConvRef,
    after: Seq,
    limit: usize,
) -> Result<usize, StoreError> {
    let sql = "SELECT count(*) FROM (SELECT 1 FROM record WHERE conv_id = ?1 AND seq > ?2 LIMIT ?3)";
    let parameters = params![conversation.key.0, after.to_i64(), rows::limit(limit)];
    let count: Option<i64> = rows::first(read.connection, sql, parameters, |row| rows::get(row, 0, "count"))?;
    Ok(count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0))
}

/// A member's conversations with what a list shows of each. The activity is the last record's time, else the creation's.
const SUMMARIES: &str = "SELECT v.conv_id, v.id, v.kind, v.title, v.agent, coalesce(h.last_seq, 0), coalesce(c.seq, 0),
    coalesce(nullif(h.last_at, 0), v.created_at) AS updated_at
    FROM member m JOIN conversation v USING (conv_id) LEFT JOIN conv_head h USING (conv_id)
    LEFT JOIN cursor c ON c.conv_id = m.conv_id AND c.sub = m.sub WHERE m.sub = ?1";

pub(super) fn summaries(
    read: &ReadTransaction<'_>,
    sub: &Subject,
    after: Option<&(Timestamp, ConversationId)>,
    limit: usize,
) -> Result<SummaryPage, StoreError> {
    let sql = format!(
        "{SUMMARIES} AND (?2 IS NULL OR updated_at < ?2 OR (updated_at = ?2 AND v.id > ?3))
         ORDER BY updated_at DESC, v.id LIMIT ?4"
    );
    let after_ms = after.map(|(at, _)| at.0);
    let after_id = after.map(|(_, id)| id.as_str());
    let parameters = params![sub.as_str(), after_ms, after_id, rows::limit(limit.saturating_add(1))];
    let mut found = rows::collect(read.connection, &sql, parameters, listed)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let summaries = found.into_iter().map(|listed| complete(read, sub, listed)).collect::<Result<_, _>>()?;
    Ok(SummaryPage { summaries, log: read.shared.identity.log.clone(), more })
}

pub(super) fn summary(
    read: &ReadTransaction<'_>,
    sub: &Subject,
    conversation: &ConvRef,
) -> Result<Option<Summary>, StoreError> {
    let sql = format!("{SUMMARIES} AND m.conv_id = ?2");
    let parameters = params![sub.as_str(), conversation.key.0];
    let found = rows::first(read.connection, &sql, parameters, |row| {
        rows::same_id(row, 1, conversation)?;
        listed(row)
    })?;
    found.map(|listed| complete(read, sub, listed)).transpose()
}

struct Listed {
    key: [u8; 16],
    summary: Summary,
}

fn listed(row: &Row<'_>) -> Result<Listed, StoreError> {
    Ok(Listed {
        key: rows::blob16(row, 0, "conversation.conv_id")?,
        summary: Summary {
            id: rows::parse(row, 1, "conversation.id")?,
            kind: conversation_kind(rows::get(row, 2, "conversation.kind")?)?,
            title: rows::get(row, 3, "conversation.title")?,
            agent: rows::parse_optional(row, 4, "conversation.agent")?,
            head_seq: Seq::from_i64(rows::get(row, 5, "conv_head.last_seq")?),
            cursor: Seq::from_i64(rows::get(row, 6, "cursor.seq")?),
            unread: 0,
            last_message: None,
            updated_at: Timestamp(rows::get(row, 7, "updated_at")?),
        },
    })
}

/// Counts what is unread and fetches the newest message.
fn complete(read: &ReadTransaction<'_>, sub: &Subject, listed: Listed) -> Result<Summary, StoreError> {
    let Listed { key, mut summary } = listed;
    let message = RecordKind::Message as i64;
    let unread = "SELECT count(*) FROM (SELECT 1 FROM record
                  WHERE conv_id = ?1 AND seq > ?2 AND kind = ?3 AND sender <> ?4 LIMIT ?5)";
    let parameters = params![key, summary.cursor.to_i64(), message, sub.as_str(), UNREAD_CAP];
    let count: Option<u32> = rows::first(read.connection, unread, parameters, |row| rows::get(row, 0, "count"))?;
    summary.unread = count.unwrap_or(0);
    let parameters = params![key, i64::MAX, 1_i64 << message, 1];
    summary.last_message = rows::first(read.connection, BEFORE, parameters, |row| record(row, &summary.id))?;
    Ok(summary)
}

pub(super) fn conversation_kind(number: i64) -> Result<ConversationKind, StoreError> {
    ConversationKind::from_number(number).ok_or_else(|| damaged("conversation.kind", format!("{number} is not a kind")))
}

pub(super) fn due(read: &ReadTransaction<'_>, query: &DueQuery) -> Result<Vec<DueRow>, StoreError> {
    let sql = "SELECT v.id, d.why, d.due_at, v.regions, v.home
               FROM conv_due d JOIN conversation v USING (conv_id) LEFT JOIN conv_head h USING (conv_id)
               LEFT JOIN node_lease n ON n.incarnation = h.owner
               WHERE d.due_at <= ?1 AND n.incarnation IS NULL AND (d.due_at, v.id) > (?2, ?3)
                 AND (v.regions = '' OR instr(?4 || v.regions || ?4, ?4 || ?5 || ?4) > 0)
               ORDER BY d.due_at, v.id LIMIT ?6";
    // No id is empty, and nothing was due in 1970.
    let (after_us, after_id) = query.after.as_ref().map_or((0, ""), |mark| (mark.at_us, mark.conversation.as_str()));
    let (separator, region) = (REGION_SEPARATOR.to_string(), query.region.as_str());
    let limit = rows::limit(query.limit);
    let parameters = params![read.now_ms, after_us / MICROS, after_id, separator, region, limit];
    rows::collect(read.connection, sql, parameters, |row| {
        let (why, at_ms): (i64, i64) = (rows::get(row, 1, "conv_due.why")?, rows::get(row, 2, "conv_due.due_at")?);
        Ok(DueRow {
            conversation: rows::parse(row, 0, "conversation.id")?,
            why: DueWhy::from_number(why).ok_or_else(|| damaged("conv_due.why", format!("{why} is not a reason")))?,
            at_us: at_ms.saturating_mul(MICROS),
            regions: regions(rows::text(row, 3, "conversation.regions")?)?,
            home: rows::parse(row, 4, "conversation.home")?,
        })
    })
}

pub(super) fn checkpoint(read: &ReadTransaction<'_>, conversation: &ConvRef) -> Result<Option<Checkpoint>, StoreError> {
    let sql = "SELECT version, at_seq, state FROM checkpoint WHERE conv_id = ?1";
    rows::first(read.connection, sql, params![conversation.key.0], |row| {
        let version: i64 = rows::get(row, 0, "checkpoint.version")?;
        Ok(Checkpoint {
            version: u64::try_from(version).map_err(|error| damaged("checkpoint.version", error))?,
            at_seq: Seq::from_i64(rows::get(row, 1, "checkpoint.at_seq")?),
            state: rows::get(row, 2, "checkpoint.state")?,
        })
    })
}
