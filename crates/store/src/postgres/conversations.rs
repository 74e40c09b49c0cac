//! Conversations, members, read cursors and checkpoints: what is written beside the log. Each write is one statement.

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ConvRef, Epoch, Generation, Incarnation, Region, Seq, Subject};
use conch_core::time::Timestamp;

use super::error::CallError;
use super::rows::{self, Id, damaged};
use super::session::Session;
use crate::{
    Checkpoint, ConversationInfo, ConversationPatch, Created, CursorOutcome, Head, Member, MembershipChange,
    NewConversation, StoreError,
};

pub(super) async fn create(session: &Session, new: &NewConversation) -> Result<Created, CallError> {
    if let Some(existing) = info(session, &new.conversation).await? {
        return Ok(Created::Existing(existing));
    }
    // Of two that create at once, the second waits for the first one's commit and then inserts nothing.
    let sql = "WITH v AS (INSERT INTO conversation(conv_id, id, kind, regions, home, title, agent, settings, creator, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
                 ON CONFLICT (conv_id) DO NOTHING RETURNING conv_id, created_at),
               m AS (INSERT INTO member(conv_id, sub, since) SELECT v.conv_id, s.sub, v.created_at
                 FROM v, unnest($10::text[]) s(sub) ON CONFLICT DO NOTHING)
               SELECT 1 FROM v";
    let regions: Vec<&str> = new.regions.iter().map(Region::as_str).collect();
    let members: Vec<&str> = new.members.iter().map(Subject::as_str).collect();
    let inserted = session
        .first(
            sql,
            &[
                &Id::from(new.conversation.key),
                &new.conversation.id.as_str(),
                &(new.kind as i16),
                &regions,
                &new.regions.first().unwrap_or(&new.home).as_str(),
                &new.title,
                &new.agent.as_ref().map(|agent| agent.as_str()),
                &settings_text(&new.settings)?,
                &new.creator.as_str(),
                &members,
            ],
        )
        .await?;
    let info = info(session, &new.conversation).await?;
    let info = info.ok_or_else(|| damaged("conversation.conv_id", "is not there after its insert"))?;
    Ok(if inserted.is_some() { Created::New(info) } else { Created::Existing(info) })
}

pub(super) async fn info(session: &Session, conversation: &ConvRef) -> Result<Option<ConversationInfo>, CallError> {
    let sql = "SELECT v.id, v.kind, v.regions, v.home, v.title, v.agent, v.settings, v.created_at,
               h.epoch, h.owner, n.node_name, h.gen, h.last_seq, h.reserved_to
               FROM conversation v LEFT JOIN conv_head h USING (conv_id) LEFT JOIN node_lease n ON n.incarnation = h.owner
               WHERE v.conv_id = $1";
    let Some(row) = session.first(sql, &[&Id::from(conversation.key)]).await? else { return Ok(None) };
    rows::same_id(&row, 0, conversation)?;
    let head = match rows::get::<Option<i64>>(&row, 8, "conv_head.epoch")? {
        Some(epoch) => Some(Head {
            epoch: Epoch::from_i64(epoch),
            owner: rows::incarnation(&row, 9, "conv_head.owner")?,
            owner_node: rows::parse_optional(&row, 10, "node_lease.node_name")?,
            generation: Generation::from_i64(rows::get(&row, 11, "conv_head.gen")?),
            last_seq: Seq::from_i64(rows::get(&row, 12, "conv_head.last_seq")?),
            reserved_to: Seq::from_i64(rows::get(&row, 13, "conv_head.reserved_to")?),
        }),
        None => None,
    };
    let settings: &str = rows::get(&row, 6, "conversation.settings")?;
    Ok(Some(ConversationInfo {
        id: conversation.id.clone(),
        kind: conversation_kind(rows::get(&row, 1, "conversation.kind")?)?,
        regions: regions(&rows::get::<Vec<&str>>(&row, 2, "conversation.regions")?)?,
        home: rows::parse(&row, 3, "conversation.home")?,
        title: rows::get(&row, 4, "conversation.title")?,
        agent: rows::parse_optional(&row, 5, "conversation.agent")?,
        settings: serde_json::from_str(settings).map_err(|error| damaged("conversation.settings", error))?,
        created_at: Timestamp(rows::get(&row, 7, "conversation.created_at")?),
        head,
    }))
}

pub(super) async fn patch(
    session: &Session,
    conversation: &ConvRef,
    patch: &ConversationPatch,
) -> Result<Option<ConversationInfo>, CallError> {
    let sql = "UPDATE conversation SET title = CASE WHEN $3 THEN $4 ELSE title END, agent = coalesce($5, agent),
               settings = coalesce($6, settings) WHERE conv_id = $1 AND id = $2";
    let settings = patch.settings.as_ref().map(settings_text).transpose()?;
    let agent = patch.agent.as_ref().map(|agent| agent.as_str());
    let title = patch.title.clone().flatten();
    let (key, id) = (Id::from(conversation.key), conversation.id.as_str());
    session.execute(sql, &[&key, &id, &patch.title.is_some(), &title, &agent, &settings]).await?;
    info(session, conversation).await
}

