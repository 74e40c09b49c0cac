//! The store on a real server.

mod bench;
mod differential;
mod elsewhere;
mod failover;
mod faults;
pub(crate) mod fixture;
mod lifelines;
mod mutants;
mod outage;
mod ownership;
mod pages;
mod poolers;
mod proxy;
pub(crate) mod rig;
mod start;
mod stress;
mod tls;
mod verify;

use fixture::PostgresFixture;

crate::conformance_tests!(conformance, PostgresFixture::new().await);
