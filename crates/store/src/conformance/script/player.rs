//! Plays a script against one store, as the nodes of a cluster would.

use std::collections::BTreeMap;
use std::time::Duration;

use conch_core::conversation::{ConversationKind, Settings};
use conch_core::ids::{ClientMsgId, ConvRef, ConversationId, Epoch, Incarnation, Seq, Subject};
use conch_core::record::Draft;

use super::{Answer, CONVERSATIONS, KEYS, KINDS, Op, Part, SUBJECTS, View, class};
use crate::conformance::world::{MARGIN, Reign, TTL, claim, draft, id, new_channel, registration};
use crate::conformance::{Epochs, Fixture, Steals};
use crate::{
    AppendOutcome, Batch, Checkpoint, ClaimOutcome, ConversationPatch, Direction, DueChange, DueQuery, DueRow, DueWhy,
    NewConversation, RangeQuery, StoreError,
};

/// A row of the list of due work.
#[derive(Debug)]
#[expect(dead_code, reason = "it is shown in answers, which are compared as texts")]
struct Listed {
    conversation: ConversationId,
    why: DueWhy,
}

/// Plays a script against one store.
pub struct Player<'a> {
    fixture: &'a dyn Fixture,
    incarnations: u128,
    nodes: BTreeMap<u64, Incarnation>,
    /// What a node believes to own; a dead incarnation's belief stays until the node claims again.
    reigns: BTreeMap<(u64, u64), Reign>,
    /// What it believed before that.
    past_reigns: BTreeMap<(u64, u64), Reign>,
    steals: Steals,
    /// Of each conversation, the epochs of its reigns as they came.
    epochs: Vec<(u64, Epoch)>,
}

impl<'a> Player<'a> {
    /// A player at the start of a script.
    #[must_use]
    pub fn new(fixture: &'a dyn Fixture, steals: Steals) -> Self {
        Self {
            fixture,
            incarnations: 0,
            nodes: BTreeMap::new(),
            reigns: BTreeMap::new(),
            past_reigns: BTreeMap::new(),
            steals,
            epochs: Vec::new(),
        }
    }

