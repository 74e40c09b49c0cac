//! What only this machine's operator can do: read the configuration and the signing key, and mint tokens with it.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conch_core::time::Timestamp;
use conch_server::auth::glob::Glob;
use conch_server::auth::grants::{Grant, Permission, RateLimit};
use conch_server::auth::secret::Secret;
use conch_server::auth::token::{Mint, TokenKey};
use conch_server::config::{Config, Flags};
use conch_server::stores;

/// How long a token is good that a command mints for itself.
const OWN_TOKEN_TTL: Duration = Duration::from_secs(24 * 3600);
/// The subject of a bench.
const BENCH_SUBJECT: &str = "bench";

/// The configuration that a node would run with.
pub(crate) fn config(file: Option<PathBuf>, flags: Flags) -> Result<Config, String> {
    let file = file.or_else(|| std::env::var_os("CONCH_CONFIG").filter(|name| !name.is_empty()).map(PathBuf::from));
    let environment = |name: &str| std::env::var(name).ok();
    Config::load(file.as_deref(), &environment, flags).map_err(|error| error.to_string())
}

/// The configuration as far as a command needs it that is only told where the store is.
pub(crate) fn config_of_store(store: Option<&str>) -> Result<Config, String> {
    config(None, Flags { store: store.map(str::to_owned), ..Flags::default() })
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MintError {
    /// The key is not there or not good.
    #[error("{0}")]
    Key(String),
    /// No server would take what it was asked to hold.
    #[error("{0}")]
    Claim(String),
}

/// A token signed with the configured key, or the data directory's development key.
pub(crate) fn mint(config: &Config, mint: impl FnOnce(Timestamp) -> Mint) -> Result<String, MintError> {
    let key = stores::find_signing_key(config).map_err(|error| MintError::Key(error.to_string()))?;
    let key = TokenKey::new(&key.secret).map_err(|error| MintError::Key(error.to_string()))?;
    let now = now();
    key.mint(&mint(now), now).map_err(|error| MintError::Claim(error.to_string()))
}

/// A token for the user of this machine: whoever can read the key may do everything.
pub(crate) fn token_of_the_user(store: Option<&str>) -> Result<String, String> {
    let named = |variable| std::env::var(variable).ok().filter(|name: &String| !name.is_empty());
    let user = named("USER").or_else(|| named("LOGNAME")).unwrap_or_else(|| "local".to_owned());
    mint(&config_of_store(store)?, |now| Mint {
        sub: user.clone(),
        name: Some(user),
        expires_at: after(now, OWN_TOKEN_TTL),
        grants: vec![everything()],
        rate_limit: RateLimit::Default,
    })
    .map_err(|error| error.to_string())
}

/// A token for a bench: its rate is not limited.
pub(crate) fn bench_token(store: &str) -> Result<String, String> {
    mint(&config_of_store(Some(store))?, bench_mint).map_err(|error| error.to_string())
}

/// The same of a cluster that shares this secret.
pub(crate) fn bench_token_of(secret: &str) -> Result<String, String> {
    let key = TokenKey::new(&Secret::new(secret)).map_err(|error| error.to_string())?;
    let now = now();
    key.mint(&bench_mint(now), now).map_err(|error| error.to_string())
}

fn bench_mint(now: Timestamp) -> Mint {
    Mint {
        sub: BENCH_SUBJECT.to_owned(),
        name: None,
        expires_at: after(now, OWN_TOKEN_TTL),
        grants: vec![everything()],
        rate_limit: RateLimit::Lifted,
    }
}

fn everything() -> Grant {
    Grant { conversations: Glob::any(), can: Permission::ALL.to_vec() }
}

/// A moment after another one.
pub(crate) fn after(now: Timestamp, duration: Duration) -> Timestamp {
    Timestamp(now.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
