//! What a stream watches, and what it looks at again.

use conch_store::faulty::{Call, Fault, FaultPlan, FaultyStore};
use conch_store::memory::MemoryStore;

use super::*;
use crate::config::Config;
use crate::testing;

/// Takes everything.
struct Sink;

impl FrameSink for Sink {
    fn push(&self, _frame: &Arc<Frame>) -> Push {
        Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &conch_core::refusal::Refusal) {}
}

/// Who was removed, or has left, costs nothing any more: no record of the conversation wakes the stream.
#[tokio::test(start_paused = true)]
async fn a_stream_stops_watching_what_its_subject_is_no_member_of() {
    let node = testing::node(&Config::default(), testing::empty_store());
    let people = People::new(node);
    let bob: Subject = "bob".parse().expect("valid");
    let conversation = |id: &str| ConvRef::from(id.parse::<ConversationId>().expect("valid"));
    let (left, kept) = (conversation("left"), conversation("kept"));
    let session = people.join(bob.clone(), Arc::new(Sink));
    for conversation in [&left, &kept] {
        people.membership(conversation, &bob, Change::Added);
    }
    tokio::time::sleep(WINDOW * 2).await;
    let watched = |conversation: &ConvRef| people.table().by_conversation.contains_key(&conversation.key);
    assert!(watched(&left) && watched(&kept));
    people.membership(&left, &bob, Change::Removed);
    tokio::time::sleep(WINDOW * 2).await;
    assert!(!watched(&left), "nobody watches it any more");
    assert!(watched(&kept));
    assert_eq!(people.table().watched[&session.id], BTreeSet::from([kept.key]));
    drop(session);
    assert!(!watched(&kept) && people.table().watched.is_empty());
}

/// Remembers the events' names and payloads.
#[derive(Default)]
struct Recording(Mutex<Vec<(String, serde_json::Value)>>);

