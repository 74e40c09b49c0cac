//! Where the nodes of a bench of several gateways keep their records: a schema of its own in a given database, or a server of
//! the bench's own.

use super::ground::Ground;
use super::postgres::Postgres;
use crate::exit::Failure;
use crate::local;

/// The database of one run.
pub(super) struct Database {
    /// Its URL, perhaps with a password: never shown.
    pub(super) url: String,
    /// An operator's token, whose rate is not limited.
    pub(super) token: String,
    /// The cluster's secret; `None`: the environment's.
    pub(super) secret: Option<String>,
    given: Option<Ground>,
    _own: Option<Postgres>,
}

impl Database {
    /// In the database that `--store` names; without it on a server of its own, for this many connections.
    pub(super) async fn make(store: Option<&str>, connections: usize) -> Result<Self, Failure> {
        let Some(store) = store else {
            let own = Postgres::start(connections)?;
            let secret = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
            let token = local::bench_token_of(&secret).map_err(Failure::other)?;
            return Ok(Self { url: own.url(), token, secret: Some(secret), given: None, _own: Some(own) });
        };
        let mut ground = Ground::database(store)?;
        let url = ground.store("scale").await?;
        let token = local::bench_token(&url).map_err(Failure::usage)?;
        Ok(Self { url, token, secret: None, given: Some(ground), _own: None })
    }

    /// Removes what was made.
    pub(super) async fn clear(self) {
        if let Some(ground) = self.given {
            ground.clear().await;
        }
    }
}
