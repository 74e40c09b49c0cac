//! Invariant 12: nothing gets in that neither a grant nor membership allows, on every route and every channel event.

use conch_server::auth::grants::Permission::{self, Admin, Create, Read, Run, Send};
use conch_server::auth::grants::RateLimit;
use conch_server::auth::secret::SigningKey;
use conch_server::auth::token::{Mint, TokenKey};
use conch_server::config::Secret;
use conch_server::gateway::ROUTES;
use conch_server::serve::ServeError;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Node, PATIENCE, Raw, RawSocket, Socket, Stream, captured_logs, mint, now, refusal_to_start, until,
};

/// Every call that names a conversation, what it takes, and whether membership is enough.
const CALLS: &[(&str, &str, Permission)] = &[
    ("PUT", "", Create),
    ("GET", "", Read),
    ("PATCH", "", Admin),
    ("PUT", "/cursor", Read),
    ("GET", "/members", Read),
    ("PUT", "/members/dave", Admin),
    ("DELETE", "/members/dave", Admin),
    ("GET", "/messages", Read),
    ("POST", "/messages", Send),
    ("GET", "/presence", Read),
    ("GET", "/stream", Read),
];

/// The same for what only a session has: elsewhere whoever is allowed to call is told that there is no turn.
const TURN_CALLS: &[(&str, &str, Permission)] = &[
    ("POST", "/turns", Run),
    ("GET", "/turns/1", Read),
    ("POST", "/turns/1/cancel", Run),
    ("POST", "/awaits/1-m1", Run),
];

fn calls() -> impl Iterator<Item = (&'static str, &'static str, Permission)> {
    CALLS.iter().chain(TURN_CALLS).copied()
}

/// Whether a call was let in.
fn is_let_in(rest: &str, answer: &Answer) -> bool {
    let there_is_no_turn = matches!(answer.status, 404 | 409);
    answer.status < 300 || there_is_no_turn && TURN_CALLS.iter().any(|(_, call, _)| *call == rest)
}

fn body(method: &str, call: &str) -> Value {
    match (method, call) {
        ("PUT", "") => json!({"kind": "channel"}),
        ("PATCH", "") => json!({"title": "taken"}),
        ("PUT", "/cursor") => json!({"seq": 0}),
        ("POST", "/messages") => json!({"client_msg_id": "k", "body": {"text": "let me in"}}),
        ("POST", "/turns") => json!({"client_msg_id": "k", "input": {"text": "let me in"}}),
        ("POST", "/awaits/1-m1") => json!({"payload": "let me in"}),
        _ => json!({}),
    }
}

async fn call(client: &Client, method: &str, id: &str, rest: &str) -> Answer {
    client.call(method, &format!("/v1/conversations/{id}{rest}"), body(method, rest)).await
}

