//! Where a request carries its token, and how a URI is written to a log without it.
//!
//! In this order: `Authorization: Bearer`, the WebSocket subprotocol of phoenix.js 1.8's `authToken`, the query parameters
//! `access_token` (an EventSource cannot set headers) and `token` (a WebSocket cannot either).

use base64::Engine;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use conch_core::refusal::{Code, Refusal};
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, Uri};

use super::token::TOKEN_MAX_BYTES;
use crate::agents::CALLBACK_PATH;

/// The subprotocol that a server selects when a client offers it with its token. A browser drops a socket whose server
/// selects none of what was offered.
pub const PHOENIX_SUBPROTOCOL: &str = "phoenix";
/// What precedes the token in the second subprotocol that phoenix.js offers.
const AUTH_TOKEN_PREFIX: &str = "base64url.bearer.phx.";
/// The query parameters that carry a token.
const TOKEN_PARAMETERS: [&str; 2] = ["access_token", "token"];
/// What stands for a token in a log.
const REDACTED: &str = "REDACTED";

/// The token of a request, if it has one.
///
/// # Errors
/// `unauthenticated` for credentials that are there but cannot be read.
pub fn token(headers: &HeaderMap, uri: &Uri) -> Result<Option<String>, Refusal> {
    if let Some(token) = bearer(headers)? {
        return Ok(Some(token));
    }
    if let Some(token) = subprotocol_token(headers)? {
        return Ok(Some(token));
    }
    query_token(uri)
}

fn refused(detail: &str) -> Refusal {
    Refusal::new(Code::Unauthenticated, detail)
}

fn bearer(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(refused("Authorization: is there more than once"));
    }
    let wrong = || refused("Authorization: must be Bearer and a token");
    let (scheme, token) = value.to_str().map_err(|_| wrong())?.split_once(' ').ok_or_else(wrong)?;
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.contains(' ') {
        return Err(wrong());
    }
    Ok(Some(token.to_owned()))
}

fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether the client offers the subprotocol `phoenix`, which the answer to the upgrade must then select.
#[must_use]
pub fn offers_phoenix(headers: &HeaderMap) -> bool {
    subprotocols(headers).any(|offered| offered == PHOENIX_SUBPROTOCOL)
}

/// phoenix.js offers `phoenix` and `base64url.bearer.phx.` with `btoa(token)`, its padding removed. That is the standard
/// alphabet, other clients use the one the name promises, so both are read, with padding or without.
fn subprotocol_token(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(encoded) = subprotocols(headers).find_map(|offered| offered.strip_prefix(AUTH_TOKEN_PREFIX)) else {
        return Ok(None);
    };
    let wrong = || refused("Sec-WebSocket-Protocol: the token after base64url.bearer.phx. is not base64");
    if encoded.len() > TOKEN_MAX_BYTES * 2 {
        return Err(refused("Sec-WebSocket-Protocol: the token is too long"));
    }
    let alphabet = if encoded.contains(['+', '/']) { &STANDARD } else { &URL_SAFE };
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let bytes = GeneralPurpose::new(alphabet, lenient).decode(encoded).map_err(|_| wrong())?;
    let token = String::from_utf8(bytes).map_err(|_| wrong())?;
    Ok(Some(token).filter(|token| !token.is_empty()))
}

fn query_token(uri: &Uri) -> Result<Option<String>, Refusal> {
    let query = uri.query().unwrap_or_default();
    for name in TOKEN_PARAMETERS {
        let mut values = parameters(query).filter(|(key, _)| *key == name).map(|(_, value)| value);
        let Some(value) = values.next().filter(|value| !value.is_empty()) else { continue };
        if values.next().is_some() {
            return Err(refused(&format!("{name}: is there more than once")));
        }
        let value = percent_decoded(value).ok_or_else(|| refused(&format!("{name}: is not percent-encoded UTF-8")))?;
        return Ok(Some(value));
    }
    Ok(None)
}

fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(rest.next()?)? * 16 + digit(rest.next()?)?);
    }
    String::from_utf8(bytes).ok()
}

/// The URI's path and query for a log: whatever may be a token is replaced.
#[must_use]
pub fn redacted(uri: &Uri) -> String {
    let path = shown_path(uri.path());
    let Some(query) = uri.query() else { return path };
    let secret = |name: &str| {
        // A name that only looks different after decoding may have been meant as one of these; so hide it as well.
        let name = percent_decoded(name).unwrap_or_default().to_ascii_lowercase();
        name.is_empty() || name.contains("token")
    };
    let pairs = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if secret(name) => format!("{name}={REDACTED}"),
        _ => pair.to_owned(),
    });
    format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"))
}

