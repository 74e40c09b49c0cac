//! What clients ask of a session's turns: to cancel one, to answer what waits, to run the last one again.
//!
//! Invariant: the machine decides from what is committed and what is on its way. What is not open any more is looked for in
//! the log, so that a retry gets its first answer and everybody else learns what became of it.

use conch_core::ids::{ClientMsgId, Subject};
use conch_core::record::{Draft, RecordKind};
use conch_core::sequencer::key_reused;
use conch_core::turn::NotDone;
use conch_core::turn::cancel::{Cancel, OfferedStep, Regenerate, Resolve, TurnAsk};
use conch_core::turn::journal;
use conch_core::turn::replaced;
use conch_store::{Landed, Store};

use super::*;
use crate::turn::context::stale;
use crate::turn::lookup;

impl Owner {
    pub(super) fn turn_ask(&mut self, ask: TurnAsk, reply: Reply) {
        let Some(turns) = &mut self.turns else {
            return reply(Err(Refusal::new(Code::Conflict, "conversation: has no agent, and so no turns")));
        };
        let decided = match &ask {
            TurnAsk::Cancel(cancel) => return self.cancel(cancel.clone(), reply),
            TurnAsk::Step(step) => return self.offer(step.clone(), reply),
            TurnAsk::Resolve(resolve) => {
                let key = self.charge.node.rules.hold(Rule::OneKeyForEachAwait);
                turns
                    .machine
                    .resolve(resolve)
                    .map(|draft| vec![if key { draft } else { another_key(draft, self.next_ticket) }])
            }
            TurnAsk::Regenerate(again) => turns.machine.regenerate(again, turns.inputs.len()),
        };
        match decided {
            Ok(drafts) => {
                let is_resolution = matches!(ask, TurnAsk::Resolve(_));
                self.append_own(drafts, if is_resolution { resolved_otherwise(reply) } else { reply });
            }
            Err(NotDone::Closed) => self.look_in_the_log(ask, None, reply),
            // One that was asked before may be there: then that is the answer, whatever is open now.
            Err(NotDone::Refused(refusal)) if refusal.retry.is_none() => {
                self.look_in_the_log(ask, Some(refusal), reply);
            }
            Err(NotDone::Refused(refusal)) => reply(Err(refusal)),
        }
    }

    /// A worker's step, for the run that asked the worker. What another epoch asked for is stale, or this owner is.
    fn offer(&self, step: OfferedStep, reply: Reply) {
        let epoch = self.sequencer.epoch();
        match (step.epoch.cmp(&epoch), &self.turns) {
            (std::cmp::Ordering::Equal, Some(turns)) => turns.offer(step, reply),
            (std::cmp::Ordering::Greater, _) => reply(Err(moved())),
            _ => {
                reply(Err(stale(format!("this is epoch {}, and the turn's owner is one of epoch {epoch}", step.epoch))))
            }
        }
    }

    /// The runner is stopped at once, so that nothing more of it is shown or done; who asked is told when the cancel is on disk
    /// and the runner is over (invariant 14).
    pub(super) fn cancel(&mut self, cancel: Cancel, reply: Reply) {
        let Some(turns) = &mut self.turns else { return };
        let partial = turns.partial(cancel.turn);
        match turns.machine.cancel(&cancel, partial.as_deref()) {
            Ok(drafts) => {
                if self.charge.node.rules.hold(Rule::CancelStops) {
                    turns.stop_runner(Some(cancel.turn));
                }
                let ticket = self.ticket(reply);
                if let Some(turns) = &mut self.turns {
                    turns.own.insert(ticket, drafts.clone());
                    turns.cancels.insert(ticket, cancel.turn);
                }
                self.step(Input::Append(ticket, drafts));
            }
            Err(NotDone::Closed) => self.look_in_the_log(TurnAsk::Cancel(cancel), None, reply),
            Err(NotDone::Refused(refusal)) => reply(Err(refusal)),
        }
    }

    /// Lets waiting inputs join the turn whose runner asks.
    pub(super) fn join(&mut self, turn: Seq, reply: oneshot::Sender<Result<Vec<Seq>, Refusal>>) {
        let admitted = match &mut self.turns {
            Some(turns) => turns.machine.admit_join(turn),
            None => Err(moved()),
        };
        // A runner that is gone needs no answer.
        match admitted {
            Ok(drafts) if drafts.is_empty() => drop(reply.send(Ok(Vec::new()))),
            Ok(drafts) => {
                let joining: Vec<Seq> = drafts.iter().filter_map(|draft| draft.turn).collect();
                self.append_own(drafts, Box::new(move |result| drop(reply.send(result.map(|_| joining)))));
            }
            Err(refusal) => drop(reply.send(Err(refusal))),
        }
    }

    /// Answers from the log, or else, to another run, with `refusal`. Asked beside the loop, because it reads the store.
    fn look_in_the_log(&self, ask: TurnAsk, refusal: Option<Refusal>, reply: Reply) {
        let store = Arc::clone(&self.charge.node.store);
        let conversation = self.charge.tenure.conversation.clone();
        self.charge.node.seams.spawn("look for a turn", async move {
            let log = Log { store: &*store, conversation: &conversation };
            let answer = match &ask {
                TurnAsk::Cancel(cancel) => log.cancelled(cancel).await,
                TurnAsk::Resolve(resolve) => log.resolved(resolve).await,
                TurnAsk::Regenerate(again) => log.regenerated(again, refusal).await,
                // Never looked for: what is in the log is in the runner's journal.
                TurnAsk::Step(step) => Ok(Err(stale(format!("turn {} is not run", step.turn)))),
            };
            reply(answer.unwrap_or_else(|error| Err(store_refusal(&error))));
        });
    }
}

