//! Encrypted connections.

use std::process::Command;

use super::super::PostgresStore;
use super::super::error::OpenError;
use super::super::testing::{Disk, TestServer};
use super::fixture::options;
use super::rig::{A, register};
use crate::LeaseStore;

/// A certificate for `localhost` that signs itself, made by openssl. It is no authority: a server may not show one.
fn certificate(directory: &std::path::Path) {
    let rules = "[req]\ndistinguished_name = name\nx509_extensions = rules\nprompt = no\n[name]\nCN = localhost\n\
                 [rules]\nbasicConstraints = critical, CA:FALSE\nsubjectAltName = DNS:localhost\n";
    std::fs::write(directory.join("rules"), rules).expect("writes");
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-config",
        "rules",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]);
    openssl.args(["-days", "2", "-keyout", "key.pem", "-out", "cert.pem"]);
    let output = openssl.current_dir(directory).output().expect("openssl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_certificate_is_trusted_when_it_is_named_and_not_otherwise() {
    let made = tempfile::tempdir().expect("a temporary directory");
    certificate(made.path());
    let server =
        TestServer::start_encrypted(Disk::NotSynced, &made.path().join("cert.pem"), &made.path().join("key.pem"));
    server.sql("CREATE DATABASE conch");
    let port = server.port().expect("it has one");
    let certificate = made.path().join("cert.pem");
    for mode in ["require", "verify-full"] {
        let url =
            format!("postgres://postgres@localhost:{port}/conch?sslmode={mode}&sslrootcert={}", certificate.display());
        let store = PostgresStore::open(&url, options("a")).await.expect("opens");
        assert_eq!(store.nodes().await.expect("answers").len(), usize::from(mode != "require"));
        if mode == "require" {
            register(&store, A).await;
        }
        server.sql(
            "DO $$ BEGIN ASSERT (SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
               WHERE application_name LIKE 'conch/%'); END $$",
        );
        // Another name than the certificate's.
        let error =
            PostgresStore::open(&url.replace("localhost", "127.0.0.1"), impatient()).await.expect_err("another name");
        assert!(matches!(error, OpenError::Connect { .. }), "{error}");
    }
    let url = format!("postgres://postgres@localhost:{port}/conch?sslmode=require");
    let error = PostgresStore::open(&url, impatient()).await.expect_err("nobody vouches for it");
    assert!(error.to_string().contains("certificate"), "{error}");
}

fn impatient() -> super::super::Options {
    let mut options = options("a");
    options.connect_patience = std::time::Duration::ZERO;
    options
}
