//! The database URL, checked part by part before anything is dialled.
//!
//! Invariant: no message shows the password.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{OpenError, text_of};
use super::tls;

/// Parameters that go to the driver as they are.
const DRIVER_PARAMETERS: &[&str] = &[
    "user",
    "password",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "options",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "channel_binding",
    "load_balance_hosts",
];
/// One address of several is given up after this.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// What was sent and not acknowledged for this long ends the connection (a cut cable, a host that is gone).
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(5);
/// An idle connection is probed after this.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
/// And again after this.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
/// So often before it counts as lost.
const KEEPALIVE_TRIES: u32 = 3;

/// How a session is encrypted.
#[derive(Clone)]
pub(super) enum Encryption {
    /// Not at all.
    Off,
    /// With a certificate that is checked.
    Tls(MakeRustlsConnect),
}

/// A database, as it is dialled.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    pub(super) encryption: Encryption,
    /// Hosts, ports and database, for messages.
    pub(super) place: String,
}

fn bad(part: &'static str, problem: impl Into<String>) -> OpenError {
    OpenError::Url { part, problem: problem.into() }
}

/// Parses a URL: `postgres://USER[:PASSWORD]@HOST[:PORT][,HOST[:PORT]…]/DATABASE[?PARAMETER=VALUE&…]`; a Unix socket's
/// directory is given as the parameter `host`.
pub(super) fn parse(url: &str) -> Result<Target, OpenError> {
    let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or_else(|| bad("scheme", "must be postgres:// or postgresql://"))?;
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut kept = Vec::new();
    let (mut sslmode, mut sslrootcert) = (None, None);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) =
            parameter.split_once('=').ok_or_else(|| bad("parameter", format!("{parameter:?} has no value")))?;
        match name {
            "sslmode" => sslmode = Some(value.to_owned()),
            "sslrootcert" => sslrootcert = Some(value.to_owned()),
            "target_session_attrs" if value == "read-write" => {}
            "target_session_attrs" => return Err(bad("target_session_attrs", "must be read-write, or left out")),
            "application_name" => return Err(bad("application_name", "is set by conch itself; leave it out")),
            // Several sockets are written as several hosts are; the driver takes one a parameter.
            "host" => kept.extend(value.split(',').map(|host| format!("host={host}"))),
            name if DRIVER_PARAMETERS.contains(&name) => kept.push(parameter.to_owned()),
            other => return Err(bad("parameter", format!("{other:?} is not known; known are {}", known()))),
        }
    }
    let plain = format!("postgres://{address}?{}", kept.join("&"));
    let mut config: Config = plain.parse().map_err(|error| of_parser(&error))?;
    check_parts(&config)?;
    let encryption = encryption(sslmode.as_deref(), sslrootcert.as_deref())?;
    let place = place(&config);
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    config.ssl_mode(match &encryption {
        Encryption::Off => SslMode::Disable,
        Encryption::Tls(_) => SslMode::Require,
    });
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_LIMIT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(UNACKNOWLEDGED_LIMIT);
    }
    config.keepalives(true).keepalives_idle(KEEPALIVE_AFTER);
    config.keepalives_interval(KEEPALIVE_EVERY).keepalives_retries(KEEPALIVE_TRIES);
    Ok(Target { config, encryption, place })
}

fn known() -> String {
    let ours = ["sslmode", "sslrootcert", "target_session_attrs"];
    ours.iter().chain(DRIVER_PARAMETERS).copied().collect::<Vec<_>>().join(", ")
}

/// The driver's parser names the option between backticks, and never shows a value.
fn of_parser(error: &tokio_postgres::Error) -> OpenError {
    let text = text_of(error);
    let named = text.split('`').nth(1).and_then(|name| DRIVER_PARAMETERS.iter().find(|known| **known == name));
    match named {
        Some(name) => bad(name, "has a value that cannot be used"),
        None => bad("address", text),
    }
}

