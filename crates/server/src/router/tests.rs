//! What the simulation does not show of the router.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::*;
use crate::config::Config;
use crate::testing;

#[tokio::test]
async fn a_look_that_began_before_a_call_says_nothing_of_its_peer() {
    let node = testing::node(&Config::default(), testing::empty_store());
    let router = testing::router(&node);
    let peer = Peer { incarnation: Incarnation(7), addr: "127.0.0.1:1".to_owned() };
    let before = node.seams.now();
    let call = std::future::pending::<Result<(), LinkError>>();
    let mut waiting = pin!(router.while_it_lives(&peer, call));
    assert!(waiting.as_mut().now_or_never().is_none(), "nobody looked");
    node.nodes.set(Vec::new(), Monotonic(before.0 - 1));
    assert!(waiting.as_mut().now_or_never().is_none(), "the peer may have come since");
    node.nodes.set(Vec::new(), node.seams.now());
    let answer = waiting.as_mut().now_or_never();
    assert!(matches!(answer, Some(Err(LinkError::Ambiguous(_)))), "{answer:?}");
}