pub(super) async fn add_member(
    session: &Session,
    conversation: &ConvRef,
    sub: &Subject,
) -> Result<MembershipChange, CallError> {
    let sql = "WITH c AS (INSERT INTO member(conv_id, sub, since)
                 SELECT v.conv_id, $2, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM conversation v
                 WHERE v.conv_id = $1 AND v.id = $3 AND v.kind <> $4 ON CONFLICT DO NOTHING RETURNING 1)
               SELECT v.id, v.kind, EXISTS (SELECT 1 FROM c),
                 EXISTS (SELECT 1 FROM member m WHERE m.conv_id = v.conv_id AND m.sub = $2)
               FROM conversation v WHERE v.conv_id = $1";
    change_member(session, sql, conversation, sub, MemberIs::In).await
}

pub(super) async fn remove_member(
    session: &Session,
    conversation: &ConvRef,
    sub: &Subject,
) -> Result<MembershipChange, CallError> {
    let sql = "WITH c AS (DELETE FROM member m USING conversation v WHERE m.conv_id = $1 AND m.sub = $2
                 AND v.conv_id = m.conv_id AND v.id = $3 AND v.kind <> $4 RETURNING 1)
               SELECT v.id, v.kind, EXISTS (SELECT 1 FROM c),
                 EXISTS (SELECT 1 FROM member m WHERE m.conv_id = v.conv_id AND m.sub = $2)
               FROM conversation v WHERE v.conv_id = $1";
    change_member(session, sql, conversation, sub, MemberIs::Out).await
}

/// What a change of membership asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberIs {
    In,
    Out,
}

/// Reads what the statement did, and what was there before it.
async fn change_member(
    session: &Session,
    sql: &'static str,
    conversation: &ConvRef,
    sub: &Subject,
    wanted: MemberIs,
) -> Result<MembershipChange, CallError> {
    let direct = ConversationKind::Direct as i16;
    let parameters =
        [&Id::from(conversation.key) as _, &sub.as_str() as _, &conversation.id.as_str() as _, &direct as _];
    let Some(row) = session.first(sql, &parameters).await? else { return Ok(MembershipChange::NoConversation) };
    rows::same_id(&row, 0, conversation)?;
    let kind: i16 = rows::get(&row, 1, "conversation.kind")?;
    let (changed, was_in): (bool, bool) = (rows::get(&row, 2, "changed")?, rows::get(&row, 3, "member.sub")?);
    let as_wanted = was_in == (wanted == MemberIs::In);
    Ok(match (changed, as_wanted) {
        (true, _) => MembershipChange::Changed,
        (false, false) if kind == direct => MembershipChange::Direct,
        // As it was wanted before, or by somebody else meanwhile.
        (false, _) => MembershipChange::Unchanged,
    })
}

pub(super) async fn is_member(session: &Session, conversation: &ConvRef, sub: &Subject) -> Result<bool, CallError> {
    let sql = "SELECT 1 FROM member WHERE conv_id = $1 AND sub = $2";
    Ok(session.first(sql, &[&Id::from(conversation.key), &sub.as_str()]).await?.is_some())
}

pub(super) async fn no_members(
    session: &Session,
    conversation: &ConvRef,
    subs: &[Subject],
) -> Result<Vec<Subject>, CallError> {
    let sql = "SELECT a.at FROM unnest($2::text[]) WITH ORDINALITY AS a (sub, at)
               WHERE NOT EXISTS (SELECT 1 FROM member m WHERE m.conv_id = $1 AND m.sub = a.sub) ORDER BY a.at";
    let asked: Vec<&str> = subs.iter().map(Subject::as_str).collect();
    let found = session.query(sql, &[&Id::from(conversation.key), &asked]).await?;
    let mut missing = Vec::with_capacity(found.len());
    for row in found {
        let at = rows::get::<i64>(&row, 0, "ordinality")?;
        missing.extend(usize::try_from(at - 1).ok().and_then(|at| subs.get(at)).cloned());
    }
    Ok(missing)
}

pub(super) async fn members(
    session: &Session,
    conversation: &ConvRef,
    after: Option<&Subject>,
    limit: usize,
) -> Result<Option<(Vec<Member>, bool)>, CallError> {
    // No subject is empty, so that the empty one stands before them all. A conversation without members is one row.
    let sql = "SELECT v.id, m.sub, m.since FROM conversation v LEFT JOIN LATERAL
                 (SELECT sub, since FROM member WHERE conv_id = v.conv_id AND sub > $2 ORDER BY sub LIMIT $3) m ON true
               WHERE v.conv_id = $1 ORDER BY m.sub";
    let after = after.map_or("", |sub| sub.as_str());
    let one_more = rows::limit(limit.saturating_add(1));
    let found = session.query(sql, &[&Id::from(conversation.key), &after, &one_more]).await?;
    let Some(first) = found.first() else { return Ok(None) };
    rows::same_id(first, 0, conversation)?;
    let mut members = Vec::with_capacity(found.len());
    for row in &found {
        if let Some(sub) = rows::parse_optional(row, 1, "member.sub")? {
            members.push(Member { sub, since: Timestamp(rows::get(row, 2, "member.since")?) });
        }
    }
    let more = members.len() > limit;
    members.truncate(limit);
    Ok(Some((members, more)))
}

