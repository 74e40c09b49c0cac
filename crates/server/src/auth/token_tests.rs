//! What must not get in, and what must.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::*;

const NOW: Timestamp = Timestamp(1_800_000_000_000);
const NOW_S: i64 = 1_800_000_000;

fn key() -> TokenKey {
    TokenKey::new(&Secret::new([7; 32])).expect("a good key")
}

/// Signs whatever it is given, as an issuer that makes mistakes would.
fn sign(header: &str, payload: &[u8], secret: &[u8]) -> String {
    install_provider();
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
    let key = EncodingKey::from_secret(secret).expect("not empty");
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).expect("signs");
    format!("{message}.{signature}")
}

const HS256: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

fn signed(claims: &Value) -> String {
    sign(HS256, claims.to_string().as_bytes(), &[7; 32])
}

fn good() -> Value {
    json!({"sub": "alice", "exp": NOW_S + 60})
}

fn with(name: &str, value: Value) -> String {
    let mut claims = good();
    claims[name] = value;
    signed(&claims)
}

fn without(name: &str) -> String {
    let mut claims = good();
    claims.as_object_mut().expect("an object").remove(name);
    signed(&claims)
}

fn detail(token: &str) -> String {
    let refusal = key().verify(token, NOW).expect_err(token);
    assert_eq!((refusal.code, refusal.retry), (Code::Unauthenticated, None));
    refusal.detail
}

