//! Which web pages may talk to the server.
//!
//! A browser sends `Origin` with what a page of another site started, and with every WebSocket; whatever sends none is not
//! a page of another site. In development mode the `Host` must be a loopback name too, whoever asks: a hostile page whose name was
//! made to resolve to 127.0.0.1 carries its own name there, and would otherwise count as the same site.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use conch_core::refusal::{Code, Refusal};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::secret::Mode;

/// Longest origin, in bytes.
pub const ORIGIN_MAX_BYTES: usize = 512;

/// A scheme, host and port. The port is `None` where the scheme has no default and none is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl FromStr for Origin {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be SCHEME://HOST[:PORT] without a path, such as https://app.example.com".to_owned();
        if text.len() > ORIGIN_MAX_BYTES {
            return Err(format!("is {} bytes long; at most {ORIGIN_MAX_BYTES} are allowed", text.len()));
        }
        let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = scheme.to_ascii_lowercase();
        let in_scheme = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'-' | b'.');
        if !scheme.bytes().next().is_some_and(|c| c.is_ascii_alphabetic()) || !scheme.bytes().all(in_scheme) {
            return Err(wrong());
        }
        let (host, port) = split_host(authority).ok_or_else(wrong)?;
        let port = port.or(default_port(&scheme));
        Ok(Self { scheme, host, port })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        match self.port {
            Some(port) if default_port(&self.scheme) != Some(port) => write!(f, ":{port}"),
            _ => Ok(()),
        }
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// `HOST[:PORT]` as a lower-case host and a port; `None` for what is neither a name nor an address.
fn split_host(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inside) => {
            let (address, rest) = inside.split_once(']')?;
            let address: std::net::Ipv6Addr = address.parse().ok()?;
            (format!("[{address}]"), rest)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (name, rest) = authority.split_at(end);
            let in_name = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
            if name.is_empty() || !name.bytes().all(in_name) {
                return None;
            }
            (name.to_ascii_lowercase(), rest)
        }
    };
    if rest.is_empty() {
        return Some((host, None));
    }
    let digits = rest.strip_prefix(':')?;
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    Some((host, Some(digits.parse().ok()?)))
}

/// Whether a host, as [`split_host`] gives it, is this machine. `localhost` and what ends in `.localhost` never leave it.
fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')).unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

impl Origin {
    /// `http`, `https` or another scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An entry of `auth.allowed_origins`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// `*`: any page at all.
    Any,
    /// Exactly this scheme, host and port.
    Exactly(Origin),
}

impl FromStr for AllowedOrigin {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" { Ok(Self::Any) } else { text.parse().map(Self::Exactly) }
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exactly(origin) => origin.fmt(f),
        }
    }
}

impl Serialize for AllowedOrigin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AllowedOrigin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Who is asking, as far as the browser says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    /// No `Origin`: not a browser, or a plain request of our own page.
    None,
    /// A page of this server.
    Own,
    /// An allowed page of another site; the answer needs the CORS headers for it.
    Foreign,
}

/// What the server was told about pages.
#[derive(Debug, Clone)]
pub struct OriginPolicy {
    /// Development mode serves loopback pages, and answers to loopback names, alone.
    pub mode: Mode,
    /// `auth.allowed_origins`.
    pub allowed: Vec<AllowedOrigin>,
}

impl OriginPolicy {
    /// Judges the `Origin` and `Host` headers of a request; the host of an absolute URI stands in for `Host`.
    ///
    /// # Errors
    /// `forbidden` for a page that is not allowed; `invalid_request` for a `Host` that is none.
    pub fn check(&self, origin: Option<&str>, host: Option<&str>) -> Result<Page, Refusal> {
        let host = match host {
            Some(text) => Some(
                split_host(text)
                    .ok_or_else(|| Refusal::new(Code::InvalidRequest, "Host: must be HOST or HOST:PORT"))?,
            ),
            None => None,
        };
        let host_is_loopback = host.as_ref().is_some_and(|(name, _)| is_loopback(name));
        let host_is_foreign = host.is_some() && !host_is_loopback;
        if self.mode == Mode::Development && host_is_foreign {
            return Err(forbidden(
                "Host: this development server answers to localhost and loopback addresses alone; configure a key to serve others",
            ));
        }
        let Some(origin) = origin else { return Ok(Page::None) };
        // `null`, what sandboxed and local pages send, is no origin, and only `*` lets it in.
        let parsed: Option<Origin> = origin.parse().ok();
        if let (Some(origin), Some(host)) = (&parsed, &host)
            && is_same(origin, host)
        {
            return Ok(Page::Own);
        }
        let listed = self.allowed.iter().any(|allowed| match allowed {
            AllowedOrigin::Any => true,
            AllowedOrigin::Exactly(exact) => parsed.as_ref() == Some(exact),
        });
        let neighbour = self.mode == Mode::Development
            && host_is_loopback
            && parsed.as_ref().is_some_and(|origin| is_loopback(&origin.host));
        if listed || neighbour {
            return Ok(Page::Foreign);
        }
        Err(forbidden("Origin: pages of this site may not use this server; see auth.allowed_origins"))
    }
}

fn forbidden(detail: &str) -> Refusal {
    Refusal::new(Code::Forbidden, detail)
}

