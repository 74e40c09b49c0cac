//! Encryption on the way to the server: rustls with the one provider of this program.
//!
//! Invariant: a certificate is always checked, name and all. `require`, which elsewhere encrypts without asking to whom, is
//! taken for `verify-full`: encryption to whoever answers protects from nobody who can answer.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::OpenError;

fn bad(part: &'static str, problem: String) -> OpenError {
    OpenError::Url { part, problem }
}

/// Trusts the certificates in this file, or else those of the machine.
pub(super) fn connector(root_file: Option<&str>) -> Result<MakeRustlsConnect, OpenError> {
    let mut roots = RootCertStore::empty();
    match root_file {
        Some(file) => add_file(&mut roots, Path::new(file))?,
        None => {
            // Some of a machine's many may be unreadable; what counts is that there are any.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let problem =
                    "needs certificates to trust, and this machine has none; give sslrootcert=FILE".to_owned();
                return Err(bad("sslmode", problem));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad("sslmode", error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn add_file(roots: &mut RootCertStore, file: &Path) -> Result<(), OpenError> {
    let problem = |error: &dyn std::fmt::Display| bad("sslrootcert", format!("{}: {error}", file.display()));
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| problem(&error))? {
        let certificate = certificate.map_err(|error| problem(&error))?;
        roots.add(certificate).map_err(|error| problem(&error))?;
    }
    if roots.is_empty() { Err(problem(&"holds no certificate")) } else { Ok(()) }
}
