//! The store on a real server.

mod fixture;

use fixture::PostgresFixture;

crate::conformance_tests!(conformance, PostgresFixture::new().await);
