//! What can happen next, and what the world is afterwards.
//!
//! A pause needs no step of its own: a process that takes no step is stopped, and whatever it had looked at before, it
//! acts upon afterwards. What a pause can do beyond that is [`Step::Oversleep`]: the clock stood still as well.

use conch_core::head::Fence;
use conch_core::ids::Seq;
use conch_core::sequencer::Reign;

use super::Ownership as Law;
use super::numbering;
use super::rules::Rule;
use super::scope::{Flaw, May, Scope};
use super::world::{Acked, Answer, Append, Call, Key, Life, Process, Request, Row, Tenure, Who, World};

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A process starts and registers.
    Start(Who),
    /// A heartbeat. It finds its row and is valid again, or it finds none and the process exits.
    Renew(Who),
    /// By the process's own clock, the lease comes near its end: it acts no more.
    Doubt(Who),
    /// The lease ran out by the store's clock, and somebody deletes the row. The holder stopped believing before.
    DeclareDead(Who),
    /// Somebody deletes the row while the holder believes: false evidence, or its clock stood still.
    Expel(Who),
    /// It looks at the head and sends a claim, if what it saw may be claimed. Where claims are not slow it arrives at once,
    /// which is the same: a claim that arrives later succeeds only if the head is as it was.
    Claim(Who),
    /// The same, and the answer is lost.
    ClaimUnheard(Who),
    /// A client sends a key (again), the owner numbers it and sends the append.
    Submit(Who, Key),
    /// The owner releases; from here on it believes in nothing.
    Release(Who),
    /// The same, but the release is late.
    ReleaseLate(Who),
    /// The owner passes the conversation on, and the peer hears of it.
    HandOff(Who, Who),
    /// The same, but nobody hears of it.
    HandOffUnheard(Who, Who),
    /// The same, but the hand-off is late.
    HandOffLate(Who, Who),
    /// The watchdog relieves a task that does not answer. The task may wake up later and still believe.
    Relieve(Who),
    /// What the process waits for arrives at the store. Except of an append that landed, it hears the answer.
    Arrive(Who),
    /// A request that nobody waits for arrives at the store.
    ArriveLate(usize),
    /// The append under way is sent a second time, unchanged.
    Resend(Who),
    /// The store certainly did not write the append, and says so.
    Fail(Who),
    /// The process hears that its append landed.
    Hear(Who),
    /// The process stops waiting. A request that had not arrived never does.
    GiveUp(Who),
    /// The process stops waiting, and the request is still under way.
    GiveUpEarly(Who),
    /// The standby has everything that the primary has.
    Replicate,
    /// The standby takes over.
    FailOver,
    /// A backup is restored, and the operator says so.
    Restore,
}

/// How much a restored backup raises the generation.
const GENERATIONS_PER_RESTORE: u64 = 65_536;

/// Everything that can happen next.
pub(super) fn possible(world: &World, law: Law, steps: &mut Vec<Step>) {
    for who in Who::ALL {
        lease_steps(world, law, who, steps);
        if world.process(who).runs() {
            owner_steps(world, &law.scope, who, steps);
            call_steps(world, &law.scope, who, steps);
        }
    }
    if law.scope.may(May::Twin)
        && world.process(Who::Twin).life == Life::Unborn
        && world.granted.len() < law.scope.reigns
    {
        steps.push(Step::Start(Who::Twin));
    }
    steps.extend((0..world.late.len()).map(Step::ArriveLate));
    if let Some(standby) = &world.standby {
        if **standby != world.store {
            steps.push(Step::Replicate);
        }
        steps.push(if law.scope.may(May::Restore) && world.failovers_left == 1 {
            Step::Restore
        } else {
            Step::FailOver
        });
    }
}

