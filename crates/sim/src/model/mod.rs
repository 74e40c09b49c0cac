//! A model of ownership: every order of events, within bounds, of leases, deaths, claims, fenced appends, releases,
//! hand-offs and failovers, for one conversation and three processes, two of which share a node name.
//!
//! What it runs is the product's own arithmetic: [`conch_core::head`] computes and judges, the product's sequencer numbers
//! and acks. What it adds are the world's habits: a request arrives late or never, an answer is lost, a process stops
//! between a look and a deed, evidence of death is false, a standby takes over that lacks the newest commits.
//!
//! Deliberately absent, and why: docs/adr/0008-model-of-ownership.md.

mod numbering;
pub mod report;
pub mod rules;
pub mod scope;
pub mod step;
mod store;
pub mod world;

use conch_core::head::Verdict;
use conch_core::ids::Generation;
use stateright::{Model, Property};

use self::rules::{Rule, Rules};
use self::scope::{Flaw, May, Scope};
use self::step::Step;
use self::world::{Acked, Append, Call, Life, Process, Request, Row, Store, Tenure, Who, World};

/// A check of ownership: how far it goes, and what is broken on purpose.
#[derive(Debug, Clone, Copy)]
pub struct Ownership {
    /// Its bounds.
    pub scope: Scope,
    /// What is left out.
    pub flaw: Option<Flaw>,
    /// The rules that are looked at.
    pub watched: Rules,
}

