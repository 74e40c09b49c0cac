//! Many conversations at once, and a store that is slow: each scene with everything in place, and again without the rule that
//! carries it.

use std::time::Duration;

use conch_core::conversation::ConversationKind;
use conch_core::refusal::Refusal;
use conch_core::sequencer::Receipt;
use conch_core::wire::link::OwnedQuery;
use conch_server::events::Event;
use conch_server::rules::Rule;
use conch_server::seams::Clock as _;
use conch_sim::machine::Removed;
use conch_store::faulty::Call;
use futures_util::future::join_all;

use crate::scene::{Scene, Setting, play, play_in, whole, without_routing};

impl Scene {
    /// A message to every conversation, through this node.
    async fn say_everywhere(&self, node: usize, key: &str) {
        let said = self.site.conversations.iter().map(|room| self.send_to(room, node, key));
        for answer in join_all(said.collect::<Vec<_>>()).await {
            assert!(answer.is_some_and(|answer| answer.is_ok()), "a calm store takes it");
        }
    }
}

/// Many conversations are given up one after the other, slowly. How long does a message take to the last one of them, in
/// milliseconds?
fn while_many_are_released(removed: Removed) -> Option<u128> {
    let mut setting = Setting { rooms: 200, ..Setting::of(1, removed) };
    setting.limits.owner.hibernate_after = Duration::from_millis(400);
    setting.limits.owner.release_after = Duration::from_secs(1);
    play_in(setting, |scene| async move {
        scene.slow_down(0, Call::Release, Duration::from_secs(2));
        scene.say_everywhere(0, "everywhere").await;
        let router = &scene.nodes[0].router;
        let all = OwnedQuery { after: None, contains: String::new(), limit: 1_000 };
        while router.owned_page(&all).owned.len() == router.owned() {
            scene.wait(10).await;
        }
        let last = scene.site.conversations.iter().max_by_key(|room| room.key).expect("there are some");
        let began = scene.world.now();
        let answer = scene.send_to(last, 0, "last").await;
        answer.is_some_and(|answer| answer.is_ok()).then(|| scene.world.now().since(began).as_millis())
    })
}

#[test]
fn who_writes_while_many_conversations_are_released_waits_for_its_own() {
    let took = while_many_are_released(whole());
    assert!(took.is_some_and(|ms| ms < 100), "{took:?}");
    let mutant = while_many_are_released(without_routing(Rule::SleepersGoOneByOne));
    assert!(mutant.is_none_or(|ms| ms > 2_000), "the rule is needed: {mutant:?}");
}

/// The store answers nobody who looks for an owner. What is a sender told within six seconds?
fn while_nobody_can_be_looked_up(removed: Removed) -> Option<Result<Receipt, Refusal>> {
    play(1, removed, |scene| async move {
        scene.slow_down(0, Call::Resolve, Duration::from_secs(60));
        scene.send_to(&scene.fresh_room(), 0, "new").await
    })
}

#[test]
fn looking_for_an_owner_ends_with_the_budget() {
    let refusal = while_nobody_can_be_looked_up(whole()).expect("an answer").expect_err("it is not written");
    assert!(refusal.retry.is_some(), "{refusal}");
    assert!(while_nobody_can_be_looked_up(without_routing(Rule::BudgetBoundsLooking)).is_none(), "the rule is needed");
}

/// The owner of many watched conversations dies, and claims that nobody waits for are few. How often is an owner looked up in
/// ten seconds?
fn after_the_death_of_a_followed_node(removed: Removed) -> u64 {
    let mut setting = Setting { rooms: 40, ..Setting::of(2, removed) };
    setting.limits.owner.claims_per_s = 1;
    setting.limits.owner.claims_burst = 1;
    play_in(setting, |scene| async move {
        scene.say_everywhere(0, "everywhere").await;
        let mut watched = Vec::new();
        for room in &scene.site.conversations {
            watched.push(scene.watch_room(room, 1).await.1.expect("a calm store lets it in"));
        }
        scene.nodes[0].process.kill();
        scene.wait(3_000).await;
        let before = scene.site.recorder.resolved();
        scene.wait(10_000).await;
        scene.site.recorder.resolved() - before
    })
}

#[test]
fn a_claim_that_nobody_waits_for_comes_back_when_its_turn_has_come() {
    let looked_up = after_the_death_of_a_followed_node(whole());
    assert!(looked_up <= 40 * 6, "each once in two seconds: {looked_up}");
    let mutant = after_the_death_of_a_followed_node(without_routing(Rule::ClaimsWaitTheirTurn));
    assert!(mutant > 2 * 40 * 6, "the rule is needed: {mutant}");
}

/// Many sessions are in the middle of a turn, and the patience of their node's drain is over. How many hand-overs are done
/// when each takes a second, and one and a half have passed?
fn when_patience_ends(removed: Removed) -> usize {
    let setting = Setting { rooms: 100, kind: ConversationKind::Session, ..Setting::of(2, removed) };
    play_in(setting, |scene| async move {
        scene.wait(30_000).await;
        scene.say_everywhere(0, "everywhere").await;
        scene.slow_down(0, Call::HandOff, Duration::from_secs(1));
        let router = scene.nodes[0].router.clone();
        scene.nodes[0].process.spawn("drain", async move { router.drain(Duration::ZERO).await });
        scene.wait(1_500).await;
        scene.events(0).iter().filter(|event| matches!(event, Event::HandedOff { .. })).count()
    })
}

#[test]
fn running_turns_are_handed_over_so_many_at_once() {
    let handed = when_patience_ends(whole());
    assert!((1..=64).contains(&handed), "{handed}");
    let mutant = when_patience_ends(without_routing(Rule::FewHandOverAtOnce));
    assert!(mutant > 64, "the rule is needed: {mutant}");
}