fn lease_steps(world: &World, law: Law, who: Who, steps: &mut Vec<Step>) {
    let (process, row) = (world.process(who), world.row(who));
    if process.runs() && (!process.valid || row == Row::Absent) {
        steps.push(Step::Renew(who));
    }
    if law.scope.may(May::Expel) {
        // Whoever may be declared dead while it believes may as well believe for ever.
        if row == Row::Present {
            steps.push(Step::Expel(who));
        }
        return;
    }
    if process.runs() && process.valid && law.scope.may(May::Die) {
        steps.push(Step::Doubt(who));
    }
    let ran_out = !process.valid || law.lacks(Flaw::MarginIgnored);
    if row == Row::Present && ran_out && law.scope.may(May::Die) {
        steps.push(Step::DeclareDead(who));
    }
}

fn owner_steps(world: &World, scope: &Scope, who: Who, steps: &mut Vec<Step>) {
    let process = world.process(who);
    if process.call.is_some() {
        return;
    }
    let Some(tenure) = process.tenure else {
        if process.valid && may_claim(world, scope, who) {
            steps.push(Step::Claim(who));
            if !scope.may(May::SlowClaims) {
                steps.push(Step::ClaimUnheard(who));
            }
        }
        return;
    };
    let in_bounds = tenure.reign.first_seq.0 % conch_core::head::SKIP_PER_GENERATION <= scope.numbers;
    if process.valid && in_bounds {
        let keys = (0..scope.keys).map(Key).filter(|key| key.0 == 0 || is_used(world, Key(key.0 - 1)));
        steps.extend(keys.map(|key| Step::Submit(who, key)));
    }
    let late = world.late.len() < scope.late;
    steps.push(Step::Release(who));
    if late {
        steps.push(Step::ReleaseLate(who));
    }
    if scope.may(May::HandOff) {
        for peer in Who::ALL.into_iter().filter(|peer| *peer != who && world.process(*peer).runs()) {
            steps.extend([Step::HandOff(who, peer), Step::HandOffUnheard(who, peer)]);
            if late {
                steps.push(Step::HandOffLate(who, peer));
            }
        }
    }
}

fn call_steps(world: &World, scope: &Scope, who: Who, steps: &mut Vec<Step>) {
    let process = world.process(who);
    if let Some(tenure) = process.tenure
        && scope.may(May::Wedge)
        && world.is_held(who, tenure.reign.epoch)
    {
        steps.push(Step::Relieve(who));
    }
    let Some(call) = process.call else { return };
    if call.landed.is_some() {
        return steps.extend([Step::Hear(who), Step::GiveUp(who)]);
    }
    let is_append = matches!(call.request, Request::Append(_));
    steps.push(Step::Arrive(who));
    steps.push(Step::GiveUp(who));
    if world.late.len() < scope.late {
        steps.push(Step::GiveUpEarly(who));
        if is_append && scope.may(May::Resend) {
            steps.push(Step::Resend(who));
        }
    }
    if is_append && world.failures_left > 0 {
        steps.push(Step::Fail(who));
    }
}

/// The four cases of a claim: nobody's, one's own without a task, somebody's who is registered no more; else none.
fn may_claim(world: &World, scope: &Scope, who: Who) -> bool {
    if world.granted.len() >= scope.reigns {
        return false;
    }
    let Some(owner) = world.store.head.and_then(|head| head.owner) else { return true };
    owner == who.incarnation() || !world.store.is_registered(owner) || scope.may(May::IgnoreLeases)
}

/// Keys are used in their order, because nothing else tells them apart.
fn is_used(world: &World, key: Key) -> bool {
    world.committed().any(|entry| entry.key == key) || world.under_way().any(|append| append.key == key)
}