/// Invariant 12.
#[test]
fn forged_and_damaged_tokens_do_not_get_in() {
    const FORGED: &str = "the token's signature is not valid";
    let whole = signed(&good());
    let parts: Vec<&str> = whole.split('.').collect();
    let (head, payload, signature) = (parts[0], parts[1], parts[2]);
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let header = |alg: &str| format!(r#"{{"alg":"{alg}"}}"#);
    let payload_bytes = good().to_string();
    let other = |claims: Value| URL_SAFE_NO_PAD.encode(claims.to_string());
    let admin = other(json!({"sub": "root", "exp": NOW_S + 60}));
    let no_jwt = "the token is not an HS256 JSON Web Token";
    let cases = [
        ("no token at all", String::new(), no_jwt),
        ("dots alone", "..".to_owned(), no_jwt),
        ("one part", head.to_owned(), no_jwt),
        ("two parts", format!("{head}.{payload}"), no_jwt),
        ("four parts", format!("{whole}.x"), no_jwt),
        ("a header that is not base64", format!("!!.{payload}.{signature}"), no_jwt),
        ("a header that is not JSON", sign("{", payload_bytes.as_bytes(), &[7; 32]), no_jwt),
        ("alg none, no signature", format!("{none}.{payload}."), no_jwt),
        ("alg none, a good signature of the rest", format!("{none}.{payload}.{signature}"), no_jwt),
        ("alg NONE", sign(&header("NONE"), payload_bytes.as_bytes(), &[7; 32]), no_jwt),
        ("alg hs256", sign(&header("hs256"), payload_bytes.as_bytes(), &[7; 32]), no_jwt),
        ("no alg", sign(r#"{"typ":"JWT"}"#, payload_bytes.as_bytes(), &[7; 32]), no_jwt),
        (
            "RS256 with the key as HMAC",
            sign(&header("RS256"), payload_bytes.as_bytes(), &[7; 32]),
            "the token is not signed with HS256",
        ),
        (
            "ES256 with the key as HMAC",
            sign(&header("ES256"), payload_bytes.as_bytes(), &[7; 32]),
            "the token is not signed with HS256",
        ),
        ("HS512", sign(&header("HS512"), payload_bytes.as_bytes(), &[7; 32]), "the token is not signed with HS256"),
        ("a critical extension", sign(r#"{"alg":"HS256","crit":["exp"]}"#, payload_bytes.as_bytes(), &[7; 32]), FORGED),
        ("another key", sign(HS256, payload_bytes.as_bytes(), &[8; 32]), FORGED),
        ("no signature", format!("{head}.{payload}."), FORGED),
        ("a truncated signature", whole[..whole.len() - 1].to_owned(), FORGED),
        ("other claims, same signature", format!("{head}.{admin}.{signature}"), FORGED),
        (
            "a header changed after signing",
            format!("{}.{payload}.{signature}", URL_SAFE_NO_PAD.encode(header("HS256"))),
            FORGED,
        ),
    ];
    for (name, token, expected) in cases {
        assert_eq!(detail(&token), expected, "{name}");
    }
    let huge = with("x", json!("x".repeat(8 * 1024)));
    assert!(detail(&huge).ends_with("at most 8192 are allowed"), "{}", detail(&huge));
}

/// Invariant 12.
#[test]
fn claims_that_are_wrong_do_not_get_in() {
    let grant = |conversations: &str, can: Value| json!([{"conversations": conversations, "can": can}]);
    let cases = [
        ("an ended token", with("exp", json!(NOW_S - 5)), "the token has expired"),
        ("no end", without("exp"), "missing field `exp`"),
        ("an end that is null", with("exp", json!(null)), "invalid type: null"),
        ("an end that is text", with("exp", json!("1800000060")), "invalid type: string"),
        ("an end that is negative", with("exp", json!(-1)), "exp: must be seconds since 1970"),
        ("an end beyond all time", with("exp", json!(1e300)), "exp: must be seconds since 1970"),
        ("an end in milliseconds", with("exp", json!(NOW_S * 1000)), "exp: must be seconds since 1970"),
        ("not yet", with("nbf", json!(NOW_S + 6)), "the token is not valid yet"),
        ("no sub", without("sub"), "missing field `sub`"),
        ("an empty sub", with("sub", json!("")), "sub: is empty"),
        ("a long sub", with("sub", json!("x".repeat(257))), "sub: is 257 bytes long"),
        ("a sub with a line feed", with("sub", json!("a\nb")), "sub: may not hold control characters"),
        ("a number as sub", with("sub", json!(7)), "invalid type: integer"),
        ("a reserved sub", with("sub", json!("@agent:demo")), "sub: may not start with @"),
        ("a long name", with("name", json!("é".repeat(129))), "name: is 258 bytes long; at most 256 are allowed"),
        ("a name with an escape", with("name", json!("\u{1b}[2J")), "name: may not hold control characters"),
        ("grants that are no list", with("conch", json!({"conversations": "*"})), "invalid type: map"),
        (
            "a pattern that is none",
            with("conch", grant("[a-z]", json!(["read"]))),
            "conch[0].conversations: may hold only",
        ),
        ("an empty pattern", with("conch", grant("", json!(["read"]))), "conch[0].conversations: must be 1 to 128"),
        ("an unknown permission", with("conch", grant("*", json!(["everything"]))), "unknown variant `everything`"),
        ("a permission in capitals", with("conch", grant("*", json!(["ADMIN"]))), "unknown variant `ADMIN`"),
        (
            "a grant with an unknown member",
            with("conch", json!([{"conversations": "*", "can": [], "regions": ["eu"]}])),
            "unknown field `regions`",
        ),
        (
            "too many grants",
            with("conch", Value::Array(vec![json!({"conversations": "a", "can": []}); 101])),
            "conch: has 101 grants; at most 100 are allowed",
        ),
        (
            "sub twice",
            sign(HS256, format!(r#"{{"sub":"a","sub":"b","exp":{}}}"#, NOW_S + 60).as_bytes(), &[7; 32]),
            "duplicate field `sub`",
        ),
        ("claims that are not an object", sign(HS256, b"[]", &[7; 32]), "the token's claims are not valid"),
        ("claims that are not JSON", sign(HS256, b"{", &[7; 32]), "the token's claims are not valid"),
        (
            "claims that are not UTF-8",
            sign(HS256, b"{\"sub\":\"\xff\",\"exp\":1900000000}", &[7; 32]),
            "the token's claims are not valid",
        ),
    ];
    for (name, token, expected) in cases {
        let detail = detail(&token);
        assert!(detail.contains(expected), "{name}: {detail}");
    }
}

#[test]
fn a_good_token_says_who_and_what() {
    let token = signed(&json!({
        "sub": "alice", "name": "Alice", "exp": NOW_S + 60, "iat": NOW_S, "aud": "else", "iss": "x", "jti": [1],
        "conch": [{"conversations": "team:*", "can": ["read", "send"]}],
    }));
    let principal = key().verify(&token, NOW).expect("a good token");
    assert_eq!(principal.sub.as_str(), "alice");
    assert_eq!(principal.name.as_deref(), Some("Alice"));
    assert_eq!(principal.expires_at, Timestamp(NOW.0 + 60_000 + LEEWAY_MS));
    let team = "team:x".parse().expect("valid");
    assert!(principal.allows(Permission::Send, &team) && !principal.allows(Permission::Run, &team));
    assert_eq!(principal.rate_limit, RateLimit::Default);
}

/// RFC 7515, appendix A.1: a signature that is not of our making. It passes, so that the claims are what is refused.
#[test]
fn the_standard_s_own_example_verifies() {
    let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let key = TokenKey::new(&Secret::new(URL_SAFE_NO_PAD.decode(secret).expect("base64"))).expect("a good key");
    let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFt\
                 cGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let detail = key.verify(token, NOW).expect_err("it has no sub").detail;
    assert!(detail.contains("missing field `sub`"), "{detail}");
}

#[test]
fn a_token_ends_exactly_once_the_leeway_is_over() {
    let token = with("exp", json!(NOW_S));
    assert!(key().verify(&token, Timestamp(NOW.0 + LEEWAY_MS - 1)).is_ok());
    assert!(key().verify(&token, Timestamp(NOW.0 + LEEWAY_MS)).is_err());
    let fraction = with("exp", json!(1_800_000_000.5));
    let principal = key().verify(&fraction, NOW).expect("RFC 7519 allows fractions");
    assert_eq!(principal.expires_at, Timestamp(NOW.0 + 500 + LEEWAY_MS));
}

#[test]
fn the_rate_limit_is_lifted_for_administrators_alone() {
    let rate = |conversations: &str, can: &str, rate: Value| {
        let token = signed(&json!({
            "sub": "bench", "exp": NOW_S + 60, "rate": rate,
            "conch": [{"conversations": conversations, "can": [can]}],
        }));
        key().verify(&token, NOW).expect("a good token").rate_limit
    };
    assert_eq!(rate("*", "admin", json!("unlimited")), RateLimit::Lifted);
    for (conversations, can, claim) in [
        ("*", "send", json!("unlimited")),
        ("a*", "admin", json!("unlimited")),
        ("*", "admin", json!("high")),
        ("*", "admin", json!(true)),
    ] {
        assert_eq!(rate(conversations, can, claim.clone()), RateLimit::Default, "{conversations} {can} {claim}");
    }
}

fn mint() -> Mint {
    Mint {
        sub: "alice".to_owned(),
        name: Some("Alice".to_owned()),
        expires_at: Timestamp(NOW.0 + 3_600_000),
        grants: vec![Grant { conversations: Glob::any(), can: vec![Permission::Admin, Permission::Read] }],
        rate_limit: RateLimit::Lifted,
    }
}

#[test]
fn what_is_minted_is_accepted() {
    let token = key().mint(&mint(), NOW).expect("minted");
    let principal = key().verify(&token, NOW).expect("accepted");
    assert_eq!(principal.grants, mint().grants);
    assert_eq!(principal.rate_limit, RateLimit::Lifted);
    assert_eq!(principal.expires_at, Timestamp(NOW.0 + 3_600_000 + LEEWAY_MS));
}

#[test]
fn what_would_be_refused_is_not_minted() {
    let read = |glob: &str| Grant { conversations: glob.parse().expect("valid"), can: vec![Permission::Read] };
    let cases = [
        (Mint { sub: "@start".to_owned(), ..mint() }, "sub: may not start with @"),
        (Mint { sub: String::new(), ..mint() }, "sub: is empty"),
        (Mint { name: Some("x".repeat(257)), ..mint() }, "name: is 257 bytes long"),
        (Mint { expires_at: NOW, ..mint() }, "exp: has passed already"),
        (Mint { grants: vec![read("a")], ..mint() }, "rate: takes an admin grant on *"),
        (Mint { grants: vec![read("a"); 101], ..mint() }, "conch: has 101 grants"),
        (
            Mint { grants: vec![read(&"x".repeat(128)); 100], rate_limit: RateLimit::Default, ..mint() },
            "the token would be",
        ),
    ];
    for (mint, expected) in cases {
        let error = key().mint(&mint, NOW).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn short_keys_are_refused_and_no_key_is_shown() {
    assert_eq!(TokenKey::new(&Secret::new([7; 31])).expect_err("too short"), TokenError::ShortKey(31));
    assert_eq!(format!("{:?}", key()), "TokenKey");
}
