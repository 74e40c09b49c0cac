//! The URL of the lease store, checked part by part before anything is dialled:
//! `etcd://HOST[:PORT][,HOST[:PORT]…][?tls=on&ca=FILE&cert=FILE&key=FILE]`.
//!
//! Deliberately absent: names and passwords. Give the cluster's etcd a network of its own, or certificates.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::error::OpenError;
use super::tls;

/// etcd's port for clients.
const DEFAULT_PORT: u16 = 2379;
/// Most members that a URL may name.
const ENDPOINTS_MAX: usize = 16;

/// One member of the cluster, as it is dialled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: String,
    pub(super) port: u16,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A cluster, as it is dialled.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl Target {
    /// All members, for messages.
    pub(super) fn place(&self) -> String {
        self.endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

fn bad(part: &'static str, problem: impl Into<String>) -> OpenError {
    OpenError::Url { part, problem: problem.into() }
}

/// Checks a URL without dialling or reading files.
///
/// # Errors
/// A sentence that names the part.
pub fn check(url: &str) -> Result<(), String> {
    split(url).map(|_| ()).map_err(|error| error.to_string())
}

pub(super) fn parse(url: &str) -> Result<Target, OpenError> {
    let parts = split(url)?;
    let tls = match parts.tls {
        true => Some(Arc::new(tls::config(parts.ca, parts.cert.zip(parts.key))?)),
        false => None,
    };
    Ok(Target { endpoints: parts.endpoints, tls })
}

struct Parts<'a> {
    endpoints: Vec<Endpoint>,
    tls: bool,
    ca: Option<&'a str>,
    cert: Option<&'a str>,
    key: Option<&'a str>,
}

fn split(url: &str) -> Result<Parts<'_>, OpenError> {
    let rest = url.strip_prefix("etcd://").ok_or_else(|| bad("scheme", "must be etcd://"))?;
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    if address.contains('@') {
        return Err(bad(
            "user",
            "names and passwords are not supported; use tls=on with cert and key, or a network of its own",
        ));
    }
    if let Some((_, path)) = address.split_once('/').filter(|(_, path)| !path.is_empty()) {
        return Err(bad("path", format!("{path:?} says nothing here; leave it out")));
    }
    let endpoints = address.trim_end_matches('/').split(',').map(endpoint).collect::<Result<Vec<_>, _>>()?;
    if endpoints.len() > ENDPOINTS_MAX {
        return Err(bad(
            "host",
            format!("there are {} members; at most {ENDPOINTS_MAX} can be named", endpoints.len()),
        ));
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        if endpoints[..index].contains(endpoint) {
            return Err(bad("host", format!("{endpoint} is named twice")));
        }
    }
    let mut parts = Parts { endpoints, tls: false, ca: None, cert: None, key: None };
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("tls", "on")) => parts.tls = true,
            Some(("tls", "off")) => parts.tls = false,
            Some(("tls", _)) => return Err(bad("tls", "must be on or off")),
            Some(("ca", file)) if !file.is_empty() => parts.ca = Some(file),
            Some(("cert", file)) if !file.is_empty() => parts.cert = Some(file),
            Some(("key", file)) if !file.is_empty() => parts.key = Some(file),
            Some((name, _)) => {
                return Err(bad(
                    "parameter",
                    format!("{name:?} is not known or has no value; known are tls, ca, cert, key"),
                ));
            }
            None => return Err(bad("parameter", format!("{parameter:?} has no value"))),
        }
    }
    if !parts.tls && (parts.ca.is_some() || parts.cert.is_some() || parts.key.is_some()) {
        return Err(bad("tls", "ca, cert and key say nothing without tls=on"));
    }
    if parts.cert.is_some() != parts.key.is_some() {
        return Err(bad("cert", "cert and key go together"));
    }
    Ok(parts)
}

fn endpoint(text: &str) -> Result<Endpoint, OpenError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| bad("host", format!("{text:?} lacks its ]")))?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (text, Some("")),
        },
    };
    let port = match port {
        Some("") => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(0) | Err(_) => return Err(bad("port", format!("{port:?} of {host:?} is not 1 to 65535"))),
            Ok(port) => port,
        },
        None => return Err(bad("port", format!("is missing after the : in {text:?}"))),
    };
    if host.is_empty() {
        return Err(bad("host", "is missing; a URL is etcd://HOST:PORT,HOST:PORT,HOST:PORT"));
    }
    if ServerName::try_from(host).is_err() {
        return Err(bad("host", format!("{host:?} is neither a name nor an address")));
    }
    Ok(Endpoint { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_part_is_named() {
        let cases = [
            ("http://a:1", "scheme: must be etcd://"),
            ("etcd://", "host: is missing"),
            ("etcd://a:1,", "host: is missing"),
            ("etcd://a b:1", "host: \"a b\" is neither"),
            ("etcd://[::1:2", "host: \"[::1:2\" lacks its ]"),
            ("etcd://a:1,a:1", "host: a:1 is named twice"),
            ("etcd://a,a:2379", "host: a:2379 is named twice"),
            ("etcd://a:", "port: is missing"),
            ("etcd://a:0", "port: \"0\" of \"a\""),
            ("etcd://a:70000", "port: \"70000\" of \"a\""),
            ("etcd://a:x", "port: \"x\" of \"a\""),
            ("etcd://root:secret@a:1", "user: names and passwords"),
            ("etcd://a:1/conch", "path: \"conch\""),
            ("etcd://a:1?tls", "parameter: \"tls\" has no value"),
            ("etcd://a:1?tls=yes", "tls: must be on or off"),
            ("etcd://a:1?ca=/x", "tls: ca, cert and key say nothing"),
            ("etcd://a:1?tls=on&cert=/x", "cert: cert and key go together"),
            ("etcd://a:1?timeout=5", "parameter: \"timeout\" is not known"),
            ("etcd://a:1?tls=on&ca=/no/such", "ca: /no/such: "),
        ];
        for (url, expected) in cases {
            let error = parse(url).map(|target| target.place()).expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let many = (0..17).map(|number| format!("h{number}")).collect::<Vec<_>>().join(",");
        assert!(check(&format!("etcd://{many}")).expect_err("too many").contains("there are 17 members"));
    }

    #[test]
    fn good_urls_say_where() {
        for (url, place) in [
            ("etcd://a", "a:2379"),
            ("etcd://a:1,b:2,c:3/", "a:1,b:2,c:3"),
            ("etcd://[::1]:7,127.0.0.1", "[::1]:7,127.0.0.1:2379"),
            ("etcd://a?tls=off", "a:2379"),
        ] {
            assert_eq!(parse(url).map(|target| target.place()).expect(url), place);
        }
    }
}
