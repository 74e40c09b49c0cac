//! Due work whose owner is gone: claiming the conversation makes its new owner look at its turns.
//!
//! Invariant: what is due is tried by some node of those that it belongs to, whoever else died; not by all of them at once. What
//! cannot be taken up keeps nothing that comes behind it waiting: a poll goes on page after page.
//!
//! Deliberately absent: what is done about the work. The owner's turns see to that.

use std::sync::Arc;
use std::time::Duration;

use conch_core::due::{DueTable, Waiting};
use conch_core::ids::ConvRef;
use conch_core::placement::{Candidate, Intake, Wish};
use conch_store::{DueMark, DueQuery, DueRow};
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::within;
use crate::node::Node;
use crate::router::Router;
use crate::rules::Rule;

/// Time between two polls, and up to a fifth less.
const POLL: Duration = Duration::from_millis(500);
/// Due conversations of one page.
const PAGE: usize = 64;
/// Pages looked at in one poll; the next one goes on behind them.
const PAGES_MOST: usize = 8;
/// How long one page may take to be read.
const POLL_TIME: Duration = Duration::from_secs(5);

/// Polls until the router shuts down; at once when `wake` says that somebody died.
pub(super) async fn run(node: Arc<Node>, router: Router, wake: Arc<Notify>) {
    let mut search = Search::default();
    let mut pace = Pace::Calm;
    while !router.is_closed() {
        let lap = take_up(&node, &router, &mut search).await;
        if pace == Pace::Hurried && lap == Lap::GoesOn {
            continue;
        }
        let pause = POLL - node.seams.jitter(POLL / 5);
        // Both branches are cancel safe.
        pace = tokio::select! {
            biased;
            () = wake.notified() => Pace::Hurried,
            () = node.seams.sleep(pause) => Pace::Calm,
        };
    }
}

/// How the list is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// A bounded part at each poll.
    Calm,
    /// Somebody died: to the end of the list, without a pause.
    Hurried,
}

/// Whether there is more of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lap {
    GoesOn,
    /// The next look begins at its front.
    Ended,
}

/// Where the look through the list of due work stands.
#[derive(Default)]
struct Search {
    table: DueTable,
    after: Option<DueMark>,
}

/// Looks on until there is something to take up, or the list ends.
async fn take_up(node: &Node, router: &Router, search: &mut Search) -> Lap {
    for _ in 0..PAGES_MOST {
        let Some(page) = read(node, search.after.take()).await else { return Lap::Ended };
        let mine = mine(node, &mut search.table, &page);
        let took_some = !mine.is_empty();
        let claims = mine.into_iter().map(|conversation| async move {
            if let Err(refusal) = router.place(&conversation, None).await {
                tracing::debug!(conversation = %conversation.id, %refusal, "due work waits");
            }
        });
        join_all(claims.collect::<Vec<_>>()).await;
        let goes_on = page.len() == PAGE && node.rules.hold(Rule::DuePagesGoOn);
        search.after = page.last().filter(|_| goes_on).map(DueRow::mark);
        if !goes_on {
            search.table.lap_ended();
            return Lap::Ended;
        }
        if took_some {
            break;
        }
    }
    Lap::GoesOn
}

/// The next page. `None`: it could not be read, and the list is begun anew.
async fn read(node: &Node, after: Option<DueMark>) -> Option<Vec<DueRow>> {
    let query = DueQuery { region: node.region.clone(), after, limit: PAGE };
    match within(&node.seams, POLL_TIME, node.store.due(&query)).await {
        Some(Ok(rows)) => return Some(rows),
        Some(Err(error)) => tracing::debug!(%error, "the due rows could not be read"),
        None => tracing::debug!("the due rows could not be read in time"),
    }
    None
}

/// Which of these this node is to take up.
fn mine(node: &Node, table: &mut DueTable, page: &[DueRow]) -> Vec<ConvRef> {
    let now = node.seams.now();
    let due: Vec<ConvRef> = page.iter().map(|row| row.conversation.clone().into()).collect();
    let waiting = due.iter().zip(page).map(|(conversation, row)| Waiting {
        key: conversation.key,
        wish: Wish { regions: &row.regions, home: &row.home },
    });
    let waiting: Vec<Waiting<'_>> = waiting.collect();
    let takers = node.nodes.takers(node.me, now);
    let open = |incarnation, region| Candidate { incarnation, region, intake: Intake::Open };
    let others: Vec<Candidate<'_>> = takers.iter().map(|(incarnation, region)| open(*incarnation, region)).collect();
    let mine = table.poll(now, &waiting, open(node.me, &node.region), &others);
    mine.into_iter().map(|index| due[index].clone()).collect()
}