impl Recording {
    fn take(&self) -> Vec<(String, serde_json::Value)> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl FrameSink for Recording {
    fn push(&self, frame: &Arc<Frame>) -> Push {
        let json = serde_json::from_str(frame.json()).expect("JSON");
        self.0.lock().expect("no panic").push((frame.event().to_owned(), json));
        Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn end(&self, _reason: &conch_core::refusal::Refusal) {}
}

/// Long enough for a look, and for what it sends.
const A_LOOK: Duration = Duration::from_secs(50);

#[tokio::test(start_paused = true)]
async fn what_no_notice_told_of_is_found_by_looking_again() {
    let node = testing::node(&Config::default(), testing::empty_store());
    testing::see_a_peer(&node);
    let conversation = testing::channel(&node, "c").await;
    let people = People::new(Arc::clone(&node));
    let bob: Subject = "bob".parse().expect("valid");
    let sink = Arc::new(Recording::default());
    let _session = people.join(bob.clone(), Arc::clone(&sink) as Arc<dyn FrameSink>);
    tokio::time::sleep(WINDOW).await;
    assert_eq!(sink.take(), [("caught_up".to_owned(), serde_json::json!({}))]);

    node.store.add_member(&conversation, &bob).await.expect("added");
    tokio::time::sleep(A_LOOK).await;
    let told = sink.take();
    assert_eq!(told[0], ("membership".to_owned(), serde_json::json!({"conversation": "c", "change": "added"})));
    assert_eq!((told[1].0.as_str(), &told[1].1["id"], told.len()), ("conversation", &serde_json::json!("c"), 2));

    let patch = conch_store::ConversationPatch { title: Some(Some("New".to_owned())), ..Default::default() };
    node.store.patch_conversation(&conversation, &patch).await.expect("patched");
    tokio::time::sleep(A_LOOK).await;
    let told = sink.take();
    assert_eq!((told[0].0.as_str(), &told[0].1["title"], told.len()), ("conversation", &serde_json::json!("New"), 1));
    tokio::time::sleep(A_LOOK).await;
    assert_eq!(sink.take(), [], "what is known is not told again");

    node.store.remove_member(&conversation, &bob).await.expect("removed");
    tokio::time::sleep(A_LOOK).await;
    let removed = ("membership".to_owned(), serde_json::json!({"conversation": "c", "change": "removed"}));
    assert_eq!(sink.take(), [removed]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_alone_does_not_look_again() {
    let node = testing::node(&Config::default(), testing::empty_store());
    let conversation = testing::channel(&node, "c").await;
    let people = People::new(Arc::clone(&node));
    let bob: Subject = "bob".parse().expect("valid");
    let sink = Arc::new(Recording::default());
    let _session = people.join(bob.clone(), Arc::clone(&sink) as Arc<dyn FrameSink>);
    node.store.add_member(&conversation, &bob).await.expect("added");
    people.membership(&conversation, &bob, Change::Added);
    tokio::time::sleep(WINDOW * 2).await;
    sink.take();
    node.store.remove_member(&conversation, &bob).await.expect("removed, and not told");
    tokio::time::sleep(A_LOOK).await;
    assert_eq!(sink.take(), []);
}

/// Takes so many frames, and has no room for any other, ever.
struct Stuck(Mutex<usize>);

impl FrameSink for Stuck {
    fn push(&self, _frame: &Arc<Frame>) -> Push {
        let mut room = self.0.lock().expect("no panic");
        if *room == 0 {
            return Push::Behind;
        }
        *room -= 1;
        Push::Accepted
    }

    fn room(&self) -> futures_util::future::BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn end(&self, _reason: &conch_core::refusal::Refusal) {}
}

#[tokio::test(start_paused = true)]
async fn clients_that_take_nothing_hold_up_nobody_elses_look() {
    let node = testing::node(&Config::default(), testing::empty_store());
    testing::see_a_peer(&node);
    let (first, second) = (testing::channel(&node, "first").await, testing::channel(&node, "second").await);
    let people = People::new(Arc::clone(&node));
    let (bob, carol): (Subject, Subject) = ("bob".parse().expect("valid"), "carol".parse().expect("valid"));
    // Room for `caught_up`.
    let stuck = (0..=look_again::LOOKS).map(|_| people.join(bob.clone(), Arc::new(Stuck(Mutex::new(1)))));
    let _stuck: Vec<PersonalSession> = stuck.collect();
    let sink = Arc::new(Recording::default());
    let _session = people.join(carol.clone(), Arc::clone(&sink) as Arc<dyn FrameSink>);
    tokio::time::sleep(WINDOW).await;
    node.store.add_member(&first, &bob).await.expect("added");
    tokio::time::sleep(A_LOOK).await;
    sink.take();
    // Each of the others has found something by now, and waits for room.
    node.store.add_member(&second, &carol).await.expect("added");
    tokio::time::sleep(A_LOOK).await;
    let told: Vec<String> = sink.take().into_iter().map(|(event, _)| event).collect();
    assert_eq!(told, ["membership", "conversation"]);
}

/// Counts reads of pages.
#[derive(Default)]
struct Pages(std::sync::atomic::AtomicUsize);

impl FaultPlan for Pages {
    fn next(&self, call: Call) -> Fault {
        if call == Call::Summaries {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        Fault::None
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_were_given_up_read_nothing_and_few_read_at_once() {
    let pages = Arc::new(Pages::default());
    let plan = Arc::clone(&pages) as Arc<dyn FaultPlan>;
    let store = FaultyStore::new(Arc::new(MemoryStore::new("test", Arc::new(|| 0))), plan, Arc::new(|_| {}));
    let node = testing::node(&Config::default(), Arc::new(store));
    let people = People::new(Arc::clone(&node));
    let bob: Subject = "bob".parse().expect("valid");
    let held = people.shared.beginnings.acquire_many(u32::try_from(BEGINNINGS).expect("few")).await.expect("open");
    let many: Vec<PersonalSession> = (0..1_000).map(|_| people.join(bob.clone(), Arc::new(Sink))).collect();
    testing::hit(&node, "personal_reads").await;
    tokio::time::sleep(WINDOW).await;
    let read = || pages.0.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(read(), 0, "they wait for their turn");
    let mut many = many;
    many.truncate(1);
    drop(held);
    tokio::time::sleep(WINDOW).await;
    assert_eq!(read(), 1, "the one whose client is still there");
}
