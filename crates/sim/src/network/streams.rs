//! Follow streams across the simulated network: frames arrive in order, later, until the stream breaks.

use std::time::Duration;

use conch_core::time::Monotonic;
use conch_server::owner::{Follow, FollowFrame, Reports};
use conch_server::seams::Clock as _;
use futures_util::future::{Either, select};
use tokio::sync::{mpsc, watch};

use super::Network;
use crate::executor::Process;

/// Frames on the way of one stream, on either side of it.
const ON_THE_WAY: usize = 64;
/// Time between two tries to get through a cut.
const RETRANSMIT: Duration = Duration::from_millis(200);

/// A frame and when it was sent, on the world's clock.
type Sent = (Monotonic, FollowFrame);

/// Lays a stream from a process that follows its own owner to whoever asked: `(from, to)` are their addresses. Returns what
/// the other end gets.
pub(super) fn lay(network: &Network, process: &Process, (from, to): (String, String), follow: Follow) -> Follow {
    let (wire, sent) = mpsc::channel(ON_THE_WAY);
    let (far_end, arrived) = mpsc::channel(ON_THE_WAY);
    process.spawn("link-stream", send(network.world.clone(), follow.frames, wire));
    let resets = network.resets(&from, &to);
    let reports = reports(network, process, (to.clone(), from.clone()), follow.reports);
    let travelling = Travelling { network: network.clone(), from, to, resets };
    network.world.spawn("wire stream", travelling.run(sent, far_end));
    Follow { frames: arrived, reports, ..follow }
}

/// The near end, in the owner's process.
async fn send(world: Process, mut frames: mpsc::Receiver<FollowFrame>, wire: mpsc::Sender<Sent>) {
    loop {
        let frame = match select(Box::pin(frames.recv()), Box::pin(wire.closed())).await {
            Either::Left((Some(frame), _)) => frame,
            Either::Left((None, _)) | Either::Right(_) => return,
        };
        if wire.send((world.now(), frame)).await.is_err() {
            return;
        }
    }
}

struct Travelling {
    network: Network,
    from: String,
    to: String,
    resets: watch::Receiver<u64>,
}

impl Travelling {
    async fn run(mut self, mut sent: mpsc::Receiver<Sent>, far_end: mpsc::Sender<FollowFrame>) {
        let mut last = self.network.world.now();
        loop {
            let broken = Box::pin(select(Box::pin(self.resets.changed()), Box::pin(far_end.closed())));
            let (sent_at, frame) = match select(Box::pin(sent.recv()), broken).await {
                Either::Left((Some(next), _)) => next,
                Either::Left((None, _)) | Either::Right(_) => return,
            };
            let (delay, breaks) = self.network.next_of_a_stream();
            if breaks {
                self.network.tally.count(|coverage| coverage.broken_streams += 1);
                return;
            }
            last = last.max(sent_at + delay);
            let arrives = self.arrival(last);
            if matches!(select(Box::pin(arrives), Box::pin(far_end.closed())).await, Either::Right(_)) {
                return;
            }
            if self.resets.has_changed().unwrap_or(true) || far_end.send(frame).await.is_err() {
                return;
            }
        }
    }

    /// Nothing is lost on the way: through a cut it is sent again and again.
    async fn arrival(&self, at: Monotonic) {
        let world = &self.network.world;
        world.sleep_until(at).await;
        while self.network.is_lost(&self.from, &self.to) {
            world.sleep(RETRANSMIT).await;
        }
    }
}

/// The way back to the owner.
fn reports(network: &Network, process: &Process, (from, to): (String, String), reports: Reports) -> Reports {
    let (network, process) = (network.clone(), process.clone());
    Reports::new(move |report| {
        let (network, process, reports) = (network.clone(), process.clone(), reports.clone());
        let (from, to) = (from.clone(), to.clone());
        let (delay, _) = network.next_of_a_stream();
        let world = network.world.clone();
        world.clone().spawn("wire report", async move {
            world.sleep(delay).await;
            if !network.is_lost(&from, &to) {
                process.spawn("link-report", async move { reports.send(report) });
            }
        });
    })
}