impl Model for Ownership {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let started = Process::idle(Life::Running);
        let store = Store {
            rows: [Row::Present, Row::Absent, Row::Present],
            head: None,
            in_force: None,
            log: Vec::new(),
            generation: Generation(1),
        };
        let standby = (self.scope.failovers > 0).then(|| Box::new(store.clone()));
        vec![World {
            store,
            standby,
            processes: [started, Process::idle(Life::Unborn), started],
            late: Vec::new(),
            acked: Vec::new(),
            lost: Vec::new(),
            granted: Vec::new(),
            failovers_left: self.scope.failovers,
            failures_left: self.scope.failures,
            broken: Rules::default(),
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_empty() {
            step::possible(world, *self, steps);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(step, *self);
        self.look(&mut next);
        next.broken = next.broken.and(self.watched);
        Some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.granted.len() <= self.scope.reigns && world.committed().count() <= self.scope.records
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = always();
        properties.extend(sometimes(&self.scope));
        properties
    }
}

impl Ownership {
    /// Is this what was left out?
    fn lacks(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// The rules that any one world shows.
    fn look(&self, world: &mut World) {
        let log = &world.store.log;
        let end = log.last().map(|entry| entry.seq);
        let head_above = world.store.head.map(|head| head.last_seq) >= end;
        let rising = log.windows(2).all(|pair| pair[0].epoch <= pair[1].epoch);
        let keys_once = log.iter().enumerate().all(|(at, entry)| log[..at].iter().all(|other| other.key != entry.key));
        let there = |acked: &world::Acked| world.committed().any(|e| e.seq == acked.seq && e.key == acked.key);
        let durable = world.acked.iter().all(there);
        let generation = world.store.generation;
        let believes = |process: &&Process| {
            process.runs() && process.valid && process.tenure.is_some_and(|tenure| tenure.generation == generation)
        };
        let one_believes = world.processes.iter().filter(believes).count() <= 1;
        world.check(head_above, Rule::HeadAboveLog);
        world.check(rising, Rule::EpochNeverFalls);
        world.check(keys_once, Rule::KeyOnce);
        world.check(durable, Rule::AckedIsDurable);
        world.check(one_believes || !self.scope.lease_excludes(), Rule::LeaseExcludes);
    }
}

/// One property for each rule.
fn always() -> Vec<Property<Ownership>> {
    macro_rules! unbroken {
        ($($rule:ident)*) => {
            vec![$(Property::always(Rule::$rule.sentence(), |_, world: &World| !world.broken.has(Rule::$rule)),)*]
        };
    }
    unbroken! {
        EpochNeverFalls EpochOnce SeqOnce HeadAboveLog GivenOnce AckedIsDurable AckedOnce KeyOnce OrderOfAcks DurableBeforeShown
        CommittedInReign LeaseExcludes
    }
}

/// What a check must come across, so that it is known to have looked at something.
fn sometimes(scope: &Scope) -> Vec<Property<Ownership>> {
    let mut found: Vec<Property<Ownership>> = Vec::new();
    let mut must = |when: bool, name, such: fn(&Ownership, &World) -> bool| {
        if when {
            found.push(Property::sometimes(name, such));
        }
    };
    let (writes, fails_over, excludes) = (scope.keys > 0, scope.failovers > 0, scope.lease_excludes());
    must(true, "another incarnation takes over", |_, world| world.granted.len() > 1);
    must(true, "a deposed owner still believes", |_, world| {
        let over = |tenure: Tenure| Some(tenure.id) != world.store.in_force;
        world.processes.iter().any(|process| process.tenure.is_some_and(over))
    });
    must(!excludes, "two believe at once", |_, world| {
        world.processes.iter().filter(|process| process.valid && process.tenure.is_some()).count() > 1
    });
    must(true, "an owner does not know that it owns", |_, world| {
        let owner = world.store.head.and_then(|head| head.owner);
        Who::ALL.into_iter().any(|who| owner == Some(who.incarnation()) && world.process(who).tenure.is_none())
    });
    must(scope.may(May::HandOff), "the conversation passes to a peer with no number skipped", |_, world| {
        let owner = world.store.head.filter(|head| head.owner.is_some() && head.reserved_to == head.last_seq);
        owner.is_some() && world.granted.len() > 1
    });
    must(writes, "a key is acked", |_, world| !world.acked.is_empty());
    must(writes, "a late append of a reign that is over is about to be fenced", |_, world| {
        world.under_way().any(|append| is_fenced(world, append))
    });
    must(writes, "a retry is answered with what an earlier reign wrote", |_, world| {
        let earlier = |call: Call| matches!((call.request, call.landed), (Request::Append(append), Some(entry)) if entry.epoch < append.fence.epoch);
        world.processes.iter().any(|process| process.call.is_some_and(earlier))
    });
    must(writes && scope.may(May::Twin), "a process fences the other one of its node's name", |_, world| {
        let owner = world.store.head.and_then(|head| head.owner);
        let owner = Who::ALL.into_iter().find(|who| Some(who.incarnation()) == owner);
        let fenced = |who: Who| {
            world.under_way().any(|append| append.fence.owner == who.incarnation() && is_fenced(world, append))
        };
        let twins = |owner: Who| Who::ALL.into_iter().filter(move |who| *who != owner && who.node() == owner.node());
        owner.is_some_and(|owner| twins(owner).any(fenced))
    });
    must(writes && fails_over, "a failover loses an acked record", |_, world| {
        world.lost.iter().any(|entry| world.acked.iter().any(|acked| acked.seq == entry.seq))
    });
    must(scope.records > 1 && fails_over, "a lost key is acked again under another number", |_, world| {
        let again = |acked: &Acked| world.lost.iter().any(|lost| lost.key == acked.key && lost.seq != acked.seq);
        world.acked.iter().any(again)
    });
    must(scope.may(May::Expel) && fails_over, "a failover brings back a dead incarnation's row", |_, world| {
        Who::ALL.into_iter().any(|who| !world.process(who).runs() && world.row(who) != Row::Absent)
    });
    found
}

/// The store would refuse this append as another reign's.
fn is_fenced(world: &World, append: &Append) -> bool {
    let judged = world.store.head.map(|head| head.judge(&append.fence, world.store.generation));
    judged == Some(Verdict::Fenced)
}