#[test]
fn every_route_is_in_the_table() {
    for (path, methods) in ROUTES {
        let Some(rest) = path.strip_prefix("/v1/conversations/{id}") else { continue };
        for method in *methods {
            let rest = rest.replace("{sub}", "dave").replace("{turn}", "1").replace("{await}", "1-m1");
            assert!(calls().any(|(m, r, _)| m == *method && r == rest), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn bad_tokens_open_no_route() {
    let node = Node::start().await;
    node.client("alice").channel("c").await;
    let other_key = TokenKey::new(&Secret::new(vec![7; 32])).expect("long enough");
    let good = mint("mallory", &[("*", &Permission::ALL)]);
    let wrong_key = other_key.mint(&good, now()).expect("valid");
    let expired = forged(&node, json!({"exp": now().0 / 1000 - 60, "sub": "mallory"}), Algorithm::HS256);
    let reserved = forged(&node, json!({"exp": now().0 / 1000 + 60, "sub": "@end"}), Algorithm::HS256);
    let endless = forged(&node, json!({"sub": "mallory"}), Algorithm::HS256);
    let other_algorithm = forged(&node, json!({"exp": now().0 / 1000 + 60, "sub": "mallory"}), Algorithm::HS512);
    let mut changed = node.mint(&good);
    changed.replace_range(changed.len() - 6.., "AAAAAA");
    // {"alg":"none"} and the claims of an administrator, unsigned.
    let unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJtYWxsb3J5IiwiZXhwIjo5OTk5OTk5OTk5fQ.";
    let tokens = [&wrong_key, &expired, &reserved, &endless, &other_algorithm, &changed, unsigned, "x", "a.b.c"];
    let mut clients = vec![node.stranger()];
    clients.extend(tokens.iter().map(|token| Client::new(node.started.listen, Some((*token).to_owned()))));
    for client in &clients {
        for (method, rest, _) in calls() {
            let answer = call(client, method, "c", rest).await;
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            answer.problem(401, "unauthenticated");
        }
        for path in ["/v1/conversations", "/v1/stream"] {
            client.get(path).await.problem(401, "unauthenticated");
        }
        let token = client.token.as_deref().unwrap_or_default();
        let refused = Client::answer(upgrade(&node, token)).await;
        refused.problem(403, "forbidden");
    }
    assert_eq!(node.client("alice").log("c").await, Vec::<Value>::new());
}

/// A token that the minting code refuses to make.
fn forged(node: &Node, claims: Value, algorithm: Algorithm) -> String {
    let mut config = crate::harness::config(node.data.path());
    let secret = config.auth.secret.take().expect("it is configured");
    // The library's provider is installed with the first key.
    TokenKey::new(&secret).expect("long enough");
    let key = EncodingKey::from_secret(secret.expose()).expect("a key");
    jsonwebtoken::encode(&Header::new(algorithm), &claims, &key).expect("it is signed")
}

/// A moment relative to now, as claims have it.
fn seconds(offset: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    let now = now().0 as f64;
    now / 1000.0 + offset
}

/// A WebSocket's opening request; must be refused.
fn upgrade(node: &Node, token: &str) -> reqwest::RequestBuilder {
    node.stranger()
        .request("GET", &format!("/socket/websocket?vsn=2.0.0&token={token}"))
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

#[tokio::test]
async fn every_call_takes_its_own_permission() {
    let node = Node::start().await;
    let owner = node.client("owner");
    owner.channel_of("c", &["member"]).await;
    owner.channel("other").await;
    let all_but = |permission: Permission| Permission::ALL.into_iter().filter(move |other| *other != permission);
    for (method, rest, permission) in calls() {
        let id = if permission == Create { "new" } else { "c" };
        let others: Vec<Permission> = all_but(permission).collect();
        let refused = [
            ("no grant", node.client_with("mallory", &[])),
            ("every other permission", node.client_with("mallory", &[(id, &others)])),
            ("another conversation", node.client_with("mallory", &[("other", &Permission::ALL)])),
            ("a pattern that does not fit", node.client_with("mallory", &[("c?", &Permission::ALL)])),
        ];
        for (why, client) in refused {
            let answer = call(&client, method, id, rest).await;
            let detail = answer.problem(403, "forbidden");
            assert!(detail.contains(&format!("{permission:?}").to_lowercase()), "{method} {rest} with {why}: {detail}");
        }
        let member = node.client_with("member", &[]);
        let member = call(&member, method, id, rest);
        if !matches!(permission, Read | Send) {
            member.await.problem(403, "forbidden");
        } else if rest != "/stream" {
            assert!(is_let_in(rest, &member.await), "{method} {rest}");
        }
        if rest != "/stream" {
            let client = node.client_with("granted", &[(id, &[permission])]);
            let answer = call(&client, method, id, rest).await;
            assert!(is_let_in(rest, &answer), "{method} {rest}: {answer:?}");
        }
    }
    let reader = node.client_with("granted", &[("c", &[Read])]);
    Stream::open(&reader, "/v1/conversations/c/stream").await.up_to("caught_up").await;
}

#[tokio::test]
async fn a_refusal_does_not_tell_whether_the_conversation_exists() {
    let node = Node::start().await;
    node.client("alice").channel("there").await;
    let mallory = node.client_with("mallory", &[]);
    for (method, rest, _) in calls() {
        if (method, rest) == ("PUT", "") {
            continue;
        }
        let there = call(&mallory, method, "there", rest).await.problem(403, "forbidden");
        let not_there = call(&mallory, method, "absent", rest).await.problem(403, "forbidden");
        assert_eq!(there.replace("there", "?"), not_there.replace("absent", "?"));
    }
    let there = call(&mallory, "DELETE", "there", "/members/mallory").await.status;
    let not_there = call(&mallory, "DELETE", "absent", "/members/mallory").await.status;
    assert_eq!(there, not_there, "leaving what one was never in");
}

#[tokio::test]
async fn every_channel_event_takes_its_permission() {
    let node = Node::start().await;
    let owner = node.client("owner");
    owner.channel_of("c", &["member"]).await;
    for (why, client) in [
        ("no grant", node.client_with("mallory", &[])),
        ("another conversation", node.client_with("mallory", &[("other", &Permission::ALL)])),
        ("all but read", node.client_with("mallory", &[("c", &[Send, Run, Create, Admin])])),
    ] {
        let mut socket = Socket::connect(&node, &client).await;
        let reply = socket.join("conversation:c", json!({})).await;
        assert!(reply.refused("forbidden")["retry"].is_null(), "{why}");
        for (event, payload) in events() {
            // Nothing reaches a channel that was not joined, whichever event it is.
            socket.push("conversation:c", event, payload).await.refused("not_found");
        }
        socket.push("user:me", "message", json!({})).await.refused("not_found");
    }
    let reader = node.client_with("reader", &[("c", &[Read])]);
    let mut socket = Socket::joined(&node, &reader, "c").await;
    for (event, payload) in events() {
        let reply = socket.push("conversation:c", event, payload).await;
        match event {
            "message" | "typing" => drop(reply.refused("forbidden")),
            event if takes_a_grant(event) => drop(reply.refused("forbidden")),
            _ => drop(reply.response("ok")),
        }
    }
    let mut socket = Socket::joined(&node, &node.client_with("member", &[]), "c").await;
    for (event, payload) in events() {
        let reply = socket.push("conversation:c", event, payload).await;
        if takes_a_grant(event) {
            reply.refused("forbidden")
        } else {
            reply.response("ok")
        };
    }
    let mut socket = Socket::joined(&node, &node.client_with("runner", &[("c", &[Read, Run])]), "c").await;
    for (event, payload) in events().into_iter().filter(|(event, _)| takes_a_grant(event)) {
        // Let in, and told that a channel has no turns.
        let reply = socket.push("conversation:c", event, payload).await;
        let code = reply.response("error")["code"].as_str().expect("a code").to_owned();
        assert!(matches!(code.as_str(), "conflict" | "not_found"), "{event}: {code}");
    }
    assert_eq!(owner.log("c").await.len(), 1, "the member's alone");
}

fn events() -> [(&'static str, Value); 7] {
    [
        ("message", json!({"client_msg_id": "k", "body": {"text": "hi"}})),
        ("history", json!({})),
        ("cursor", json!({"seq": 0})),
        ("typing", json!({})),
        ("turn.cancel", json!({"turn": 1})),
        ("turn.regenerate", json!({"turn": 1, "client_msg_id": "again"})),
        ("await.resolve", json!({"await": "1-m1", "payload": 1})),
    ]
}

/// Whether a grant is needed, membership being too little.
fn takes_a_grant(event: &str) -> bool {
    event.starts_with("turn.") || event.starts_with("await.")
}

#[tokio::test]
async fn a_removed_member_is_cut_off() {
    let node = Node::start().await;
    let (alice, bob) = (node.client("alice"), node.client_with("bob", &[]));
    alice.channel_of("c", &["bob"]).await;
    let mut socket = Socket::joined(&node, &bob, "c").await;
    let mut stream = Stream::open(&bob, "/v1/conversations/c/stream").await;
    stream.up_to("caught_up").await;
    let mut bystander = Socket::joined(&node, &alice, "c").await;
    alice.delete("/v1/conversations/c/members/bob").await.ok(204);
    let closed = socket.until_event("phx_close").await;
    assert_eq!((closed.topic.as_str(), &closed.join_ref), ("conversation:c", &json!("conversation:c")));
    stream.rest().await;
    for (event, payload) in events() {
        socket.push("conversation:c", event, payload).await.refused("not_found");
    }
    socket.join("conversation:c", json!({})).await.refused("forbidden");
    bob.get("/v1/conversations/c/messages").await.problem(403, "forbidden");
    bob.send("c", "k", "still here?").await.problem(403, "forbidden");
    alice.sent("c", "k", "he is gone").await;
    assert_eq!(bystander.until_event("message").await.payload["body"]["text"], "he is gone");
    // The socket itself stays, and what was sent after the cut never came.
    assert!(socket.push("user:me", "x", json!({})).await.refused("not_found")["code"].is_string());
}

#[tokio::test]
async fn reconnect_with_an_expired_token() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    // The leeway is added to what the token says.
    let claims = json!({
        "sub": "bob", "exp": seconds(-3.5),
        "conch": [{"conversations": "c", "can": ["read", "send"]}],
    });
    let bob = Client::new(node.started.listen, Some(forged(&node, claims, Algorithm::HS256)));
    // A loaded machine may be slower than the token lives; then there is nothing to cut.
    let accepted = bob.get("/v1/conversations/c").await.status == 200;
    if accepted && let Some(mut socket) = Socket::try_connect(&node, &bob).await {
        let (_, code) = socket.closed().await;
        assert_eq!(code, Some(1008));
    }
    until("the token to end", async || (bob.get("/v1/conversations/c").await.status == 401).then_some(())).await;
    assert!(Socket::try_connect(&node, &bob).await.is_none(), "the old token lets nobody in again");
    assert!(Socket::try_connect(&node, &alice).await.is_some(), "one that is good does");
}

#[tokio::test]
async fn a_stream_ends_with_its_token_even_while_it_is_busy() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let claims = json!({
        "sub": "bob", "exp": seconds(-3.0), "conch": [{"conversations": "c", "can": ["read"]}],
    });
    let bob = Client::new(node.started.listen, Some(forged(&node, claims, Algorithm::HS256)));
    let response = bob.request("GET", "/v1/conversations/c/stream").send().await.expect("the node answers");
    if response.status() == 401 {
        return; // A loaded machine was slower than the token lives.
    }
    let mut stream = Stream::of(response);
    let sending = async {
        for number in 0_u64.. {
            alice.sent("c", &number.to_string(), "hi").await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            _ = stream.rest() => {}
            () = sending => {}
        }
    });
    ended.await.expect("the stream ends");
    bob.get("/v1/conversations/c").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn the_development_login_is_for_this_machines_own_pages() {
    let node = Node::start_with(|config| config.auth.secret = None).await;
    let stranger = node.stranger();
    let login = async |name: Value| stranger.post("/dev/login", json!({"name": name})).await;
    let answer = login(json!("Alice Liddell")).await.ok(200);
    assert_eq!(answer["sub"], "alice-liddell");
    let alice = Client::new(node.started.listen, answer["token"].as_str().map(str::to_owned));
    alice.channel("c").await;
    alice.sent("c", "k", "hi").await;
    assert_eq!(alice.log("c").await[0]["name"], "Alice Liddell");
    for (name, named) in [("", "name"), ("  ", "name"), ("@end", "name"), ("x\u{0}", "sub")] {
        let detail = login(json!(name)).await.problem(422, "invalid_request");
        assert!(detail.starts_with(named), "{name:?}: {detail}");
    }
    assert!(login(json!("x".repeat(65))).await.problem(422, "invalid_request").contains("64"));
    login(json!(1)).await.problem(400, "invalid_request");
    let with = |name: &'static str, value: String| {
        let request = stranger.request("POST", "/dev/login").header(name, value);
        Client::answer(request.json(&json!({"name": "eve"})))
    };
    with("origin", "http://evil.example".to_owned()).await.problem(403, "forbidden");
    with("host", "evil.example".to_owned()).await.problem(403, "forbidden");
    with("origin", "null".to_owned()).await.problem(403, "forbidden");
    with("origin", format!("http://{}", node.started.listen)).await.ok(200);
    let form = stranger.request("POST", "/dev/login").header("content-type", "text/plain").body(r#"{"name":"eve"}"#);
    Client::answer(form).await.problem(415, "unsupported_media_type");
    // The key lies in the data directory, so that the command line on this machine has it.
    let auth = conch_server::config::Config::default().auth;
    assert!(SigningKey::find(auth.configured(), node.data.path()).is_ok());
    let configured = Node::start().await;
    configured.stranger().post("/dev/login", json!({"name": "eve"})).await.problem(404, "not_found");
}

/// A name that was made to resolve to this machine must not pass for it: whichever host a request names last, or in its
/// target, is the one that counts for all.
#[tokio::test]
async fn the_host_that_is_judged_is_the_one_that_was_asked_for() {
    let node = Node::start_with(|config| config.auth.secret = None).await;
    let listen = node.started.listen;
    let ask = async |target: String, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|host| format!("Host: {host}\r\n")).collect();
        let head = format!("GET {target} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        Raw::exchange(listen, head.as_bytes()).await
    };
    let (path, own) = ("/v1/openapi.json", listen.to_string());
    for (target, hosts, status, named) in [
        (path.to_owned(), vec![own.as_str()], 200, ""),
        (path.to_owned(), vec!["evil.example"], 403, "Host"),
        (path.to_owned(), vec![own.as_str(), "evil.example"], 400, "Host"),
        (path.to_owned(), vec![own.as_str(), own.as_str()], 400, "Host"),
        // The target wins over the header (RFC 9112, 3.2.2).
        (format!("http://evil.example{path}"), vec![own.as_str()], 403, "Host"),
        (format!("http://{own}{path}"), vec!["evil.example"], 200, ""),
    ] {
        let (found, text) = ask(target.clone(), &hosts).await;
        assert_eq!(found, status, "{target} {hosts:?}: {text}");
        assert!(text.contains(named), "{target} {hosts:?}: {text}");
    }
}

#[tokio::test]
async fn without_a_key_nothing_but_loopback_is_bound() {
    for change in [
        (|config| {
            config.auth.secret = None;
            config.listen = "0.0.0.0:0".parse().expect("an address");
        }) as crate::harness::Change,
        |config| {
            config.auth.secret = None;
            config.ops_listen = "0.0.0.0:0".parse().expect("an address");
        },
        |config| {
            config.auth.secret = None;
            config.listen = "[::]:0".parse().expect("an address");
        },
    ] {
        let refused = refusal_to_start(change).await;
        assert!(matches!(refused, ServeError::NotLoopback(_)), "{refused}");
        assert!(refused.to_string().contains("listen"), "{refused}");
    }
    let node = Node::start_with(|config| config.listen = "0.0.0.0:0".parse().expect("an address")).await;
    assert!(node.started.listen.ip().is_unspecified());
}

#[tokio::test]
async fn a_token_in_the_query_works_and_is_never_logged() {
    let node = Node::start().await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let token = alice.token.clone().expect("a token");
    let stranger = node.stranger();
    let path = format!("/v1/conversations/c/stream?after=0&access_token={token}");
    Stream::open(&stranger, &path).await.up_to("caught_up").await;
    Stream::open(&stranger, &format!("/v1/stream?access_token={token}")).await.up_to("caught_up").await;
    stranger.get(&format!("/v1/conversations?access_token={token}")).await.ok(200);
    stranger.get(&format!("/nothing?token={token}")).await.problem(404, "not_found");
    Socket::connect(&node, &alice).await.close().await;
    RawSocket::connect(&node, &alice).await;
    until("the request in the log", async || {
        captured_logs().iter().any(|line| line.contains("/v1/stream?access_token=REDACTED")).then_some(())
    })
    .await;
    let told: Vec<String> = captured_logs().into_iter().filter(|line| line.contains("eyJ")).collect();
    assert!(told.is_empty(), "{told:?}");
}

#[tokio::test]
async fn the_sender_rate_is_limited_and_refused_sends_keep_their_keys() {
    let node = Node::start_with(|config| {
        config.rate.per_second = 1;
        config.rate.burst = 3;
    })
    .await;
    node.client("owner").channel_of("c", &["bob"]).await;
    let bob = node.client_with("bob", &[]);
    let mut refused = None;
    for number in 0..100 {
        let answer = bob.send("c", &number.to_string(), "hi").await;
        if answer.status == 429 {
            refused = Some((number, answer));
            break;
        }
        answer.ok(201);
    }
    let (number, answer) = refused.expect("the rate has an end");
    assert!(number >= 3, "{number}");
    assert!(answer.json()["retry"]["after_ms"].as_u64().is_some_and(|ms| ms <= 1_000), "{answer:?}");
    let detail = answer.problem(429, "rate_limited");
    assert!(detail.contains("1 messages a second"), "{detail}");
    let mut socket = Socket::joined(&node, &bob, "c").await;
    let mut over = None;
    for number in 0..100 {
        let reply = socket.message("c", &format!("s{number}"), "hi").await;
        if reply.payload["status"] == "error" {
            over = Some(reply);
            break;
        }
    }
    let over = over.expect("one rate for all of a sender's connections");
    assert!(over.refused("rate_limited")["retry"]["after_ms"].is_u64());
    // The socket stays, and the very same send is taken later, once.
    let sent = until("the rate to allow it", async || {
        let answer = bob.send("c", &number.to_string(), "hi").await;
        (answer.status != 429).then_some(answer)
    })
    .await;
    sent.ok(201);
    socket.push("conversation:c", "history", json!({"limit": 1})).await.response("ok");
    // Others are not limited by it, and a bench's token is not limited at all.
    let lifted = Mint { rate_limit: RateLimit::Lifted, ..mint("bench", &[("*", &Permission::ALL)]) };
    let bench = Client::new(node.started.listen, Some(node.mint(&lifted)));
    for number in 0..20 {
        bench.send("c", &number.to_string(), "hi").await.ok(201);
    }
    let not_admin = json!({
        "sub": "bench", "exp": now().0 / 1000 + 60, "rate": "unlimited",
        "conch": [{"conversations": "*", "can": ["read", "send"]}],
    });
    let pretender = Client::new(node.started.listen, Some(forged(&node, not_admin, Algorithm::HS256)));
    until("the rate's end", async || (pretender.send("c", "k", "hi").await.status == 429).then_some(())).await;
}

#[tokio::test]
async fn origins_are_checked_and_allowed_ones_get_their_preflight() {
    let node = Node::start_with(|config| {
        config.auth.allowed_origins = vec!["https://app.example".parse().expect("an origin")];
    })
    .await;
    let alice = node.client("alice");
    alice.channel("c").await;
    let path = "/v1/conversations/c";
    let from = |method: &str, origin: &str| alice.request(method, path).header("origin", origin);
    let own = format!("http://{}", node.started.listen);
    let answer = Client::answer(from("GET", &own)).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    answer.ok(200);
    let answer = Client::answer(from("GET", "https://app.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.header("access-control-allow-credentials"), None, "tokens are not cookies");
    assert!(answer.header("vary").is_some_and(|vary| vary.eq_ignore_ascii_case("origin")));
    answer.ok(200);
    let preflight = node.stranger().request("OPTIONS", path).header("origin", "https://app.example");
    let preflight = Client::answer(preflight.header("access-control-request-method", "PATCH")).await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), Some("https://app.example"));
    assert!(preflight.header("access-control-allow-methods").is_some_and(|methods| methods.contains("PATCH")));
    let allowed = preflight.header("access-control-allow-headers").expect("headers").to_owned();
    for header in ["authorization", "content-type", "idempotency-key", "last-event-id"] {
        assert!(allowed.contains(header), "{allowed}");
    }
    for origin in
        ["https://evil.example", "http://app.example", "https://app.example:444", "null", "https://app.example.evil"]
    {
        for method in ["GET", "OPTIONS", "PATCH"] {
            let answer = Client::answer(from(method, origin)).await;
            assert_eq!(answer.header("access-control-allow-origin"), None, "{method} {origin}");
            answer.problem(403, "forbidden");
        }
        let refused = upgrade(&node, alice.token.as_deref().expect("a token")).header("origin", origin);
        Client::answer(refused).await.problem(403, "forbidden");
    }
    // An error of an allowed page is readable to it.
    let answer = Client::answer(from("POST", "https://app.example")).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    answer.problem(405, "method_not_allowed");
}

#[tokio::test]
async fn creating_and_changing_show_nothing_to_those_who_may_not_read() {
    let node = Node::start().await;
    node.client("owner").channel("secret").await;
    let creator = node.client_with("mallory", &[("*", &[Create])]);
    creator.put("/v1/conversations/secret", json!({"kind": "channel"})).await.problem(403, "forbidden");
    creator
        .put("/v1/conversations/secret", json!({"kind": "session", "agent": "demo"}))
        .await
        .problem(403, "forbidden");
    creator.put("/v1/conversations/own", json!({"kind": "channel"})).await.ok(201);
    creator.put("/v1/conversations/own", json!({"kind": "channel"})).await.ok(200);
    let admin = node.client_with("root", &[("*", &[Admin])]);
    assert_eq!(admin.call("PATCH", "/v1/conversations/secret", json!({"title": "new"})).await.status, 204);
}
