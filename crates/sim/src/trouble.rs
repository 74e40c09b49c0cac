//! What happens to the machines while clients talk: kills, halts, twins, clocks, weather, failovers.
//!
//! Invariant: everything that is done here is undone, or followed by a restart, before [`cause`] returns; so what a run
//! looks like afterwards is the server's doing.

use std::time::Duration;

use conch_store::LeaseStore as _;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::mpsc;

use crate::dice::Dice;
use crate::executor::{Halt, Process};
use crate::machine::{Machine, Proof, Site};
use crate::network::Sea;
use crate::shared::lock;
use crate::weather::Weather;

/// Longest halt or spell of bad weather: a few leases of the simulation.
const LONGEST: Duration = Duration::from_secs(8);
/// How long an orderly end may take before it is a kill.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tasks that a halt may pick out, by the names that the server gives them.
const TASKS: &[&str] = &[
    "owner",
    "owner",
    "hub",
    "gathering of commits",
    "evening out",
    "look again",
    "claim",
    "catch-up",
    "router sweep",
    "watchdog",
    "membership",
    "due",
    "heartbeat",
    "request",
    "link-answer",
    "link-stream",
];

/// Causes trouble for `duration` and waits until all of it is over.
pub async fn cause(site: Site, machines: Vec<Machine>, mut dice: Dice, duration: Duration) {
    let world = site.executor.world();
    let end = site.executor.elapsed() + duration;
    let (under_way, mut all_over) = mpsc::channel::<()>(1);
    while site.executor.elapsed() < end {
        world.sleep(dice.between(Duration::from_millis(100), Duration::from_millis(3_000))).await;
        let machine = machines[dice.index(machines.len())].clone();
        let trouble = draw(&site, machine, &machines, &mut dice);
        let under_way = under_way.clone();
        world.spawn("trouble", async move {
            trouble.await;
            drop(under_way);
        });
    }
    drop(under_way);
    // Nothing is ever sent: the end of the channel is the end of the last trouble.
    let _ = all_over.recv().await;
}

fn draw(site: &Site, machine: Machine, machines: &[Machine], dice: &mut Dice) -> BoxFuture<'static, ()> {
    let world = site.executor.world();
    // Mostly short, sometimes past a lease.
    let longest = if dice.chance(700) { Duration::from_millis(1_200) } else { LONGEST };
    let duration = dice.between(Duration::from_millis(5), longest);
    match dice.below(32) {
        0..=2 => kill(site, &machine),
        3 => Box::pin(async move { machine.shut_down(PATIENCE).await }),
        4..=5 => halt(site, &machine, Halt::Process, duration),
        6 => halt(site, &machine, Halt::Machine, duration),
        7 => halt(site, &machine, Halt::SharedThreads, duration),
        8..=9 => halt(site, &machine, Halt::Named(TASKS[dice.index(TASKS.len())]), duration),
        10 if site.proof == Proof::Lease => twin(site, &machine, dice, duration),
        10 | 11 => jump(site, &machine, duration),
        12 => calendar(site, dice),
        13 => failover(site),
        14..=15 => cut_lifeline(site, machine),
        16 => cut_all_lifelines(site),
        17 => cut_network(site, machine, duration),
        18 => outage(site, machines, duration),
        24 => cut_one_way(site, &machine, &machines[dice.index(machines.len())], duration),
        25 => reset(site, &machine, &machines[dice.index(machines.len())]),
        26..=27 => rough_sea(site, duration),
        28..=30 => restart(machine, duration),
        31 => rolling_restart(machines, dice),
        _ => weather(world, machine, dice, duration),
    }
}

fn nothing() -> BoxFuture<'static, ()> {
    Box::pin(std::future::ready(()))
}

fn kill(site: &Site, machine: &Machine) -> BoxFuture<'static, ()> {
    if let Some(process) = machine.process() {
        site.tally.count(|coverage| coverage.kills += 1);
        process.kill();
    }
    nothing()
}

fn halt(site: &Site, machine: &Machine, halt: Halt, duration: Duration) -> BoxFuture<'static, ()> {
    let Some(process) = machine.process() else { return nothing() };
    site.tally.count(|coverage| coverage.halts += 1);
    stop_for(site.executor.world(), process, halt, duration)
}

/// A second halt of the same kind while one lasts ends with the first; that is harmless.
fn stop_for(world: Process, process: Process, halt: Halt, duration: Duration) -> BoxFuture<'static, ()> {
    process.halt(halt);
    Box::pin(async move {
        world.sleep(duration).await;
        process.resume(halt);
    })
}

/// Stops the process, lets another one be started under the machine's name, continues the first, and ends it later: until
/// then no client reaches it, but what it was asked before goes on.
fn twin(site: &Site, machine: &Machine, dice: &mut Dice, duration: Duration) -> BoxFuture<'static, ()> {
    let Some(process) = machine.process() else { return nothing() };
    site.tally.count(|coverage| coverage.twins += 1);
    machine.disown();
    machine.start();
    let (world, lives_on) = (site.executor.world(), dice.between(Duration::ZERO, LONGEST));
    let stopped = stop_for(world.clone(), process.clone(), Halt::Process, duration);
    Box::pin(async move {
        stopped.await;
        world.sleep(lives_on).await;
        process.kill();
    })
}