/// The same under a key of its own.
fn another_key(mut draft: Draft, number: u64) -> Draft {
    let key = format!("{}~{number}", draft.client_msg_id);
    draft.client_msg_id = key.parse().expect("a key and a number are a key");
    draft
}

/// Another payload under the key of an await is a conflict, and nobody's mistake.
fn resolved_otherwise(reply: Reply) -> Reply {
    Box::new(move |result| {
        reply(result.map_err(|refusal| match refusal.code {
            Code::IdempotencyKeyReused => Refusal::new(Code::Conflict, "await: has been resolved in another way"),
            _ => refusal,
        }));
    })
}

/// A conversation's log, for what is not open any more.
struct Log<'a> {
    store: &'a dyn Store,
    conversation: &'a ConvRef,
}

type Answer = Result<Vec<Receipt>, Refusal>;

impl Log<'_> {
    async fn cancelled(&self, cancel: &Cancel) -> Result<Answer, StoreError> {
        let turn = cancel.turn;
        let draft = journal::cancelled(cancel);
        let mut end = self.find(&draft.sender, &draft.client_msg_id).await?;
        if let Some(there) = end.filter(|there| there.body_hash == draft.body_hash) {
            return Ok(Ok(vec![lookup::duplicate(there)]));
        }
        let before = journal::cancelled(&cancel.before_it_runs_again());
        if let Some(there) = end.filter(|there| there.body_hash == before.body_hash)
            && self.is_run_that_never_began(turn).await?
        {
            return Ok(Ok(vec![lookup::duplicate(there)]));
        }
        if end.is_none() {
            end = self.find(&Subject::system(journal::SUPERSEDE_SENDER), &draft.client_msg_id).await?;
        }
        let Some(there) = end else { return self.no_turn(turn).await.map(Err) };
        let kind = self.kind_at(there.seq).await?.map_or("its end", RecordKind::as_str);
        Ok(Err(Refusal::new(Code::Conflict, format!("turn: {turn} has ended by {kind}, seq {}", there.seq))))
    }

    /// Was it to run another turn again, and has no start?
    async fn is_run_that_never_began(&self, turn: Seq) -> Result<bool, StoreError> {
        let input = lookup::record_at(self.store, self.conversation, turn).await?;
        let runs_again = input.as_ref().and_then(replaced::runs_again).is_some();
        let start = self.find(&Subject::system(journal::START_SENDER), &lookup::key_of(turn)).await?;
        Ok(runs_again && start.is_none())
    }

    async fn resolved(&self, resolve: &Resolve) -> Result<Answer, StoreError> {
        let (id, draft) = (&resolve.id, resolve.draft());
        match self.find(&draft.sender, &draft.client_msg_id).await? {
            Some(there) if there.body_hash == draft.body_hash => return Ok(Ok(vec![lookup::duplicate(there)])),
            Some(there) => {
                let detail = format!("await: {id} has been resolved in another way, or has expired, seq {}", there.seq);
                return Ok(Err(Refusal::new(Code::Conflict, detail)));
            }
            None => {}
        }
        let opened = self.find(&Subject::system(journal::AWAIT_SENDER), &draft.client_msg_id).await?;
        Ok(Err(match opened {
            Some(_) => Refusal::new(Code::Conflict, format!("await: the turn of {id} has ended")),
            None => Refusal::new(Code::NotFound, format!("await: there is no {id}")),
        }))
    }

    async fn regenerated(&self, again: &Regenerate, refusal: Option<Refusal>) -> Result<Answer, StoreError> {
        let draft = again.draft();
        match self.find(&draft.sender, &draft.client_msg_id).await? {
            Some(there) if there.body_hash == draft.body_hash => Ok(Ok(vec![lookup::duplicate(there)])),
            Some(_) => Ok(Err(key_reused())),
            None => {
                let turn = again.turn;
                let started = self.find(&Subject::system(journal::START_SENDER), &lookup::key_of(turn)).await?;
                if started.is_none() {
                    return self.no_turn(turn).await.map(Err);
                }
                if let Some(refusal) = refusal {
                    return Ok(Err(refusal));
                }
                let detail = format!("turn: {turn} {}", self.why_not_again(turn).await?);
                Ok(Err(Refusal::new(Code::Conflict, detail)))
            }
        }
    }

    /// Why a turn that has started, and is neither open nor the last one that ended, is not run again.
    async fn why_not_again(&self, turn: Seq) -> Result<String, StoreError> {
        if lookup::is_rolled_back(self.store, self.conversation, turn).await? {
            return Ok("was rolled back, so that there is nothing to run again".to_owned());
        }
        Ok(match lookup::superseded(self.store, self.conversation, turn).await? {
            Some((_, Some(run))) => format!("has been run again already, as turn {run}"),
            _ => "is not the last one that ended".to_owned(),
        })
    }

    async fn no_turn(&self, turn: Seq) -> Result<Refusal, StoreError> {
        Ok(match self.kind_at(turn).await? {
            Some(kind) => Refusal::new(Code::NotFound, format!("turn: {turn} is no turn, but a {kind}")),
            None => Refusal::new(Code::NotFound, format!("turn: there is no {turn}")),
        })
    }

    async fn find(&self, sender: &Subject, key: &ClientMsgId) -> Result<Option<Landed>, StoreError> {
        self.store.find(self.conversation, sender, key).await
    }

    async fn kind_at(&self, seq: Seq) -> Result<Option<RecordKind>, StoreError> {
        let found = lookup::record_at(self.store, self.conversation, seq).await?;
        Ok(found.map(|record| record.kind))
    }
}
