//! Leases on a real etcd cluster of three, records on a real PostgreSQL server.

mod differential;
mod faults;
mod fixture;
mod guards;
mod lifelines;
mod proxy;
mod start;

use fixture::EtcdFixture;
pub(super) use fixture::MovedClock;

crate::conformance_tests!(conformance, EtcdFixture::new().await);