    /// The answer with each epoch's rank in its place. Where epochs only rise, no two conversations share one.
    fn ranked(&self, answer: Answer) -> Answer {
        if self.fixture.epochs() == Epochs::Consecutive {
            return answer;
        }
        let rank = |epoch: u64| {
            let (conversation, _) = self.epochs.iter().find(|(_, known)| known.0 == epoch)?;
            let earlier = self.epochs.iter().filter(|(number, known)| number == conversation && known.0 <= epoch);
            Some(earlier.count())
        };
        let mut parts = answer.0.split("epoch: ");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            text.push_str("epoch: ");
            let (some, number) = match part.strip_prefix("Some(") {
                Some(number) => ("Some(", number),
                None => ("", part),
            };
            let digits = number.len() - number.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match number[..digits].parse().ok().and_then(rank) {
                Some(rank) => text.push_str(&format!("{some}{rank}{}", &number[digits..])),
                None => text.push_str(part),
            }
        }
        Answer(text)
    }

    /// Plays one step.
    pub async fn play(&mut self, op: &Op) -> Answer {
        let answer = self.play_as_is(op).await;
        self.ranked(answer)
    }

    fn remember(&mut self, node: u64, conversation: u64, reign: Reign) {
        if !self.epochs.contains(&(conversation, reign.epoch)) {
            self.epochs.push((conversation, reign.epoch));
        }
        if let Some(past) = self.reigns.insert((node, conversation), reign) {
            self.past_reigns.insert((node, conversation), past);
        }
    }

    async fn play_as_is(&mut self, op: &Op) -> Answer {
        match op {
            Op::Register { .. }
            | Op::Renew { .. }
            | Op::Drain { .. }
            | Op::Leave { .. }
            | Op::Expel { .. }
            | Op::DeclareExpired { .. }
            | Op::MoveClock { .. } => self.play_lease(op).await,
            Op::Claim { .. } | Op::Release { .. } | Op::ReleaseWedged { .. } | Op::HandOff { .. } => {
                self.play_ownership(op).await
            }
            Op::Append { node, view, parts } => self.append(*node, *view, parts).await,
            Op::Checkpoint { node, conversation, version } => self.checkpoint(*node, *conversation, *version).await,
            _ => self.play_rest(op).await,
        }
    }

    async fn play_lease(&mut self, op: &Op) -> Answer {
        let store = self.fixture.store();
        match *op {
            Op::Register { node } => {
                self.incarnations += 1;
                let me = Incarnation(self.incarnations);
                self.nodes.insert(node, me);
                Answer::of(store.register(&registration(me.0), TTL).await)
            }
            Op::MoveClock { ms } => {
                self.fixture.move_clock(ms).await;
                Answer::of(Ok(()))
            }
            Op::Renew { node } => match self.nodes.get(&node) {
                Some(me) => Answer::of(store.renew(*me, TTL).await),
                None => Answer::not_played(),
            },
            Op::Drain { node } => match self.nodes.get(&node) {
                Some(me) => Answer::of(store.set_draining(*me).await),
                None => Answer::not_played(),
            },
            Op::Leave { node } => match self.nodes.get(&node) {
                Some(me) => Answer::of(store.deregister(*me).await),
                None => Answer::not_played(),
            },
            Op::Expel { node } => match self.nodes.get(&node) {
                Some(me) => Answer::of(store.expel(*me).await),
                None => Answer::not_played(),
            },
            Op::DeclareExpired { node, beats_ago } => {
                let Some(dead) = self.nodes.get(&node) else { return Answer::not_played() };
                let beat = match store.nodes().await {
                    Ok(rows) => rows.iter().find(|row| row.registration.incarnation == *dead).map_or(0, |row| row.beat),
                    Err(error) => return Answer::of(Err::<(), _>(error)),
                };
                Answer::of(store.declare_expired(*dead, beat.saturating_sub(beats_ago), TTL, MARGIN).await)
            }
            _ => Answer::not_played(),
        }
    }

    async fn play_ownership(&mut self, op: &Op) -> Answer {
        let store = self.fixture.store();
        match *op {
            Op::Claim { node, conversation, view } => self.claim(node, conversation, view).await,
            Op::Release { node, conversation, unused } => match self.reigns.get(&(node, conversation)) {
                Some(reign) => Answer::of(store.release(&reign.held(), Seq(reign.next().0 + unused)).await),
                None => Answer::not_played(),
            },
            Op::ReleaseWedged { node, conversation } => match self.reigns.get(&(node, conversation)) {
                Some(reign) => Answer::of(store.release_wedged(&reign.held(), 7).await),
                None => Answer::not_played(),
            },
            Op::HandOff { node, conversation, to } => {
                let (Some(reign), Some(peer)) = (self.reigns.get(&(node, conversation)), self.nodes.get(&to)) else {
                    return Answer::not_played();
                };
                let answer = store.hand_off(&reign.held(), *peer, reign.next(), MARGIN).await;
                if let Ok(Some(armed)) = answer {
                    let reign = Reign::new(&reign.conversation, *peer, armed);
                    self.remember(to, conversation, reign);
                }
                Answer::of(answer)
            }
            _ => Answer::not_played(),
        }
    }

    async fn claim(&mut self, node: u64, number: u64, view: View) -> Answer {
        let store = self.fixture.store();
        let Some(me) = self.nodes.get(&node).copied() else { return Answer::not_played() };
        let conversation = conversation(number);
        let seen = match (view, self.reigns.get(&(node, number))) {
            (View::Remembered, Some(reign)) => (Some(reign.epoch), Some(reign.me)),
            _ => match store.resolve(&conversation).await {
                Ok(Some(seen)) => (seen.epoch, seen.owner.map(|owner| owner.incarnation)),
                Ok(None) => return Answer("nothing to claim".to_owned()),
                Err(error) => return Answer::of(Err::<(), _>(error)),
            },
        };
        if self.steals == Steals::Refused && self.is_anothers(seen.1, me).await {
            return Answer::not_played();
        }
        let mut request = claim(&conversation, me, seen.0, seen.1);
        request.gap = 5;
        let answer = store.claim(&request).await;
        if let Ok(ClaimOutcome::Won(armed)) = answer {
            self.remember(node, number, Reign::new(&conversation, me, armed));
        }
        Answer::of(answer)
    }

    /// Is this owner another one, and registered?
    async fn is_anothers(&self, owner: Option<Incarnation>, me: Incarnation) -> bool {
        let Some(owner) = owner.filter(|owner| *owner != me) else { return false };
        let rows = self.fixture.store().nodes().await.unwrap_or_default();
        rows.iter().any(|row| row.registration.incarnation == owner)
    }

    async fn append(&mut self, node: u64, view: View, parts: &[Part]) -> Answer {
        let mut batches: Vec<(u64, Batch)> = Vec::new();
        let mut writer = None;
        for part in parts {
            let reigns = if view == View::Present { &self.reigns } else { &self.past_reigns };
            let Some(reign) = reigns.get(&(node, part.conversation)) else { continue };
            // One call is one incarnation's, with at most one batch a conversation.
            let listed = batches.iter().any(|(number, _)| *number == part.conversation);
            if listed || writer.is_some_and(|writer| writer != reign.me) {
                continue;
            }
            writer = Some(reign.me);
            batches.push((part.conversation, part.batch(reign)));
        }
        let Some(writer) = writer else { return Answer::not_played() };
        let answer =
            self.fixture.store().append(writer, batches.iter().map(|(_, batch)| batch.clone()).collect()).await;
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return Answer::of(Err::<(), _>(error)),
        };
        let mut texts = Vec::new();
        for ((number, batch), outcome) in batches.iter().zip(&outcomes) {
            let landed = matches!(outcome, AppendOutcome::Landed { .. }) && view == View::Present;
            if let Some(reign) = self.reigns.get(&(node, *number)).filter(|_| landed) {
                self.remember(node, *number, Reign { prev: batch.hi, ..reign.clone() });
            }
            texts.push(match outcome {
                AppendOutcome::Failed(error) => format!("failed: {}", class(error)),
                outcome => format!("{outcome:?}"),
            });
        }
        Answer(texts.join(", "))
    }

    async fn checkpoint(&self, node: u64, number: u64, version: u64) -> Answer {
        let store = self.fixture.store();
        let conversation = conversation(number);
        let mut saved = None;
        if let Some(reign) = self.reigns.get(&(node, number)) {
            let checkpoint = Checkpoint { version, at_seq: reign.prev, state: vec![u8::try_from(node).unwrap_or(0)] };
            saved =
                Some(store.save_checkpoint(&conversation, reign.epoch, reign.me, &checkpoint).await.is_ok_and(|s| s));
        }
        Answer::of(store.checkpoint(&conversation).await.map(|newest| (saved, newest)))
    }

    async fn play_rest(&self, op: &Op) -> Answer {
        let store = self.fixture.store();
        match *op {
            Op::Create { conversation, kind } => {
                Answer::of(store.create_conversation(&new_conversation(conversation, kind)).await)
            }
            Op::Patch { conversation: number, title } => {
                let title =
                    [None, Some(None), Some(Some("Title".to_owned()))].into_iter().nth(title as usize).flatten();
                let patch = ConversationPatch { title, agent: Some(id("helper")), settings: None };
                Answer::of(store.patch_conversation(&conversation(number), &patch).await)
            }
            Op::Range { conversation, direction, back, limit, kinds } => {
                self.range(conversation, direction, back, limit, kinds).await
            }
            Op::CountAfter { conversation: number, back, limit } => {
                let after = self.behind_head(number, back).await;
                Answer::of(store.count_after(&conversation(number), after, limit).await)
            }
            Op::Find { conversation: number, sender, key: number_of_key } => {
                Answer::of(store.find(&conversation(number), &subject(sender), &key(number_of_key)).await)
            }
            Op::Join { conversation: number, sub } => {
                Answer::of(store.add_member(&conversation(number), &subject(sub)).await)
            }
            Op::Part { conversation: number, sub } => {
                Answer::of(store.remove_member(&conversation(number), &subject(sub)).await)
            }
            Op::Members { conversation: number, after, limit } => {
                let after = (after > 0).then(|| subject(after - 1));
                Answer::of(store.members(&conversation(number), after.as_ref(), limit).await)
            }
            Op::Cursor { conversation: number, sub, back } => {
                // One beyond the head, too.
                let to = Seq(self.behind_head(number, back).await.0 + u64::from(back == 0));
                Answer::of(store.move_cursor(&conversation(number), &subject(sub), to).await)
            }
            Op::Summaries { sub, limit } => self.summaries(sub, limit).await,
            Op::Due { limit } => Answer::of(self.due(limit).await),
            _ => Answer::not_played(),
        }
    }

    /// What is due, page by page; without its times, for stores keep them differently.
    async fn due(&self, limit: usize) -> Result<Vec<Listed>, StoreError> {
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let query = DueQuery { region: id("north"), after, limit };
            let page = self.fixture.store().due(&query).await?;
            after = page.last().map(DueRow::mark);
            if after.is_none() {
                return Ok(listed);
            }
            listed.extend(page.into_iter().map(|row| Listed { conversation: row.conversation, why: row.why }));
        }
    }

    async fn range(&self, number: u64, direction: u64, back: u64, limit: usize, kinds: u64) -> Answer {
        let position = self.behind_head(number, back).await;
        let direction = match direction {
            0 => Direction::After(position),
            1 => Direction::Before(position),
            _ => Direction::Latest,
        };
        let kinds = if kinds == 3 { Vec::new() } else { KINDS[kinds as usize..].to_vec() };
        let query = RangeQuery { conversation: conversation(number), direction, limit, kinds };
        let page = self.fixture.store().range(&query).await;
        Answer::of(page.map(|page| page.map(|page| (page.records, page.head_seq, page.more))))
    }

    /// Both pages of a list.
    async fn summaries(&self, sub: u64, limit: usize) -> Answer {
        let (store, sub) = (self.fixture.store(), subject(sub));
        let first = match store.summaries(&sub, None, limit).await {
            Ok(page) => page,
            Err(error) => return Answer::of(Err::<(), _>(error)),
        };
        let after = first.summaries.last().map(|summary| (summary.updated_at, summary.id.clone()));
        let second = store.summaries(&sub, after.as_ref(), limit).await;
        Answer::of(second.map(|second| (first.summaries, first.more, second.summaries, second.more)))
    }

    /// A position so far behind a conversation's head; 0 where there is none.
    async fn behind_head(&self, number: u64, back: u64) -> Seq {
        let info = self.fixture.store().conversation(&conversation(number)).await;
        let head = info.ok().flatten().and_then(|info| info.head);
        Seq(head.map_or(0, |head| head.last_seq.0.saturating_sub(back)))
    }

    /// All that the store shows, to be compared at the end.
    pub async fn everything(&self) -> Vec<Answer> {
        let store = self.fixture.store();
        let nodes = store.nodes().await.map(|mut rows| {
            rows.sort_by_key(|row| row.registration.incarnation);
            rows
        });
        let mut all = vec![Answer::of(nodes), Answer::of(self.due(1_000).await)];
        for number in 0..CONVERSATIONS {
            let conversation = conversation(number);
            all.push(Answer::of(store.resolve(&conversation).await));
            all.push(Answer::of(store.conversation(&conversation).await));
            all.push(self.range(number, 2, 0, 1_000, 3).await);
            all.push(Answer::of(store.members(&conversation, None, 1_000).await));
            all.push(Answer::of(store.checkpoint(&conversation).await));
        }
        for sub in 0..SUBJECTS.len() as u64 {
            all.push(self.summaries(sub, 1_000).await);
        }
        all.into_iter().map(|answer| self.ranked(answer)).collect()
    }
}