/// Whether a page of `origin` was served under the name `host`. The scheme may differ, since TLS may end before us; a port
/// that `host` does not name is the default one of the page's scheme.
fn is_same(origin: &Origin, (name, port): &(String, Option<u16>)) -> bool {
    origin.host == *name && origin.port == port.or(default_port(&origin.scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: Mode, allowed: &[&str]) -> OriginPolicy {
        let allowed = allowed.iter().map(|text| text.parse().expect("an origin")).collect();
        OriginPolicy { mode, allowed }
    }

    /// Mode, allowed origins, Origin, Host, verdict (`None`: refused).
    type Case<'a> = (Mode, &'a [&'a str], Option<&'a str>, Option<&'a str>, Option<Page>);

    #[test]
    fn pages_that_are_not_allowed_do_not_get_in() {
        use Mode::{Configured, Development};
        let evil = Some("https://evil.example");
        let app = "https://app.example.com";
        let own = Some("chat.example.com");
        let local = Some("127.0.0.1:4000");
        let cases: &[Case<'_>] = &[
            (Configured, &[], None, own, Some(Page::None)),
            (Configured, &[], None, None, Some(Page::None)),
            (Configured, &[], Some("https://chat.example.com"), own, Some(Page::Own)),
            (Configured, &[], Some("https://CHAT.example.com:443"), own, Some(Page::Own)),
            (Configured, &[], Some("http://chat.example.com:4000"), Some("chat.example.com:4000"), Some(Page::Own)),
            (Configured, &[], Some("http://[::1]:4000"), Some("[0:0::1]:4000"), Some(Page::Own)),
            (Configured, &[], evil, own, None),
            (Configured, &[], evil, None, None),
            (Configured, &[], Some("https://chat.example.com:8443"), own, None),
            (Configured, &[], Some("https://chat.example.com.evil.example"), own, None),
            (Configured, &[], Some("https://xchat.example.com"), own, None),
            (Configured, &[], Some("null"), own, None),
            (Configured, &[], Some(""), own, None),
            (Configured, &[], Some("https://chat.example.com@evil.example"), own, None),
            (Configured, &[], Some("http://localhost:5173"), local, None),
            (Configured, &[app], Some(app), own, Some(Page::Foreign)),
            (Configured, &[app], Some("http://app.example.com"), own, None),
            (Configured, &[app], Some("https://app.example.com:444"), own, None),
            (Configured, &[app], Some("https://sub.app.example.com"), own, None),
            (Configured, &[app], evil, own, None),
            (Configured, &["*"], evil, own, Some(Page::Foreign)),
            (Configured, &["*"], Some("null"), own, Some(Page::Foreign)),
            (Development, &[], None, local, Some(Page::None)),
            (Development, &[], Some("http://127.0.0.1:4000"), local, Some(Page::Own)),
            (Development, &[], Some("http://localhost:5173"), local, Some(Page::Foreign)),
            (Development, &[], Some("http://app.localhost:80"), Some("localhost:4000"), Some(Page::Foreign)),
            (Development, &[], evil, local, None),
            (Development, &[], Some("http://localhost:5173"), None, None),
            (Development, &[], Some("http://localhost.evil.example"), local, None),
            (Development, &[], Some("http://127.0.0.1.evil.example"), local, None),
            (Development, &[], Some("null"), local, None),
            // A name of theirs that resolves to this machine.
            (Development, &[], Some("http://evil.example:4000"), Some("evil.example:4000"), None),
            (Development, &[], None, Some("evil.example:4000"), None),
            (Development, &["*"], None, Some("evil.example:4000"), None),
            (Development, &[app], Some(app), local, Some(Page::Foreign)),
        ];
        for (mode, allowed, origin, host, expected) in cases {
            let verdict = policy(*mode, allowed).check(*origin, *host);
            assert_eq!(verdict.as_ref().ok(), expected.as_ref(), "{mode:?} {allowed:?} {origin:?} {host:?}");
            if let Err(refusal) = verdict {
                assert_eq!(refusal.code, Code::Forbidden);
            }
        }
    }

    #[test]
    fn a_host_that_is_none_is_a_bad_request() {
        for host in ["", "a b", "a:", "a:x", "a:70000", "[::1", "[x]", "a/b", "u@h", "[::1]x", "a:80:80"] {
            let refusal = policy(Mode::Configured, &[]).check(None, Some(host)).expect_err(host);
            assert_eq!(refusal.code, Code::InvalidRequest, "{host}");
        }
    }

    #[test]
    fn entries_are_exact_origins() {
        for text in [
            "",
            "app.example.com",
            "https://",
            "https://a/",
            "https://a/b",
            "https://*.a",
            "https://u@a",
            "//a",
            "é://a",
        ] {
            assert!(text.parse::<AllowedOrigin>().is_err(), "{text}");
        }
        for (text, shown) in [
            ("*", "*"),
            ("HTTPS://App.Example.com:443", "https://app.example.com"),
            ("http://a:8080", "http://a:8080"),
            ("capacitor://localhost", "capacitor://localhost"),
        ] {
            assert_eq!(text.parse::<AllowedOrigin>().expect("an origin").to_string(), shown);
        }
    }
}
