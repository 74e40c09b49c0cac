//! What the node counts and measures, by Prometheus's conventions: prefix `conch_`, base units, `_total` on counters.
//!
//! Invariant: every label has a bounded set of values: an enum, a status, or a route out of at most [`ROUTES_MAX`]. Nothing
//! is labelled by conversation, subject or anything else that a client chooses.
//!
//! Deliberately absent: a global registry. One [`Metrics`] is made at start and handed to whoever counts.

mod labels;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use conch_core::refusal::Code;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use labels::{ClaimOutcome, EndedTurn, LinkOutcome, LinkRefusal, LiveTurn, Queue, Shed};

/// Most routes that get a label of their own; any further one counts as `other`.
pub const ROUTES_MAX: usize = 64;
/// The content type of OpenMetrics text.
pub const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The content type of the older Prometheus text.
pub const PROMETHEUS_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// From half a millisecond, a commit on a fast disk, to 10 s, where every request has timed out.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Records of one commit, in powers of two.
const BATCH: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0];

type Label = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;
type HistogramFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// A route and the status it was answered with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Answered {
    route: String,
    status: u16,
}

impl prometheus_client::encoding::EncodeLabelSet for Answered {
    fn encode(&self, encoder: &mut prometheus_client::encoding::LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        ([("route", self.route.as_str())], [("status", self.status.to_string())]).encode(encoder)
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

fn batches() -> Histogram {
    Histogram::new(BATCH)
}

/// Declares a metric once: its handle, type, name, unit, and its help from its documentation.
macro_rules! metrics {
    ($( $(#[doc = $doc:literal])+ $visibility:vis $field:ident : $type:ty = $new:expr, $name:literal $(in $unit:ident)?; )*) => {
        /// The handles. Counting is an atomic addition; a labelled count takes a read lock besides.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            /// The routes that have a label of their own.
            routes: RwLock<BTreeSet<String>>,
            $( $(#[doc = $doc])+ $visibility $field: $type, )*
        }

        impl Metrics {
            fn registered() -> Self {
                let mut registry = Registry::with_prefix("conch");
                $(
                    let $field: $type = $new;
                    // The library ends the help with a full stop of its own.
                    let help = concat!($($doc),+).trim().trim_end_matches('.');
                    metrics!(@register registry, $name, help, $field $(, $unit)?);
                )*
                Self { registry, routes: RwLock::default(), $( $field, )* }
            }
        }
    };
    (@register $registry:ident, $name:literal, $help:ident, $field:ident) => {
        $registry.register($name, $help, $field.clone());
    };
    (@register $registry:ident, $name:literal, $help:ident, $field:ident, $unit:ident) => {
        $registry.register_with_unit($name, $help, Unit::$unit, $field.clone());
    };
}

metrics! {
    /// Records committed.
    pub appends: Counter = Counter::default(), "appends";
    /// Writes acknowledged to their senders, duplicates included.
    pub acks: Counter = Counter::default(), "acks";
    /// Writes answered with the record they had made before.
    pub duplicates: Counter = Counter::default(), "duplicates";
    /// Writes that the store refused because their epoch, owner or generation had passed.
    pub fenced_writes: Counter = Counter::default(), "fenced_writes";
    /// Refusals that clients were sent, by code.
    refusals: Family<Label, Counter> = Family::default(), "refusals";
    /// Writes over a sender's rate.
    pub rate_limited: Counter = Counter::default(), "rate_limited";
    /// Time from the start of a commit to its end on disk.
    commit_duration: Histogram = seconds(), "commit_duration" in Seconds;
    /// Records in one commit.
    commit_batch: Histogram = batches(), "commit_batch_records";
    /// Times that a queue, table or window was at its limit.
    limit_hits: Family<Label, Counter> = Family::default(), "limit_hits";
    /// Conversations that wait for the end of a commit under way.
    pub commit_queue: Gauge = Gauge::default(), "commit_queue_conversations";
    /// Conversations that this node owns.
    pub owned_conversations: Gauge = Gauge::default(), "owned_conversations";
    /// Attempts to own a conversation, by outcome.
    claims: Family<Label, Counter> = Family::default(), "claims";
    /// Writes passed on to the owner on another node.
    pub forwarded: Counter = Counter::default(), "forwarded";
    /// Times that another node was asked and did not answer.
    pub link_failures: Counter = Counter::default(), "link_failures";
    /// Conversations handed to another node.
    pub handed_off: Counter = Counter::default(), "handed_off";
    /// Conversations taken over from a node that handed them on.
    pub adopted: Counter = Counter::default(), "adopted";
    /// Of those handed over, what went to even out or to its home.
    pub rebalanced: Counter = Counter::default(), "rebalanced";
    /// Owners that made no progress and lost their conversation to the watchdog.
    pub wedged_owners: Counter = Counter::default(), "wedged_owners";
    /// Time for which the node's lease may still be acted upon, as of the last heartbeat.
    lease_validity: Seconds = Gauge::default(), "lease_validity" in Seconds;
    /// Heartbeats that failed.
    pub heartbeat_failures: Counter = Counter::default(), "heartbeat_failures";
    /// Client connections open.
    pub connections: Gauge = Gauge::default(), "connections";
    /// WebSockets open.
    pub sockets: Gauge = Gauge::default(), "sockets";
    /// Server-Sent Event streams open.
    pub streams: Gauge = Gauge::default(), "sse_streams";
    /// Requests to peers, by outcome.
    link_requests: Family<Label, Counter> = Family::default(), "link_requests";
    /// Requests of peers that were answered.
    pub link_answers: Counter = Counter::default(), "link_answers";
    /// Links to peers.
    pub link_connections: Gauge = Gauge::default(), "link_connections";
    /// Links of peers to this node.
    pub link_peers: Gauge = Gauge::default(), "link_peers";
    /// Conversations followed at peers.
    pub link_streams: Gauge = Gauge::default(), "link_streams";
    /// Conversations that peers follow here.
    pub link_followed: Gauge = Gauge::default(), "link_followed";
    /// Bytes sent to peers, without TLS.
    pub link_sent: Counter = Counter::default(), "link_sent" in Bytes;
    /// Bytes received from peers, without TLS.
    pub link_received: Counter = Counter::default(), "link_received" in Bytes;
    /// Notices and reports to peers that were dropped.
    pub link_dropped: Counter = Counter::default(), "link_dropped";
    /// Connections that the link's listener refused, by reason.
    link_refusals: Family<Label, Counter> = Family::default(), "link_refusals";
    /// Conversations with a hub on this node.
    pub hubs: Gauge = Gauge::default(), "hubs";
    /// Sessions joined to a conversation on this node.
    pub sessions: Gauge = Gauge::default(), "sessions";
    /// Records and events handed to sessions.
    pub deliveries: Counter = Counter::default(), "deliveries";
    /// Bytes handed to sessions.
    pub delivered: Counter = Counter::default(), "delivered" in Bytes;
    /// Times that a session's outbox was over its limit.
    pub slow_sessions: Counter = Counter::default(), "slow_sessions";
    /// Live events dropped for slow sessions.
    pub live_dropped: Counter = Counter::default(), "live_events_dropped";
    /// Sessions told to load the latest page and continue from there.
    pub resyncs: Counter = Counter::default(), "resyncs";
    /// What is shed: 0 nothing, 1 typing, 2 presence by name, 3 presence, 4 windows grow, 5 catch-up slows, 6 newcomers.
    pub shed_rung: Gauge = Gauge::default(), "shed_rung";
    /// What was shed, by what.
    shed: Family<Label, Counter> = Family::default(), "shed";
    /// Sessions caught up record by record.
    pub catch_ups: Counter = Counter::default(), "catch_ups";
    /// Pages read from the store for those who catch up.
    pub catch_up_reads: Counter = Counter::default(), "catch_up_reads";
    /// Pages that somebody caught up with and somebody else had read.
    pub catch_up_shared: Counter = Counter::default(), "catch_up_shared";
    /// Reads that had to wait for their turn.
    pub catch_up_waits: Counter = Counter::default(), "catch_up_waits";
    /// Sessions told to load the latest page because a read's turn did not come in time.
    pub catch_up_resyncs: Counter = Counter::default(), "catch_up_resyncs";
    /// Turns that have not ended, by state.
    turns: Family<Label, Gauge> = Family::default(), "turns";
    /// Turns that ended, by how.
    turns_ended: Family<Label, Counter> = Family::default(), "turns_ended";
    /// HTTP requests answered, by route and status.
    http_requests: Family<Answered, Counter> = Family::default(), "http_requests";
    /// Time from a request's head to its answer's head, by route.
    http_duration: HistogramFamily<[(&'static str, String); 1]> = Family::new_with_constructor(seconds as fn() -> Histogram), "http_request_duration" in Seconds;
}

impl Metrics {
    /// All metrics, at zero; every label value of an enum is there from the start, so that a rate never misses its first.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self::registered();
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        metrics.registry.register("build", "The running version", version);
        for code in Code::ALL {
            drop(metrics.refusals.get_or_create(&[("code", code.as_str())]));
        }
        for queue in Queue::ALL {
            drop(metrics.limit_hits.get_or_create(&queue.label()));
        }
        for what in Shed::ALL {
            drop(metrics.shed.get_or_create(&what.label()));
        }
        for outcome in ClaimOutcome::ALL {
            drop(metrics.claims.get_or_create(&outcome.label()));
        }
        for outcome in LinkOutcome::ALL {
            drop(metrics.link_requests.get_or_create(&outcome.label()));
        }
        for reason in LinkRefusal::ALL {
            drop(metrics.link_refusals.get_or_create(&reason.label()));
        }
        for state in LiveTurn::ALL {
            drop(metrics.turns.get_or_create(&state.label()));
        }
        for state in EndedTurn::ALL {
            drop(metrics.turns_ended.get_or_create(&state.label()));
        }
        metrics
    }

    /// Counts a refusal.
    pub fn refused(&self, code: Code) {
        self.refusals.get_or_create(&[("code", code.as_str())]).inc();
    }

    /// Counts a commit of `records` records.
    pub fn committed(&self, records: usize, took: Duration) {
        self.commit_duration.observe(took.as_secs_f64());
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        self.commit_batch.observe(f64::from(records));
        self.appends.inc_by(records.into());
    }

    /// Counts that something was at its limit.
    pub fn limit_hit(&self, queue: Queue) {
        self.limit_hits.get_or_create(&queue.label()).inc();
    }

    /// Counts that something was shed.
    pub fn shed(&self, what: Shed) {
        self.shed.get_or_create(&what.label()).inc();
    }

    /// Counts an attempt to own a conversation.
    pub fn claimed(&self, outcome: ClaimOutcome) {
        self.claims.get_or_create(&outcome.label()).inc();
    }

    /// Counts a request to a peer.
    pub fn link_asked(&self, outcome: LinkOutcome) {
        self.link_requests.get_or_create(&outcome.label()).inc();
    }

    /// Counts a connection that the link's listener refused.
    pub fn link_refused(&self, reason: LinkRefusal) {
        self.link_refusals.get_or_create(&reason.label()).inc();
    }

    /// Says for how long the lease may still be acted upon.
    pub fn lease_valid_for(&self, left: Duration) {
        self.lease_validity.set(left.as_secs_f64());
    }

    /// The gauge of turns in a state, to be kept by whoever runs them.
    #[must_use]
    pub fn turns(&self, state: LiveTurn) -> Gauge {
        self.turns.get_or_create_owned(&state.label())
    }

    /// Counts the end of a turn.
    pub fn turn_ended(&self, state: EndedTurn) {
        self.turns_ended.get_or_create(&state.label()).inc();
    }

    /// Counts an answered request. `route` is the matched pattern (`/v1/conversations/{id}`), never the path itself;
    /// `None`: no route matched.
    pub fn answered(&self, route: Option<&str>, status: u16, took: Duration) {
        let label = [("route", self.route_label(route.unwrap_or("none")).to_owned())];
        self.http_duration.get_or_create(&label).observe(took.as_secs_f64());
        let [(_, route)] = label;
        self.http_requests.get_or_create(&Answered { route, status }).inc();
    }

    /// The route itself while there is room for it. The set only grows, so a poisoned lock is as good as another.
    fn route_label<'a>(&self, route: &'a str) -> &'a str {
        if self.routes.read().unwrap_or_else(PoisonError::into_inner).contains(route) {
            return route;
        }
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.len() >= ROUTES_MAX && !routes.contains(route) {
            return "other";
        }
        routes.insert(route.to_owned());
        route
    }

    /// Everything as text, with its content type: OpenMetrics where the scraper's `Accept` names it, else Prometheus 0.0.4.
    #[must_use]
    pub fn encode(&self, accept: &str) -> (&'static str, String) {
        let mut page = String::new();
        let (content_type, encoded) = if accept.contains("application/openmetrics-text") {
            (OPENMETRICS_TYPE, text::encode(&mut page, &self.registry))
        } else {
            (PROMETHEUS_TYPE, prometheus_text::encode(&mut page, &self.registry))
        };
        encoded.expect("a String takes every write");
        (content_type, page)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(metrics: &Metrics) -> String {
        metrics.encode("").1
    }

    #[test]
    fn counts_come_out_under_their_names() {
        let metrics = Metrics::new();
        metrics.acks.inc();
        metrics.delivered.inc_by(200);
        metrics.refused(Code::Overloaded);
        metrics.committed(3, Duration::from_millis(2));
        metrics.limit_hit(Queue::Outbox);
        metrics.commit_queue.set(7);
        metrics.claimed(ClaimOutcome::Won);
        metrics.lease_valid_for(Duration::from_millis(11_500));
        metrics.turns(LiveTurn::Running).inc();
        metrics.turn_ended(EndedTurn::Failed);
        metrics.answered(Some("/v1/conversations/{id}"), 201, Duration::from_millis(1));
        let page = page(&metrics);
        for line in [
            "conch_acks_total 1",
            "conch_appends_total 3",
            "conch_delivered_bytes_total 200",
            "conch_refusals_total{code=\"overloaded\"} 1",
            "conch_refusals_total{code=\"draining\"} 0",
            "conch_commit_duration_seconds_bucket{le=\"0.0025\"} 1",
            "conch_commit_batch_records_sum 3.0",
            "conch_limit_hits_total{queue=\"outbox\"} 1",
            "conch_commit_queue_conversations 7",
            "conch_claims_total{outcome=\"won\"} 1",
            "conch_lease_validity_seconds 11.5",
            "conch_turns{state=\"running\"} 1",
            "conch_turns_ended_total{state=\"failed\"} 1",
            "conch_http_requests_total{route=\"/v1/conversations/{id}\",status=\"201\"} 1",
            "conch_http_request_duration_seconds_count{route=\"/v1/conversations/{id}\"} 1",
            "# TYPE conch_acks_total counter",
            "# HELP conch_fenced_writes_total Writes that the store refused because their epoch, owner or generation had passed.",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(page.contains(&format!("version=\"{}\"", env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn names_follow_the_conventions() {
        let page = page(&Metrics::new());
        let mut names = BTreeSet::new();
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').expect("a name and a type");
            assert!(name.starts_with("conch_") && names.insert(name.to_owned()), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!name.contains("_ms") && !name.contains("total_total"), "{name}");
        }
        assert!(names.len() > 20, "{names:?}");
    }

    #[test]
    fn labels_stay_bounded_whatever_clients_ask_for() {
        let metrics = Metrics::new();
        for number in 0..10 * ROUTES_MAX {
            metrics.answered(Some(&format!("/{number}")), 404, Duration::ZERO);
        }
        metrics.answered(None, 404, Duration::ZERO);
        metrics.answered(Some("/0"), 404, Duration::ZERO);
        let page = page(&metrics);
        let routes = page.lines().filter(|line| line.starts_with("conch_http_requests_total{")).count();
        assert_eq!(routes, ROUTES_MAX + 1, "the named ones and `other`");
        assert!(page.contains("conch_http_requests_total{route=\"/0\",status=\"404\"} 2"));
    }

    #[test]
    fn the_format_is_the_one_that_is_asked_for() {
        let metrics = Metrics::new();
        let (content_type, page) = metrics.encode("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert!(content_type == OPENMETRICS_TYPE && page.ends_with("# EOF\n"));
        let (content_type, page) = metrics.encode("*/*");
        assert!(content_type == PROMETHEUS_TYPE && !page.contains("# EOF"));
    }
}