fn jump(site: &Site, machine: &Machine, by: Duration) -> BoxFuture<'static, ()> {
    if let Some(process) = machine.process() {
        site.tally.count(|coverage| coverage.clock_jumps += 1);
        process.jump_clock(by);
    }
    nothing()
}

/// The store's calendar is the world's.
fn calendar(site: &Site, dice: &mut Dice) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.clock_jumps += 1);
    let by_ms = i64::try_from(dice.below(8_000)).expect("small") - 4_000;
    site.executor.world().shift_calendar(by_ms);
    nothing()
}

fn failover(site: &Site) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.generations += 1);
    let generation = site.recorder.inner().bump_generation();
    site.executor.world().note(format_args!("the store is in generation {generation} now"));
    nothing()
}

/// Ends the session of a live node's lifeline, as an operator does who terminates a backend.
fn cut_lifeline(site: &Site, machine: Machine) -> BoxFuture<'static, ()> {
    let site = site.clone();
    Box::pin(async move {
        let Some(running) = machine.running() else { return };
        let rows = site.recorder.nodes().await.expect("the memory store does not fail by itself");
        let row = rows.into_iter().find(|row| row.registration.incarnation == running.me);
        if let Some(key) = row.and_then(|row| row.registration.lifeline)
            && site.recorder.inner().cut_lifeline(key)
        {
            site.tally.count(|coverage| coverage.cut_lifelines += 1);
            site.executor.world().note(format_args!("lifeline {} is cut", key.0));
        }
    })
}

fn cut_all_lifelines(site: &Site) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.cut_lifelines += 1);
    site.executor.world().note("all lifelines are cut");
    site.recorder.inner().cut_all_lifelines();
    nothing()
}

fn cut_network(site: &Site, machine: Machine, duration: Duration) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.cuts += 1);
    let (world, network) = (site.executor.world(), site.network.clone());
    network.cut(&machine.addr());
    Box::pin(async move {
        world.sleep(duration).await;
        network.mend(&machine.addr());
    })
}

/// What one machine sends to another is lost.
fn cut_one_way(site: &Site, from: &Machine, to: &Machine, duration: Duration) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.cuts += 1);
    let (world, network, from, to) = (site.executor.world(), site.network.clone(), from.addr(), to.addr());
    world.note(format_args!("nothing gets from {from} to {to}"));
    network.cut_one_way(&from, &to);
    Box::pin(async move {
        world.sleep(duration).await;
        network.mend(&from);
    })
}

fn reset(site: &Site, one: &Machine, other: &Machine) -> BoxFuture<'static, ()> {
    site.network.reset(&one.addr(), &other.addr());
    nothing()
}

fn rough_sea(site: &Site, duration: Duration) -> BoxFuture<'static, ()> {
    let (world, network) = (site.executor.world(), site.network.clone());
    world.note("the sea is rough");
    network.set_sea(Sea::Rough);
    Box::pin(async move {
        world.sleep(duration).await;
        network.set_sea(Sea::Calm);
    })
}

/// As an operator restarts a node: it drains, then it ends; a supervisor starts it again.
fn restart(machine: Machine, patience: Duration) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        machine.drain(patience).await;
        machine.shut_down(PATIENCE).await;
    })
}

/// One after the other, or all at once.
fn rolling_restart(machines: &[Machine], dice: &mut Dice) -> BoxFuture<'static, ()> {
    let restarts: Vec<_> =
        machines.iter().map(|machine| restart(machine.clone(), Duration::from_millis(500))).collect();
    if dice.chance(300) {
        return Box::pin(async move { drop(join_all(restarts).await) });
    }
    Box::pin(async move {
        for restart in restarts {
            restart.await;
        }
    })
}

/// Nobody reaches the store.
fn outage(site: &Site, machines: &[Machine], duration: Duration) -> BoxFuture<'static, ()> {
    site.tally.count(|coverage| coverage.cuts += 1);
    let (world, machines) = (site.executor.world(), machines.to_vec());
    let all = move |weather| machines.iter().for_each(|machine| *lock(&machine.weather) = weather);
    world.note("nobody reaches the store");
    all(Weather::Cut);
    Box::pin(async move {
        world.sleep(duration).await;
        all(Weather::Calm);
    })
}

fn weather(world: Process, machine: Machine, dice: &mut Dice, duration: Duration) -> BoxFuture<'static, ()> {
    let kinds =
        [Weather::Breezy, Weather::Storm, Weather::Storm, Weather::LeasesCut, Weather::RecordsCut, Weather::Cut];
    let kind = kinds[dice.index(kinds.len())];
    world.note(format_args!("weather {kind:?}"));
    *lock(&machine.weather) = kind;
    Box::pin(async move {
        world.sleep(duration).await;
        *lock(&machine.weather) = Weather::Calm;
    })
}