/// A worker's callback carries its proof in the path.
fn shown_path(path: &str) -> String {
    let Some(rest) = path.strip_prefix(CALLBACK_PATH) else { return path.to_owned() };
    let after = rest.find('/').map_or("", |slash| &rest[slash..]);
    format!("{CALLBACK_PATH}{REDACTED}{after}")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    type Headers<'a> = &'a [(&'static str, &'a str)];

    fn find(headers: Headers<'_>, uri: &str) -> Result<Option<String>, Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
        }
        token(&map, &uri.parse().expect("a URI"))
    }

    #[test]
    fn the_token_is_found_where_clients_put_it() {
        // btoa("a.b.c") is "YS5iLmM="; phoenix.js removes the "=".
        let phoenix = ("sec-websocket-protocol", "phoenix, base64url.bearer.phx.YS5iLmM");
        let cases: &[(Headers<'_>, &str, Option<&str>)] = &[
            (&[], "/", None),
            (&[("authorization", "Bearer a.b.c")], "/", Some("a.b.c")),
            (&[("authorization", "bearer  a.b.c")], "/", Some("a.b.c")),
            (&[phoenix], "/", Some("a.b.c")),
            (
                &[("sec-websocket-protocol", "phoenix"), ("sec-websocket-protocol", "base64url.bearer.phx.YS5iLmM=")],
                "/",
                Some("a.b.c"),
            ),
            (&[("sec-websocket-protocol", "phoenix,base64url.bearer.phx.Pz8/Pj4+")], "/", Some("???>>>")),
            (&[("sec-websocket-protocol", "phoenix,base64url.bearer.phx.Pz8_Pj4-")], "/", Some("???>>>")),
            (&[("sec-websocket-protocol", "phoenix")], "/", None),
            (&[], "/s?vsn=2.0.0&token=a.b.c", Some("a.b.c")),
            (&[], "/s?access_token=a.b.c&token=d", Some("a.b.c")),
            (&[], "/s?token=a%2Eb.c", Some("a.b.c")),
            (&[], "/s?token=", None),
            (&[], "/s?mytoken=a&TOKEN=b", None),
            (&[("authorization", "Bearer h"), phoenix], "/s?token=q", Some("h")),
            (&[phoenix], "/s?token=q", Some("a.b.c")),
        ];
        for (headers, uri, expected) in cases {
            assert_eq!(find(headers, uri).expect("readable").as_deref(), *expected, "{headers:?} {uri}");
        }
    }

    #[test]
    fn credentials_that_cannot_be_read_are_refused_and_not_skipped() {
        let good = "/s?token=a.b.c";
        let cases: &[(Headers<'_>, &str, &str)] = &[
            (&[("authorization", "Basic dTpw")], good, "Authorization: must be Bearer"),
            (&[("authorization", "Bearer")], good, "Authorization: must be Bearer"),
            (&[("authorization", "Bearer ")], good, "Authorization: must be Bearer"),
            (&[("authorization", "Bearer a b")], good, "Authorization: must be Bearer"),
            (&[("authorization", "Bearer \u{e9}")], good, "Authorization: must be Bearer"),
            (&[("authorization", "Bearer a"), ("authorization", "Bearer b")], good, "more than once"),
            (&[("sec-websocket-protocol", "phoenix, base64url.bearer.phx.!")], good, "is not base64"),
            (&[("sec-websocket-protocol", "phoenix, base64url.bearer.phx._w")], good, "is not base64"),
            (&[], "/s?token=a&token=b", "token: is there more than once"),
            (&[], "/s?token=%zz", "token: is not percent-encoded UTF-8"),
            (&[], "/s?access_token=%ff", "access_token: is not percent-encoded UTF-8"),
            (&[], "/s?token=%e", "token: is not percent-encoded UTF-8"),
        ];
        for (headers, uri, expected) in cases {
            let refusal = find(headers, uri).expect_err(expected);
            assert_eq!(refusal.code, Code::Unauthenticated);
            assert!(refusal.detail.contains(expected), "{}", refusal.detail);
        }
    }

    #[test]
    fn logs_hold_no_token() {
        for (uri, shown) in [
            ("/v1/nodes", "/v1/nodes"),
            ("/s?vsn=2.0.0&token=hush", "/s?vsn=2.0.0&token=REDACTED"),
            ("/s?access_token=hush&after=3", "/s?access_token=REDACTED&after=3"),
            ("/s?Token=hush&a", "/s?Token=REDACTED&a"),
            ("/s?%74oken=hush", "/s?%74oken=REDACTED"),
            ("/s?%zz=hush", "/s?%zz=REDACTED"),
            ("http://h/s?token=hush&token=hush", "/s?token=REDACTED&token=REDACTED"),
        ] {
            assert_eq!(redacted(&uri.parse().expect("a URI")), shown);
        }
    }

    #[test]
    fn the_offer_of_phoenix_is_seen() {
        let offers = |value: &'static str| {
            offers_phoenix(&HeaderMap::from_iter([(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(value))]))
        };
        assert!(offers("phoenix, base64url.bearer.phx.YQ") && offers("chat,phoenix"));
        assert!(!offers("phoenix2") && !offers_phoenix(&HeaderMap::new()));
    }
}