impl World {
    /// The world after a step that is possible.
    pub(super) fn take(&mut self, step: Step, law: Law) {
        match step {
            Step::Start(who) => {
                *self.process_mut(who) = Process::idle(Life::Running);
                self.set_row(who, Row::Present);
            }
            Step::Renew(who) => match self.row(who) {
                // What the process had sent may still be under way; that is `GiveUpEarly` before.
                Row::Absent => *self.process_mut(who) = Process::idle(Life::Over),
                Row::Present => self.process_mut(who).valid = true,
            },
            Step::Doubt(who) => self.process_mut(who).valid = false,
            Step::DeclareDead(who) | Step::Expel(who) => self.set_row(who, Row::Absent),
            Step::Claim(who) => {
                let head = self.store.head;
                self.call(who, Request::Claim(head.map(|head| head.epoch), head.and_then(|head| head.owner)));
                if !law.scope.may(May::SlowClaims) {
                    self.arrive_and_answer(who, law);
                }
            }
            Step::ClaimUnheard(who) => {
                let head = self.store.head;
                let seen = Request::Claim(head.map(|head| head.epoch), head.and_then(|head| head.owner));
                self.arrive(who, seen, law);
            }
            Step::Submit(who, key) => self.submit(who, key, law),
            Step::Release(who) | Step::ReleaseLate(who) => {
                if let Some(request) = self.leave(who, None) {
                    self.send(who, request, step, law);
                }
            }
            Step::HandOff(who, to) | Step::HandOffUnheard(who, to) | Step::HandOffLate(who, to) => {
                if let Some(request) = self.leave(who, Some(to)) {
                    self.send(who, request, step, law);
                }
            }
            Step::Relieve(who) => {
                if let Some(tenure) = self.process(who).tenure {
                    self.relieve(who, tenure.reign.epoch, law);
                }
            }
            Step::Arrive(who) => self.arrive_and_answer(who, law),
            Step::ArriveLate(index) => {
                let (from, request) = self.late.remove(index);
                self.arrive(from, request, law);
            }
            Step::Resend(who) => {
                let request = self.process(who).call.map(|call| call.request);
                self.leave_late(who, request);
            }
            Step::Fail(who) => self.fail(who),
            Step::Hear(who) => self.hear(who),
            Step::GiveUp(who) => drop(self.give_up(who, law)),
            Step::GiveUpEarly(who) => {
                let request = self.give_up(who, law);
                self.leave_late(who, request);
            }
            Step::Replicate => self.standby = Some(Box::new(self.store.clone())),
            Step::FailOver => self.fail_over(1, law),
            Step::Restore => self.fail_over(GENERATIONS_PER_RESTORE, law),
        }
    }

    fn call(&mut self, who: Who, request: Request) {
        self.process_mut(who).call = Some(Call { request, landed: None });
    }

    fn leave_late(&mut self, who: Who, request: Option<Request>) {
        self.late.extend(request.map(|request| (who, request)));
    }

    fn submit(&mut self, who: Who, key: Key, law: Law) {
        let Some(Tenure { reign, generation, id }) = self.process(who).tenure else { return };
        let gap = if law.lacks(Flaw::NumbersBeyondTheGap) { u64::MAX } else { law.scope.gap };
        let Some(commit) = numbering::number(reign, key, gap) else {
            self.process_mut(who).tenure = None;
            return;
        };
        let known = self.committed().any(|entry| entry.seq == commit.hi);
        let may_land = self.under_way().any(|append| append.fence.hi == commit.hi);
        self.check(!known && !may_land, Rule::GivenOnce);
        let fence =
            Fence { epoch: reign.epoch, owner: who.incarnation(), generation, prev: commit.prev, hi: commit.hi };
        let floor = self.acked_up_to();
        self.call(who, Request::Append(Append { fence, reserve: commit.reserve, key, id, floor }));
    }

    /// The owner stops, and asks for this.
    fn leave(&mut self, who: Who, to: Option<Who>) -> Option<Request> {
        let Reign { epoch, first_seq, .. } = self.process_mut(who).tenure.take()?.reign;
        Some(to.map_or(Request::Release(epoch, first_seq), |to| Request::HandOff(epoch, first_seq, to)))
    }

