//! The listener over real sockets, with a clock that only the test moves.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use conch_core::time::{Monotonic, Timestamp};
use futures_util::future::BoxFuture;

use super::*;

/// No test waits this long unless it fails.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct ManualClock(AtomicU64);

impl ManualClock {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_nanos()).expect("short"), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Monotonic {
        Monotonic(self.0.load(Ordering::SeqCst))
    }
    fn wall(&self) -> Timestamp {
        Timestamp(0)
    }
    fn sleep_until(&self, _at: Monotonic) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

struct Fixture {
    listener: OpsListener,
    ops: Ops,
    clock: Arc<ManualClock>,
}

fn start() -> Fixture {
    let clock = Arc::new(ManualClock::default());
    let ops = Ops {
        readiness: Readiness::new(),
        progress: ProgressBoard::new(Duration::from_secs(15)),
        metrics: Arc::new(Metrics::new()),
        clock: clock.clone(),
    };
    let addr = "127.0.0.1:0".parse().expect("an address");
    let listener = OpsListener::start(addr, ops.clone()).expect("started");
    Fixture { listener, ops, clock }
}

/// Sends raw bytes and reads to the end of the connection.
fn raw(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = std::net::TcpStream::connect(addr).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(request).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("answered");
    String::from_utf8(answer).expect("text")
}

fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    let answer = raw(addr, format!("GET {path} HTTP/1.1\r\nhost: ops\r\n\r\n").as_bytes());
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), body.to_owned())
}

#[test]
fn readiness_follows_the_state() {
    let Fixture { listener, ops, .. } = start();
    let steps = [
        (ReadinessState::Starting, 503, "starting"),
        (ReadinessState::Ready, 200, "ready"),
        (ReadinessState::Draining, 503, "draining"),
        (ReadinessState::LeaseLost, 503, "lease_lost"),
    ];
    for (state, status, name) in steps {
        ops.readiness.advance(state);
        let (found, body) = get(listener.addr(), "/readyz");
        let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((found, body["status"].as_str()), (status, Some(name)));
        assert!(body["reason"].as_str().is_some_and(|reason| !reason.is_empty()));
        assert_eq!(get(listener.addr(), "/livez").0, 200, "{name} is alive");
    }
    listener.stop();
}

/// Every thread of the main runtime is blocked; the answers come all the same, and tell busy from wedged.
#[test]
fn probes_fail_under_load() {
    const THREADS: usize = 2;
    let Fixture { listener, ops, clock } = start();
    let main = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).build().expect("a runtime");
    let worker = ops.progress.register("main", clock.now()).expect("room");
    ops.readiness.advance(ReadinessState::Ready);

    let (blocked, is_blocked) = mpsc::channel();
    let mut releases = Vec::new();
    for _ in 0..THREADS {
        let (release, released) = mpsc::channel::<()>();
        releases.push(release);
        let blocked = blocked.clone();
        main.spawn(async move {
            blocked.send(()).expect("the test listens");
            // Blocks the thread, as a wedged call would; an error is the end of the test.
            let _ = released.recv();
        });
    }
    for _ in 0..THREADS {
        is_blocked.recv_timeout(PATIENCE).expect("each thread is taken");
    }
    let (ran, has_run) = mpsc::channel();
    let (shared, tick_clock) = (Arc::new(worker), clock.clone());
    let ticking = shared.clone();
    main.spawn(async move {
        ticking.tick(tick_clock.now());
        ran.send(()).expect("the test listens");
    });

    assert_eq!(get(listener.addr(), "/readyz").0, 200);
    assert_eq!(get(listener.addr(), "/livez").0, 200);
    clock.advance(Duration::from_secs(10));
    let (status, body) = get(listener.addr(), "/livez");
    assert!(status == 200 && body.contains(r#""status":"busy","reason":"slow progress: main""#), "{status} {body}");
    clock.advance(Duration::from_secs(5));
    let (status, body) = get(listener.addr(), "/livez");
    assert!(status == 503 && body.contains(r#""status":"wedged","reason":"no progress: main""#), "{status} {body}");
    assert!(body.contains(r#""workers":[{"name":"main","state":"wedged","quiet_ms":15000}]"#), "{body}");
    let (status, page) = get(listener.addr(), "/metrics");
    assert!(status == 200 && page.contains("conch_appends_total 0"), "{status} {page}");
    assert!(has_run.try_recv().is_err(), "the main runtime was blocked all along");

    drop(releases);
    has_run.recv_timeout(PATIENCE).expect("the main runtime goes on");
    assert_eq!(get(listener.addr(), "/livez").0, 200);
    listener.stop();
}

#[test]
fn what_it_does_not_know_is_a_problem_document() {
    let Fixture { listener, .. } = start();
    let addr = listener.addr();
    let (status, body) = get(addr, "/v1/nodes");
    assert!(status == 404 && body.contains(r#""code":"not_found""#), "{status} {body}");
    let answer = raw(addr, b"POST /livez HTTP/1.1\r\nhost: ops\r\ncontent-length: 0\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD"), "{answer}");
    let answer = raw(addr, b"HEAD /livez HTTP/1.1\r\nhost: ops\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = raw(addr, b"GET /metrics HTTP/1.1\r\nhost: ops\r\naccept: application/openmetrics-text\r\n\r\n");
    assert!(answer.contains("content-type: application/openmetrics-text") && answer.ends_with("# EOF\n"), "{answer}");
    let answer = raw(addr, b"nonsense\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    listener.stop();
}

#[test]
fn a_long_head_is_refused() {
    let Fixture { listener, .. } = start();
    let mut request = b"GET /livez HTTP/1.1\r\nhost: ops\r\nx: ".to_vec();
    // Exactly as much as the buffer holds: nothing is left unread, so that the answer is not lost to a reset.
    request.resize(HEADER_MAX_BYTES, b'x');
    let answer = raw(listener.addr(), &request);
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    listener.stop();
}

#[test]
fn a_stop_is_not_held_up_by_a_connection_that_asks_nothing() {
    let Fixture { listener, .. } = start();
    let mut idle = std::net::TcpStream::connect(listener.addr()).expect("connected");
    idle.set_read_timeout(Some(PATIENCE)).expect("set");
    listener.stop();
    // The thread has ended, and with it every connection: end of stream, or a reset if it was not accepted yet.
    let end = idle.read(&mut [0; 1]);
    let is_cut = match &end {
        Ok(bytes) => *bytes == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    };
    assert!(is_cut, "{end:?}");
}

#[test]
fn an_address_in_use_is_an_error() {
    let Fixture { listener, ops, .. } = start();
    let error = OpsListener::start(listener.addr(), ops).err().expect("in use");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
