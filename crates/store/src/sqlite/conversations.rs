//! Conversations, members, read cursors and checkpoints: what is written beside the log.

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, Epoch, Generation, Incarnation, Region, Seq, Subject};
use conch_core::time::Timestamp;
use rusqlite::{Connection, params};

use super::error::{damaged, store_error};
use super::queries::{conversation_kind, head_seq};
use super::readers::ReadTransaction;
use super::rows;
use super::writer::WriteTransaction;
use crate::{
    Checkpoint, ConversationInfo, ConversationPatch, Created, CursorOutcome, Head, Member, MembershipChange,
    NewConversation, StoreError,
};

/// Between the names in `conversation.regions`; no region's name holds it.
pub(super) const REGION_SEPARATOR: char = ',';

pub(super) fn create(write: &WriteTransaction<'_>, new: &NewConversation) -> Result<Created, StoreError> {
    if let Some(existing) = info(write.connection, &new.conversation)? {
        return Ok(Created::Existing(existing));
    }
    let key = new.conversation.key;
    let regions: Vec<&str> = new.regions.iter().map(Region::as_str).collect();
    execute(
        write.connection,
        "INSERT INTO conversation(conv_id, id, kind, regions, home, title, agent, settings, creator, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            key.0,
            new.conversation.id.as_str(),
            new.kind as i64,
            regions.join(&REGION_SEPARATOR.to_string()),
            new.regions.first().unwrap_or(&new.home).as_str(),
            new.title,
            new.agent.as_ref().map(|agent| agent.as_str()),
            settings_text(&new.settings)?,
            new.creator.as_str(),
            write.now_ms,
        ],
    )?;
    for member in &new.members {
        insert_member(write, &new.conversation, member)?;
    }
    let info = info(write.connection, &new.conversation)?;
    info.map(Created::New).ok_or_else(|| damaged("conversation.conv_id", "is not there after its insert"))
}

pub(super) fn info(connection: &Connection, conversation: &ConvRef) -> Result<Option<ConversationInfo>, StoreError> {
    let sql = "SELECT v.id, v.kind, v.regions, v.home, v.title, v.agent, v.settings, v.created_at,
               h.epoch, h.owner, n.node_name, h.gen, h.last_seq, h.reserved_to
               FROM conversation v LEFT JOIN conv_head h USING (conv_id) LEFT JOIN node_lease n ON n.incarnation = h.owner
               WHERE v.conv_id = ?1";
    rows::first(connection, sql, params![conversation.key.0], |row| {
        rows::same_id(row, 0, conversation)?;
        let head = match rows::get::<Option<i64>>(row, 8, "conv_head.epoch")? {
            Some(epoch) => Some(Head {
                epoch: Epoch::from_i64(epoch),
                owner: rows::incarnation(row, 9, "conv_head.owner")?,
                owner_node: rows::parse_optional(row, 10, "node_lease.node_name")?,
                generation: Generation::from_i64(rows::get(row, 11, "conv_head.gen")?),
                last_seq: Seq::from_i64(rows::get(row, 12, "conv_head.last_seq")?),
                reserved_to: Seq::from_i64(rows::get(row, 13, "conv_head.reserved_to")?),
            }),
            None => None,
        };
        let settings = rows::text(row, 6, "conversation.settings")?;
        Ok(ConversationInfo {
            id: conversation.id.clone(),
            kind: conversation_kind(rows::get(row, 1, "conversation.kind")?)?,
            regions: regions(rows::text(row, 2, "conversation.regions")?)?,
            home: rows::parse(row, 3, "conversation.home")?,
            title: rows::get(row, 4, "conversation.title")?,
            agent: rows::parse_optional(row, 5, "conversation.agent")?,
            settings: serde_json::from_str(settings).map_err(|error| damaged("conversation.settings", error))?,
            created_at: Timestamp(rows::get(row, 7, "conversation.created_at")?),
            head,
        })
    })
}

pub(super) fn patch(
    write: &WriteTransaction<'_>,
    conversation: &ConvRef,
    patch: &ConversationPatch,
) -> Result<Option<ConversationInfo>, StoreError> {
    if kind(write.connection, conversation)?.is_none() {
        return Ok(None);
    }
    let key = conversation.key.0;
    if let Some(title) = &patch.title {
        execute(write.connection, "UPDATE conversation SET title = ?2 WHERE conv_id = ?1", params![key, title])?;
    }
    if let Some(agent) = &patch.agent {
        let parameters = params![key, agent.as_str()];
        execute(write.connection, "UPDATE conversation SET agent = ?2 WHERE conv_id = ?1", parameters)?;
    }
    if let Some(settings) = &patch.settings {
        let parameters = params![key, settings_text(settings)?];
        execute(write.connection, "UPDATE conversation SET settings = ?2 WHERE conv_id = ?1", parameters)?;
    }
    info(write.connection, conversation)
}

pub(super) fn add_member(
    write: &WriteTransaction<'_>,
    conversation: &ConvRef,
    sub: &Subject,
) -> Result<MembershipChange, StoreError> {
    match kind(write.connection, conversation)? {
        None => Ok(MembershipChange::NoConversation),
        Some(_) if is_member(write.connection, conversation, sub)? => Ok(MembershipChange::Unchanged),
        Some(ConversationKind::Direct) => Ok(MembershipChange::Direct),
        Some(_) => {
            insert_member(write, conversation, sub)?;
            Ok(MembershipChange::Changed)
        }
    }
}