fn check_parts(config: &Config) -> Result<(), OpenError> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(bad("host", "is missing; for a Unix socket give its directory as ?host=/DIRECTORY"));
    }
    if config.get_user().is_none_or(str::is_empty) {
        return Err(bad("user", "is missing"));
    }
    if config.get_dbname().is_none_or(str::is_empty) {
        return Err(bad("database", "is missing; the URL's path names it"));
    }
    let (hosts, ports) = (config.get_hosts().len(), config.get_ports().len());
    if ports > 1 && hosts > 0 && ports != hosts {
        return Err(bad("port", format!("there are {ports} ports for {hosts} hosts")));
    }
    Ok(())
}

fn encryption(sslmode: Option<&str>, sslrootcert: Option<&str>) -> Result<Encryption, OpenError> {
    match (sslmode.unwrap_or("disable"), sslrootcert) {
        ("disable", None) => Ok(Encryption::Off),
        ("disable", Some(_)) => Err(bad("sslrootcert", "says nothing without sslmode=require or sslmode=verify-full")),
        ("require" | "verify-full", root_file) => Ok(Encryption::Tls(tls::connector(root_file)?)),
        ("allow" | "prefer", _) => {
            Err(bad("sslmode", "must be disable, require or verify-full: anything in between protects nobody"))
        }
        (other, _) => Err(bad("sslmode", format!("must be disable, require or verify-full, not {other:?}"))),
    }
}

fn place(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(index)),
        Host::Unix(path) => format!("{}:{}", path.display(), port(index)),
    });
    let database = config.get_dbname().unwrap_or_default();
    format!("{}/{database}", hosts.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_part_is_named_and_no_password_shown() {
        let cases = [
            ("mysql://u:secret@h/d", "scheme: must be postgres:// or postgresql://"),
            ("postgres://u:secret@/d", "host: is missing"),
            ("postgres://:secret@h/d", "user: is missing"),
            ("postgres://u:secret@h", "database: is missing"),
            ("postgres://u:secret@h/", "database: is missing"),
            ("postgres://u:secret@h:99999/d", "port: has a value"),
            ("postgres://u:secret@h:x/d", "port: has a value"),
            ("postgres://u:secret@h/d?sslmode=prefer", "sslmode: must be disable, require or verify-full"),
            ("postgres://u:secret@h/d?sslmode=off", "sslmode: must be disable, require or verify-full"),
            ("postgres://u:secret@h/d?sslrootcert=/x", "sslrootcert: says nothing without sslmode=require"),
            ("postgres://u:secret@h/d?sslmode=require&sslrootcert=/no/such", "sslrootcert: /no/such: "),
            ("postgres://u:secret@h/d?pool=5", "parameter: \"pool\" is not known"),
            ("postgres://u:secret@h/d?port", "parameter: \"port\" has no value"),
            ("postgres://u:secret@h/d?connect_timeout=soon", "connect_timeout: has a value"),
            ("postgres://u:secret@h/d?target_session_attrs=any", "target_session_attrs: must be read-write"),
            ("postgres://u:secret@h/d?application_name=x", "application_name: is set by conch"),
        ];
        for (url, expected) in cases {
            let error = parse(url).map(|target| target.place).expect_err(url).to_string();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn good_urls_say_where() {
        for (url, place) in [
            ("postgres://u:p@h/d", "h:5432/d"),
            ("postgresql://u@h:1/d", "h:1/d"),
            ("postgres://u@a:1,b:2/d", "a:1,b:2/d"),
            ("postgres://u@/d?host=/tmp/x&port=7", "/tmp/x:7/d"),
            ("postgres://u@/d?host=/tmp/x,/tmp/y&port=7,8", "/tmp/x:7,/tmp/y:8/d"),
        ] {
            assert_eq!(parse(url).map(|target| target.place).expect(url), place);
        }
    }
}
