//! The workspace around an incident: other channels in which people go on talking, with presence and typing.

use std::time::Duration;

use serde::Serialize;

use super::incident::GATHER_US;
use crate::bench::gateways::Gateways;
use crate::bench::histogram::Percentiles;
use crate::bench::load::{Checked, Delivered, Question};
use crate::bench::ramp::Growth;
use crate::bench::sessions::Sessions;
use crate::bench::{FanoutArgs, progress};
use crate::exit::Failure;

/// Channels that one session of the workspace is in; a server takes 100 of one socket.
const CHANNELS_A_SESSION: usize = 50;
/// Sessions that are in one channel.
const LISTENERS: usize = 2;
/// How long they may take to join.
const JOIN_MAX: Duration = Duration::from_secs(300);
/// How long the last messages may take to arrive.
const ARRIVE: usize = 30;

/// What was seen of it.
#[derive(Debug, Serialize)]
pub(super) struct Beside {
    workspace: Option<Workspace>,
    /// Live events pushed for each message, as asked for.
    live_per_message: u32,
    /// Live events that were pushed in the workspace.
    live_pushed: u64,
}

#[derive(Debug, Serialize)]
struct Workspace {
    channels: usize,
    /// Of what was asked for.
    percent: u32,
    from_per_second: f64,
    to_per_second: f64,
    sent: u64,
    refused: u64,
    deliveries: u64,
    checked: Checked,
    out_of_order: u64,
    delivery: Percentiles,
}

/// The workspace under way; without channels nothing.
pub(super) struct Around {
    sessions: Option<Sessions>,
    channels: usize,
    growth: Growth,
    percent: u32,
    live: u32,
    bytes: usize,
}

impl Around {
    /// Makes the channels and joins them.
    pub(super) async fn start(args: &FanoutArgs, gateways: &Gateways, ramp: Duration) -> Result<Self, Failure> {
        let share = f64::from(args.workspace_percent) / 100.0;
        let asked = args.workspace_channels as usize;
        let channels = if asked == 0 { 0 } else { ((asked as f64 * share) as usize).max(1) };
        let (from, to) = args.workspace_rate;
        let growth = Growth { from: from * share, to: to * share, over_s: ramp.as_secs_f64() };
        let (percent, live, bytes) = (args.workspace_percent, args.live, args.bytes as usize);
        let mut around = Self { sessions: None, channels, growth, percent, live, bytes };
        if channels == 0 {
            return Ok(around);
        }
        let name = format!("{}-around", gateways.conversation);
        progress(&format!("the workspace around it: {channels} channels"));
        gateways.create_numbered(&name, channels).await?;
        let each = CHANNELS_A_SESSION.min(channels);
        let count = (channels * LISTENERS).div_ceil(each);
        let more = [
            ("--common", "absent".to_owned()),
            ("--each", each.to_string()),
            ("--of", channels.to_string()),
            ("--gather-us", GATHER_US.to_string()),
        ];
        let mut sessions = Sessions::start(&gateways.wanted(&name, count, &more))?;
        sessions.connect(count, Duration::ZERO).await?;
        sessions.until_joined(count, JOIN_MAX).await?;
        around.sessions = Some(sessions);
        Ok(around)
    }

    /// They begin to talk.
    pub(super) async fn go(&mut self, ramp: Duration) -> Result<(), Failure> {
        let Some(sessions) = &mut self.sessions else { return Ok(()) };
        let growth = Growth { over_s: ramp.as_secs_f64(), ..self.growth };
        let (bytes, live) = (self.bytes, growth.times(f64::from(self.live)));
        sessions.look(&Question::Reset).await?;
        sessions.tell(|parts| Question::Send { growth: growth.times(1.0 / parts), bytes }).await?;
        sessions.tell(|parts| Question::Live { growth: live.times(1.0 / parts) }).await
    }

    /// They stop.
    pub(super) async fn quiet(&mut self) -> Result<(), Failure> {
        let Some(sessions) = &mut self.sessions else { return Ok(()) };
        let growth = Growth::steady(0.0);
        sessions.tell(|_| Question::Send { growth, bytes: 0 }).await?;
        sessions.tell(|_| Question::Live { growth }).await
    }

    /// What was seen.
    pub(super) async fn end(mut self) -> Result<Beside, Failure> {
        let mut beside = Beside { workspace: None, live_per_message: self.live, live_pushed: 0 };
        let Some(sessions) = &mut self.sessions else { return Ok(beside) };
        let mut checked = Checked::default();
        for _ in 0..ARRIVE {
            checked = sessions.check(&Question::CheckSent).await?;
            if checked.complete == checked.looked_at {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let Delivered { sent, not_sent, deliveries, out_of_order, latency, live, .. } =
            sessions.look(&Question::Look).await?;
        beside.live_pushed = live;
        beside.workspace = Some(Workspace {
            channels: self.channels,
            percent: self.percent,
            from_per_second: self.growth.from,
            to_per_second: self.growth.to,
            sent,
            refused: not_sent,
            deliveries,
            checked,
            out_of_order,
            delivery: latency.percentiles(),
        });
        Ok(beside)
    }
}

impl Beside {
    /// Its part of the table.
    pub(super) fn rows(&self, rows: &mut Vec<(String, String)>) {
        if self.live_per_message > 0 {
            let text = format!("{} for each message; {} in the workspace", self.live_per_message, self.live_pushed);
            rows.push(("typing and presence".to_owned(), text));
        }
        let Some(workspace) = &self.workspace else { return };
        let Workspace { channels, percent, from_per_second, to_per_second, .. } = workspace;
        let scaled = if *percent == 100 { String::new() } else { format!(" ({percent} % of what was asked for)") };
        rows.push((
            "the workspace around it".to_owned(),
            format!("{channels} channels, {from_per_second:.0} to {to_per_second:.0} messages a second{scaled}"),
        ));
        let Percentiles { p50_ms, p99_ms, max_ms, .. } = workspace.delivery;
        let Checked { looked_at, complete, missing, .. } = workspace.checked;
        rows.push((
            "its messages".to_owned(),
            format!(
                "{} sent, {} refused; {complete} of {looked_at} listeners have all, {missing} missing, {} out of order; \
                 p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, max {max_ms:.1} ms",
                workspace.sent, workspace.refused, workspace.out_of_order
            ),
        ));
    }
}
