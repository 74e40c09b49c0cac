//! What the sessions of a bench saw, second by second.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::load::{Delivered, Question};
use super::progress;
use super::sessions::Sessions;
use crate::exit::Failure;

/// Between two looks.
pub(super) const STEP: Duration = Duration::from_secs(1);
/// A line of progress is shown after so many of them.
const SHOWN_EVERY: usize = 5;

/// One look.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Step {
    /// Seconds from the beginning.
    pub(super) at_s: f64,
    pub(super) joined: usize,
    /// Lost their socket, and not yet caught up.
    pub(super) away: usize,
    pub(super) deliveries: u64,
    /// Of sessions that never lost their socket; `None` without a delivery.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
}

/// All looks, and their sum.
pub(super) struct Timeline {
    begun: Instant,
    pub(super) steps: Vec<Step>,
    /// Of all since the beginning.
    pub(super) all: Delivered,
    /// Of all since [`Timeline::mark`].
    pub(super) since: Delivered,
}

impl Timeline {
    /// Begins now. What was counted before is forgotten.
    pub(super) async fn begin(sessions: &mut Sessions) -> Result<Self, Failure> {
        sessions.look(&Question::Reset).await?;
        let (all, since) = (Delivered::nothing(), Delivered::nothing());
        Ok(Self { begun: Instant::now(), steps: Vec::new(), all, since })
    }

    /// Seconds since the beginning.
    pub(super) fn now_s(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// A part begins that is looked at by itself.
    pub(super) async fn mark(&mut self, sessions: &mut Sessions) -> Result<(), Failure> {
        self.look(sessions).await?;
        self.since = Delivered::nothing();
        Ok(())
    }

    /// Looks after the next step, and shows a line now and then.
    pub(super) async fn step(&mut self, sessions: &mut Sessions) -> Result<(), Failure> {
        tokio::time::sleep(STEP).await;
        self.look(sessions).await?;
        if self.steps.len().is_multiple_of(SHOWN_EVERY) {
            progress(&self.line());
        }
        Ok(())
    }

    /// Looks now.
    pub(super) async fn look(&mut self, sessions: &mut Sessions) -> Result<(), Failure> {
        let seen = sessions.look(&Question::Reset).await?;
        let shown = seen.latency.percentiles();
        let some = |figure: f64| (shown.count > 0).then_some(figure);
        self.steps.push(Step {
            at_s: self.now_s(),
            joined: seen.joined,
            away: seen.away,
            deliveries: seen.deliveries,
            p50_ms: some(shown.p50_ms),
            p99_ms: some(shown.p99_ms),
        });
        for sum in [&mut self.all, &mut self.since] {
            sum.add(&seen);
            (sum.joined, sum.away) = (seen.joined, seen.away);
        }
        Ok(())
    }

    fn line(&self) -> String {
        let Some(step) = self.steps.last() else { return String::new() };
        let figure = |figure: Option<f64>| figure.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
        let Delivered { out_of_order, refused, resyncs, .. } = &self.all;
        format!(
            "{:5.0} s: {} joined, {} away; {} deliveries, p50 {} ms, p99 {} ms; {out_of_order} out of order, {refused} \
             attempts refused, {resyncs} resyncs",
            step.at_s,
            step.joined,
            step.away,
            step.deliveries,
            figure(step.p50_ms),
            figure(step.p99_ms)
        )
    }
}
