//! What the way to the store is like: the fault plan of one node, drawn from the seed, with weather that changes.
//!
//! Deliberately absent: any knowledge of what is called, beyond the halves that can be cut off by themselves.

use std::time::Duration;

use conch_store::StoreError;
use conch_store::faulty::{Call, Fault, FaultPlan};

use crate::coverage::Tally;
use crate::dice::Dice;
use crate::executor::Process;
use crate::shared::{Shared, lock, shared};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Every call is answered within milliseconds.
    Calm,
    /// A call in a hundred fails in some way.
    Breezy,
    /// A call in three fails in some way, the others are slow.
    Storm,
    /// The lease half is cut off.
    LeasesCut,
    /// The record half is cut off.
    RecordsCut,
    /// Everything is cut off.
    Cut,
}

/// What becomes of single calls on purpose, whatever the weather.
#[derive(Debug, Default)]
pub struct Orders {
    /// One answer each is lost.
    pub losing: Vec<Call>,
    /// Each is refused once.
    pub refusing: Vec<Call>,
    /// These take so long.
    pub slow: Option<(Call, Duration)>,
}

/// The fault plan of one node.
pub struct SeededPlan {
    dice: Shared<Dice>,
    world: Process,
    weather: Shared<Weather>,
    orders: Shared<Orders>,
    tally: Tally,
}

/// Longest delay of an answered call, by weather.
const CALM_DELAY: Duration = Duration::from_millis(4);
const STORM_DELAY: Duration = Duration::from_millis(400);
/// Longest time by which a write comes late: past a whole lease of the simulation.
const LATE: Duration = Duration::from_secs(3);

impl SeededPlan {
    /// A plan that draws from `dice` under the weather in `weather`, but for what `orders` say.
    #[must_use]
    pub fn new(dice: Dice, world: Process, weather: Shared<Weather>, orders: Shared<Orders>, tally: Tally) -> Self {
        Self { dice: shared(dice), world, weather, orders, tally }
    }

    fn ordered(&self, call: Call) -> Option<Fault> {
        let orders = &mut *lock(&self.orders);
        if take(&mut orders.losing, call) {
            return Some(Fault::ApplyThenLoseReply);
        }
        if take(&mut orders.refusing, call) {
            return Some(Fault::RefuseBefore(StoreError::Unavailable("refused by order".to_owned())));
        }
        let (_, takes) = orders.slow.filter(|(slow, _)| *slow == call)?;
        Some(Fault::DelayBefore(self.world.sleep(takes)))
    }

    fn failing(&self, dice: &mut Dice) -> Fault {
        match dice.below(3) {
            0 => Fault::RefuseBefore(StoreError::Unavailable("refused by the weather".to_owned())),
            1 => Fault::ApplyThenLoseReply,
            _ => Fault::ApplyLate(self.world.sleep(dice.between(Duration::ZERO, LATE))),
        }
    }

    fn answered(&self, dice: &mut Dice, most: Duration) -> Fault {
        let delay = self.world.sleep(dice.between(Duration::ZERO, most));
        match dice.below(3) {
            0 => Fault::None,
            1 => Fault::DelayBefore(delay),
            _ => Fault::DelayAfter(delay),
        }
    }
}

impl FaultPlan for SeededPlan {
    fn next(&self, call: Call) -> Fault {
        let weather = *lock(&self.weather);
        let dice = &mut *lock(&self.dice);
        let cut = match weather {
            Weather::Calm | Weather::Breezy | Weather::Storm => false,
            Weather::LeasesCut => call.is_lease(),
            Weather::RecordsCut => !call.is_lease(),
            Weather::Cut => true,
        };
        let (failures, delay) = match weather {
            Weather::Storm => (300, STORM_DELAY),
            Weather::Calm => (0, CALM_DELAY),
            _ => (10, CALM_DELAY),
        };
        let fault = if let Some(ordered) = self.ordered(call) {
            ordered
        } else if cut {
            // A cut line loses requests and, of those under way when it was cut, answers.
            let lost = !call.is_read() && dice.chance(100);
            if lost { Fault::ApplyThenLoseReply } else { unreachable_store() }
        } else if dice.chance(failures) {
            self.failing(dice)
        } else {
            self.answered(dice, delay)
        };
        self.world.note(format_args!("{call:?}: {}", name(&fault)));
        self.tally.count(|coverage| match fault {
            Fault::RefuseBefore(_) => coverage.refused_calls += 1,
            Fault::ApplyThenLoseReply => coverage.lost_answers += 1,
            Fault::ApplyLate(_) => coverage.late_calls += 1,
            Fault::None | Fault::DelayBefore(_) | Fault::DelayAfter(_) => {}
        });
        fault
    }
}

fn take(ordered: &mut Vec<Call>, call: Call) -> bool {
    let found = ordered.iter().position(|listed| *listed == call);
    found.map(|index| ordered.remove(index)).is_some()
}

fn unreachable_store() -> Fault {
    Fault::RefuseBefore(StoreError::Unavailable("the way to the store is cut".to_owned()))
}

fn name(fault: &Fault) -> &'static str {
    match fault {
        Fault::None => "answered",
        Fault::RefuseBefore(_) => "refused",
        Fault::ApplyThenLoseReply => "answer lost",
        Fault::ApplyLate(_) => "applied late",
        Fault::DelayBefore(_) => "request delayed",
        Fault::DelayAfter(_) => "answer delayed",
    }
}