pub(super) fn remove_member(
    write: &WriteTransaction<'_>,
    conversation: &ConvRef,
    sub: &Subject,
) -> Result<MembershipChange, StoreError> {
    match kind(write.connection, conversation)? {
        None => Ok(MembershipChange::NoConversation),
        Some(_) if !is_member(write.connection, conversation, sub)? => Ok(MembershipChange::Unchanged),
        Some(ConversationKind::Direct) => Ok(MembershipChange::Direct),
        Some(_) => {
            let sql = "DELETE FROM member WHERE conv_id = ?1 AND sub = ?2";
            execute(write.connection, sql, params![conversation.key.0, sub.as_str()])?;
            Ok(MembershipChange::Changed)
        }
    }
}

fn insert_member(write: &WriteTransaction<'_>, conversation: &ConvRef, sub: &Subject) -> Result<(), StoreError> {
    let sql = "INSERT INTO member(conv_id, sub, since) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    execute(write.connection, sql, params![conversation.key.0, sub.as_str(), write.now_ms]).map(drop)
}

pub(super) fn is_member(connection: &Connection, conversation: &ConvRef, sub: &Subject) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM member WHERE conv_id = ?1 AND sub = ?2";
    Ok(rows::first(connection, sql, params![conversation.key.0, sub.as_str()], |_| Ok(()))?.is_some())
}

pub(super) fn members(
    read: &ReadTransaction<'_>,
    conversation: &ConvRef,
    after: Option<&Subject>,
    limit: usize,
) -> Result<Option<(Vec<Member>, bool)>, StoreError> {
    if kind(read.connection, conversation)?.is_none() {
        return Ok(None);
    }
    // No subject is empty, so that the empty one stands before them all.
    let sql = "SELECT sub, since FROM member WHERE conv_id = ?1 AND sub > ?2 ORDER BY sub LIMIT ?3";
    let after = after.map_or("", |sub| sub.as_str());
    let parameters = params![conversation.key.0, after, rows::limit(limit.saturating_add(1))];
    let mut members = rows::collect(read.connection, sql, parameters, |row| {
        Ok(Member { sub: rows::parse(row, 0, "member.sub")?, since: Timestamp(rows::get(row, 1, "member.since")?) })
    })?;
    let more = members.len() > limit;
    members.truncate(limit);
    Ok(Some((members, more)))
}

pub(super) fn move_cursor(
    write: &WriteTransaction<'_>,
    conversation: &ConvRef,
    sub: &Subject,
    to: Seq,
) -> Result<CursorOutcome, StoreError> {
    let Some(head) = head_seq(write.connection, conversation)? else { return Ok(CursorOutcome::NoConversation) };
    if to > head {
        return Ok(CursorOutcome::BeyondHead(head));
    }
    let key = conversation.key.0;
    let sql = "SELECT seq FROM cursor WHERE conv_id = ?1 AND sub = ?2";
    let stands: Option<i64> =
        rows::first(write.connection, sql, params![key, sub.as_str()], |row| rows::get(row, 0, "cursor.seq"))?;
    match stands.map(Seq::from_i64) {
        // Nothing to write, so nothing to sync.
        Some(stands) if stands >= to => Ok(CursorOutcome::At(stands)),
        _ => {
            let sql = "INSERT INTO cursor(conv_id, sub, seq) VALUES (?1, ?2, ?3)
                       ON CONFLICT (conv_id, sub) DO UPDATE SET seq = max(seq, excluded.seq)";
            execute(write.connection, sql, params![key, sub.as_str(), to.to_i64()])?;
            Ok(CursorOutcome::At(to))
        }
    }
}

pub(super) fn save_checkpoint(
    write: &WriteTransaction<'_>,
    conversation: &ConvRef,
    epoch: Epoch,
    me: Incarnation,
    checkpoint: &Checkpoint,
) -> Result<bool, StoreError> {
    let Ok(version) = i64::try_from(checkpoint.version) else { return Ok(false) };
    let sql = "INSERT INTO checkpoint(conv_id, epoch, version, at_seq, state)
               SELECT conv_id, epoch, ?5, ?6, ?7 FROM conv_head WHERE conv_id = ?1 AND epoch = ?2 AND owner = ?3 AND gen = ?4
               ON CONFLICT (conv_id) DO UPDATE
               SET epoch = excluded.epoch, version = excluded.version, at_seq = excluded.at_seq, state = excluded.state
               WHERE (excluded.epoch, excluded.version) > (checkpoint.epoch, checkpoint.version)";
    let parameters = params![
        conversation.key.0,
        epoch.to_i64(),
        rows::incarnation_blob(me),
        write.generation.to_i64(),
        version,
        checkpoint.at_seq.to_i64(),
        checkpoint.state,
    ];
    Ok(execute(write.connection, sql, parameters)? > 0)
}

/// The kind; `None`: there is no such conversation.
fn kind(connection: &Connection, conversation: &ConvRef) -> Result<Option<ConversationKind>, StoreError> {
    let sql = "SELECT id, kind FROM conversation WHERE conv_id = ?1";
    rows::first(connection, sql, params![conversation.key.0], |row| {
        rows::same_id(row, 0, conversation)?;
        conversation_kind(rows::get(row, 1, "conversation.kind")?)
    })
}

pub(super) fn regions(text: &str) -> Result<Vec<Region>, StoreError> {
    let names = text.split(REGION_SEPARATOR).filter(|name| !name.is_empty());
    names.map(|name| name.parse().map_err(|error| damaged("conversation.regions", error))).collect()
}

fn settings_text(settings: &Settings) -> Result<String, StoreError> {
    serde_json::to_string(settings).map_err(|error| damaged("conversation.settings", error))
}

fn execute(connection: &Connection, sql: &str, parameters: impl rusqlite::Params) -> Result<usize, StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(parameters))
        .map_err(|error| store_error(&error))
}
