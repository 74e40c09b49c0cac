//! Tables on the executor: order, time, halts, and the same bytes for the same seed.

use std::sync::atomic::{AtomicU64, Ordering};

use conch_core::time::Monotonic;
use conch_server::seams::Clock as _;
use tokio::sync::{mpsc, oneshot, watch};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn executor(seed: u64) -> Executor {
    Executor::new(seed, Limits { steps: 50_000, time: Duration::from_secs(120) }, TraceMode::Full)
}

/// A workload with every primitive that the server uses: channels, timers, random draws, several processes.
fn toy(seed: u64) -> String {
    let executor = executor(seed);
    let world = executor.world();
    let main = {
        let executor = executor.clone();
        async move {
            let (sender, mut received) = mpsc::channel::<(usize, u64)>(2);
            let (stage, _) = watch::channel(0_u64);
            for number in 0..4 {
                let process = executor.process(&format!("p{number}"), ClockStart::default());
                let (seams, sender, mut stage) = (process.seams(), sender.clone(), stage.subscribe());
                process.spawn("worker", async move {
                    for _ in 0..5 {
                        seams.sleep(seams.jitter(SECOND)).await;
                        if sender.send((number, seams.random.bits() % 100)).await.is_err()
                            || stage.changed().await.is_err()
                        {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let mut seen = 0;
            while let Some((number, drawn)) = received.recv().await {
                world.note(format_args!("p{number} drew {drawn}"));
                seen += 1;
                stage.send_replace(seen);
            }
            seen
        }
    };
    assert_eq!(executor.run(main), Ok(20));
    executor.trace().text()
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_gives_others() {
    for seed in 0..20 {
        assert_eq!(toy(seed), toy(seed), "seed {seed} is not reproducible");
        assert_ne!(toy(seed), toy(seed + 1), "seeds {seed} and {} do the same", seed + 1);
    }
}

#[test]
fn time_jumps_to_the_next_timer() {
    let executor = executor(1);
    let world = executor.world();
    let ended = executor.run(async move {
        world.sleep(Duration::from_secs(100)).await;
        world.now()
    });
    assert!(ended.expect("ends") >= Monotonic(0) + Duration::from_secs(100));
    assert!(executor.steps() < 10, "nobody polls while time passes");
}

#[test]
fn a_deadlock_is_named_with_those_who_wait() {
    let executor = executor(1);
    let world = executor.world();
    let stuck = executor.run(async move {
        let (_kept, never) = oneshot::channel::<()>();
        world.spawn("sleeper", async move {
            let (_kept, never) = oneshot::channel::<()>();
            let _ = never.await;
        });
        let _ = never.await;
    });
    assert_eq!(stuck, Err(Stuck::Deadlock("world t0 main, world t1 sleeper".to_owned())));
}

#[test]
fn endless_work_and_endless_waiting_are_bounded() {
    let busy = executor(1).run(async {
        loop {
            yield_once().await;
        }
    });
    assert_eq!(busy, Err::<(), _>(Stuck::Steps(50_000)));
    let idle = executor(1);
    let world = idle.world();
    let waited = idle.run(async move {
        loop {
            world.sleep(SECOND).await;
        }
    });
    assert_eq!(waited, Err::<(), _>(Stuck::Time(Duration::from_secs(120))));
}

#[test]
fn a_panic_ends_the_run_with_the_task_and_its_message() {
    let executor = executor(1);
    let world = executor.world();
    let stuck = executor.run(async move {
        world.spawn("faulty", async { panic!("as asked") });
        world.sleep(SECOND).await;
    });
    assert_eq!(stuck, Err(Stuck::Panicked { task: "t1 faulty".to_owned(), message: "as asked".to_owned() }));
}

async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Starts two tasks that count seconds, one of them on a thread of its own, and returns their counts.
fn counting(process: &Process) -> (Arc<AtomicU64>, Arc<AtomicU64>) {
    let counts = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let beat = |count: Arc<AtomicU64>, process: Process| async move {
        loop {
            process.sleep(SECOND).await;
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    process.spawn("shared", beat(counts.0.clone(), process.clone()));
    process.seams().spawner.spawn_dedicated("dedicated", Box::pin(beat(counts.1.clone(), process.clone())));
    counts
}

#[test]
fn a_halt_stops_what_it_says_and_nothing_else() {
    let cases =
        [(Halt::Process, 0, 0), (Halt::Machine, 0, 0), (Halt::SharedThreads, 0, 10), (Halt::Named("dedicated"), 10, 0)];
    for (halt, shared, dedicated) in cases {
        let executor = executor(3);
        let world = executor.world();
        let process = executor.process("p", ClockStart::default());
        let counted = executor.run(async move {
            let counts = counting(&process);
            process.halt(halt);
            world.sleep(Duration::from_millis(10_500)).await;
            let halted = (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed));
            process.resume(halt);
            world.sleep(SECOND * 5).await;
            assert!(counts.0.load(Ordering::Relaxed) > shared && counts.1.load(Ordering::Relaxed) > dedicated);
            halted
        });
        assert_eq!(counted, Ok((shared, dedicated)), "{halt:?}");
    }
}

#[test]
fn clocks_start_jump_and_stand_still_as_told() {
    let executor = executor(4);
    let world = executor.world();
    let process = executor.process("p", ClockStart { boot_ns: 50_000_000_000, wall_ms: 1_000 });
    let ended = executor.run(async move {
        let start = process.now();
        assert!(start >= Monotonic(50_000_000_000) && process.wall().0 >= 1_000);
        process.halt(Halt::Process);
        world.sleep(SECOND * 10).await;
        process.resume(Halt::Process);
        assert!(process.now().since(start) >= SECOND * 10, "a stopped process's clock goes on");

        let frozen = process.now();
        process.halt(Halt::Machine);
        world.sleep(SECOND * 10).await;
        assert_eq!(process.now(), frozen);
        process.resume(Halt::Machine);
        assert!(process.now().since(frozen) < SECOND, "a paused machine's clock stands still");

        let before = process.now();
        let sleeper = process.sleep(SECOND * 30);
        process.jump_clock(SECOND * 30);
        sleeper.await;
        assert!(process.now().since(before) < SECOND * 31, "a jump fires the timers that it passes");
        process.shift_calendar(-500_000);
        assert!(process.wall().0 < 0);
    });
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_killed_process_drops_its_tasks_and_spawns_no_more() {
    let executor = executor(5);
    let world = executor.world();
    let process = executor.process("p", ClockStart::default());
    let ended = executor.run(async move {
        let counts = counting(&process);
        let (held, mut dropped) = oneshot::channel::<()>();
        process.spawn("holder", async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        world.sleep(Duration::from_millis(2_500)).await;
        process.kill();
        assert_eq!(dropped.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        counting(&process);
        world.sleep(SECOND * 5).await;
        assert!(!process.is_alive());
        (counts.0.load(Ordering::Relaxed), Arc::strong_count(&counts.0))
    });
    assert_eq!(ended, Ok((2, 1)));
}

#[test]
fn a_task_may_kill_its_own_process() {
    let executor = executor(6);
    let world = executor.world();
    let process = executor.process("p", ClockStart::default());
    let ended = executor.run(async move {
        let (sender, mut received) = mpsc::channel::<&'static str>(4);
        let victim = process.clone();
        process.spawn("suicide", async move {
            let _ = sender.send("before").await;
            victim.kill();
            yield_once().await;
            let _ = sender.send("after").await;
        });
        world.sleep(SECOND).await;
        (received.recv().await, received.recv().await)
    });
    assert_eq!(ended, Ok((Some("before"), None)));
}