    fn send(&mut self, who: Who, request: Request, step: Step, law: Law) {
        if matches!(step, Step::ReleaseLate(_) | Step::HandOffLate(..)) {
            return self.late.push((who, request));
        }
        if let (Answer::Granted(to, tenure), Step::HandOff(..)) = (self.arrive(who, request, law), step) {
            self.hear_of(to, tenure);
        }
    }

    /// The news of a reign reach its owner. One that is busy misses them: a lost hand-off, found out by its next claim.
    fn hear_of(&mut self, to: Who, tenure: Tenure) {
        let owner = self.process_mut(to);
        if owner.runs() && owner.tenure.is_none() && owner.call.is_none() {
            owner.tenure = Some(tenure);
        }
    }

    fn arrive_and_answer(&mut self, who: Who, law: Law) {
        let Some(call) = self.process(who).call else { return };
        let answer = self.arrive(who, call.request, law);
        let process = self.process_mut(who);
        process.call = None;
        match answer {
            Answer::Landed(entry) => process.call = Some(Call { landed: Some(entry), ..call }),
            Answer::Fenced => process.tenure = None,
            Answer::Granted(to, tenure) => self.hear_of(to, tenure),
            Answer::Released | Answer::Lost => {}
        }
    }

    fn hear(&mut self, who: Who) {
        let Process { tenure: Some(tenure), call: Some(call), valid, .. } = *self.process(who) else { return };
        self.process_mut(who).call = None;
        if let (Request::Append(append), Some(entry)) = (call.request, call.landed) {
            let reaction = numbering::landed(tenure.reign, append.key, entry, valid);
            self.react(who, append.key, tenure, &reaction);
        }
    }

    fn fail(&mut self, who: Who) {
        let Process { tenure: Some(tenure), call: Some(call), .. } = *self.process(who) else { return };
        self.process_mut(who).call = None;
        self.failures_left -= 1;
        if let Request::Append(append) = call.request {
            let reaction = numbering::failed(tenure.reign, append.key);
            self.react(who, append.key, tenure, &reaction);
        }
    }

    fn react(&mut self, who: Who, key: Key, tenure: Tenure, reaction: &numbering::Reaction) {
        self.process_mut(who).tenure = reaction.reign.map(|reign| Tenure { reign, ..tenure });
        if let Some(seq) = reaction.shown {
            self.show(seq);
        }
        if let Some(seq) = reaction.acked {
            self.ack(key, seq);
        }
    }

    fn show(&mut self, seq: Seq) {
        let durable = self.committed().any(|entry| entry.seq == seq);
        self.check(durable, Rule::DurableBeforeShown);
    }

    fn ack(&mut self, key: Key, seq: Seq) {
        let durable = self.committed().any(|entry| entry.seq == seq && entry.key == key);
        self.check(durable, Rule::AckedIsDurable);
        let another_key = self.acked.iter().any(|acked| acked.seq == seq && acked.key != key);
        self.check(!another_key, Rule::SeqOnce);
        let there = |seq: Seq| self.store.log.iter().any(|entry| entry.seq == seq);
        let another_seq = self.acked.iter().any(|acked| acked.key == key && acked.seq != seq && there(acked.seq));
        self.check(!(another_seq && there(seq)), Rule::AckedOnce);
        let acked = Acked { seq, key };
        if let Err(place) = self.acked.binary_search(&acked) {
            self.acked.insert(place, acked);
        }
    }

    /// An append of unknown fate ends the reign. Returns what may still be under way.
    fn give_up(&mut self, who: Who, law: Law) -> Option<Request> {
        let call = self.process_mut(who).call.take()?;
        if let Request::Append(append) = call.request {
            self.process_mut(who).tenure = None;
            if law.lacks(Flaw::AckBeforeCommit) {
                self.ack(append.key, append.fence.hi);
            }
            if law.lacks(Flaw::ShownBeforeCommit) {
                self.show(append.fence.hi);
            }
        }
        call.landed.is_none().then_some(call.request)
    }
}
