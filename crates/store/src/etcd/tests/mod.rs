//! Leases on a real etcd cluster of three, records on a real PostgreSQL server.

mod fixture;

pub(super) use fixture::MovedClock;
use fixture::EtcdFixture;

crate::conformance_tests!(conformance, EtcdFixture::new().await);