impl Part {
    /// The batch that the owner would send.
    fn batch(&self, reign: &Reign) -> Batch {
        let mut batch = reign.batch((0..self.records).map(|number| self.draft(number)).collect());
        for record in &mut batch.records {
            record.0.0 += self.hole;
        }
        batch.hi = batch.records.last().map_or(batch.hi, |(seq, _)| *seq);
        batch.reserve = Seq(batch.hi.0 + self.reserve);
        batch.due = match self.due {
            0 => DueChange::Clear,
            1 => DueChange::Set(DueWhy::Turn, Duration::ZERO),
            2 => DueChange::Set(DueWhy::Await, Duration::from_secs(5)),
            _ => DueChange::Keep,
        };
        batch
    }

    fn draft(&self, number: u64) -> Draft {
        let sender = SUBJECTS[((self.first_key + number) % SUBJECTS.len() as u64) as usize];
        let kind = KINDS[((self.reserve / 10 + number) % KINDS.len() as u64) as usize];
        let text = format!("text {}", self.due);
        draft(kind, sender, key((self.first_key + number) % KEYS).as_str(), &text)
    }
}

fn conversation(number: u64) -> ConvRef {
    ConvRef::from(id::<ConversationId>(&format!("c{number}")))
}

fn subject(number: u64) -> Subject {
    id(SUBJECTS[(number % SUBJECTS.len() as u64) as usize])
}

fn key(number: u64) -> ClientMsgId {
    id(&format!("k{number}"))
}

fn new_conversation(number: u64, kind: ConversationKind) -> NewConversation {
    let settings = Settings { coalesce_ms: Some(number as u16), ..Settings::default() };
    NewConversation { kind, settings, ..new_channel(&format!("c{number}"), &SUBJECTS[..2]) }
}