pub(super) async fn move_cursor(
    session: &Session,
    conversation: &ConvRef,
    sub: &Subject,
    to: Seq,
) -> Result<CursorOutcome, CallError> {
    let sql = "WITH v AS (SELECT v.conv_id, v.id, coalesce(h.last_seq, 0) AS head
                 FROM conversation v LEFT JOIN conv_head h USING (conv_id) WHERE v.conv_id = $1),
               c AS (INSERT INTO cursor(conv_id, sub, seq) SELECT v.conv_id, $2, $3 FROM v WHERE v.id = $4 AND $3 <= v.head
                 ON CONFLICT (conv_id, sub) DO UPDATE SET seq = EXCLUDED.seq WHERE cursor.seq < EXCLUDED.seq)
               SELECT v.id, v.head, (SELECT seq FROM cursor c WHERE c.conv_id = v.conv_id AND c.sub = $2) FROM v";
    let parameters =
        [&Id::from(conversation.key) as _, &sub.as_str() as _, &to.to_i64() as _, &conversation.id.as_str() as _];
    let Some(row) = session.first(sql, &parameters).await? else { return Ok(CursorOutcome::NoConversation) };
    rows::same_id(&row, 0, conversation)?;
    let head = Seq::from_i64(rows::get(&row, 1, "conv_head.last_seq")?);
    if to > head {
        return Ok(CursorOutcome::BeyondHead(head));
    }
    // Where it stood before; the statement moved it forward, or found it there already.
    let stood: Option<i64> = rows::get(&row, 2, "cursor.seq")?;
    Ok(CursorOutcome::At(stood.map_or(to, |stood| to.max(Seq::from_i64(stood)))))
}

pub(super) async fn save_checkpoint(
    session: &Session,
    conversation: &ConvRef,
    epoch: Epoch,
    me: Incarnation,
    checkpoint: &Checkpoint,
) -> Result<bool, CallError> {
    let Ok(version) = i64::try_from(checkpoint.version) else { return Ok(false) };
    let sql = "WITH h AS MATERIALIZED (SELECT conv_id, epoch FROM conv_head WHERE conv_id = $1 AND epoch = $2 AND owner = $3
                 AND gen = (SELECT store_gen()) FOR NO KEY UPDATE)
               INSERT INTO checkpoint AS c (conv_id, epoch, version, at_seq, state) SELECT conv_id, epoch, $4, $5, $6 FROM h
               ON CONFLICT (conv_id) DO UPDATE SET epoch = EXCLUDED.epoch, version = EXCLUDED.version,
                 at_seq = EXCLUDED.at_seq, state = EXCLUDED.state
               WHERE (EXCLUDED.epoch, EXCLUDED.version) > (c.epoch, c.version)";
    let (key, me) = (Id::from(conversation.key), Id::from(me));
    let at_seq = checkpoint.at_seq.to_i64();
    let saved = session.execute(sql, &[&key, &epoch.to_i64(), &me, &version, &at_seq, &checkpoint.state]).await?;
    Ok(saved > 0)
}

pub(super) async fn checkpoint(session: &Session, conversation: &ConvRef) -> Result<Option<Checkpoint>, CallError> {
    let sql = "SELECT version, at_seq, state FROM checkpoint WHERE conv_id = $1";
    let Some(row) = session.first(sql, &[&Id::from(conversation.key)]).await? else { return Ok(None) };
    Ok(Some(Checkpoint {
        version: rows::count(&row, 0, "checkpoint.version")?,
        at_seq: Seq::from_i64(rows::get(&row, 1, "checkpoint.at_seq")?),
        state: rows::get(&row, 2, "checkpoint.state")?,
    }))
}

pub(super) fn conversation_kind(number: i16) -> Result<ConversationKind, StoreError> {
    ConversationKind::from_number(number.into())
        .ok_or_else(|| damaged("conversation.kind", format!("{number} is not a kind")))
}

pub(super) fn regions(names: &[&str]) -> Result<Vec<Region>, StoreError> {
    names.iter().map(|name| name.parse().map_err(|error| damaged("conversation.regions", error))).collect()
}

fn settings_text(settings: &Settings) -> Result<String, StoreError> {
    serde_json::to_string(settings).map_err(|error| damaged("conversation.settings", error))
}
