//! Encryption on the way to etcd: rustls with the one provider of this program. A certificate is always checked.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::error::OpenError;

fn bad(part: &'static str, file: &str, problem: &dyn std::fmt::Display) -> OpenError {
    OpenError::Url { part, problem: format!("{file}: {problem}") }
}

/// Trusts the certificates in `ca`, or else those of the machine; shows `own` (a chain and its key) to who asks.
pub(super) fn config(ca: Option<&str>, own: Option<(&str, &str)>) -> Result<ClientConfig, OpenError> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(file) => {
            for certificate in certificates("ca", file)? {
                roots.add(certificate).map_err(|error| bad("ca", file, &error))?;
            }
        }
        None => {
            // Some of a machine's many may be unreadable; what counts is that there are any.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let problem = "needs certificates to trust, and this machine has none; give ca=FILE".to_owned();
                return Err(OpenError::Url { part: "tls", problem });
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| OpenError::Url { part: "tls", problem: error.to_string() })?
        .with_root_certificates(roots);
    let Some((chain_file, key_file)) = own else { return Ok(builder.with_no_client_auth()) };
    let key = PrivateKeyDer::from_pem_file(Path::new(key_file)).map_err(|error| bad("key", key_file, &error))?;
    let chain = certificates("cert", chain_file)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| bad("cert", chain_file, &error))
}

fn certificates(part: &'static str, file: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let problem = |error: &dyn std::fmt::Display| bad(part, file, error);
    let read = CertificateDer::pem_file_iter(Path::new(file)).map_err(|error| problem(&error))?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(|error| problem(&error))?;
    if certificates.is_empty() { Err(problem(&"holds no certificate")) } else { Ok(certificates) }
}
