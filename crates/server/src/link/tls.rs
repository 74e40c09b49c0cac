//! TLS between nodes: both sides show a certificate of the cluster's own authority.
//!
//! Invariant: one provider (aws-lc), TLS 1.3 only, no connection without a client certificate. The proof of the shared key
//! runs inside of it all the same.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{setting} ({}): {reason}", path.display())]
pub struct LinkTlsError {
    /// The setting that names the file.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// Where the certificates are, all PEM.
#[derive(Debug, Clone, Copy)]
pub struct LinkTlsFiles<'a> {
    /// This node's certificate and those between it and the authority's; good for servers and clients, and naming the host
    /// of link_advertise.
    pub cert: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authority whose certificates are believed.
    pub ca: &'a Path,
}

/// Both roles' settings; cheap to clone.
#[derive(Clone)]
pub struct LinkTls {
    pub(super) acceptor: TlsAcceptor,
    pub(super) connector: TlsConnector,
}

impl fmt::Debug for LinkTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkTls")
    }
}

impl LinkTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the setting, the file and what is wrong with it.
    pub fn load(files: LinkTlsFiles<'_>) -> Result<Self, LinkTlsError> {
        let refused = |setting, path: &Path, reason: &dyn fmt::Display| LinkTlsError {
            setting,
            path: path.to_owned(),
            reason: reason.to_string(),
        };
        let chain = certificates("link.tls_cert", files.cert)?;
        let key =
            PrivateKeyDer::from_pem_file(files.key).map_err(|error| refused("link.tls_key", files.key, &error))?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates("link.tls_ca", files.ca)? {
            roots.add(certificate).map_err(|error| refused("link.tls_ca", files.ca, &error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(aws_lc_rs::default_provider()));
        let bad_key = |error: tokio_rustls::rustls::Error| refused("link.tls_key", files.key, &error);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| refused("link.tls_ca", files.ca, &error))?;
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider knows TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(bad_key)?;
        let client = client_config(provider, roots).with_client_auth_cert(chain, key).map_err(bad_key)?;
        Ok(Self { acceptor: Arc::new(server).into(), connector: Arc::new(client).into() })
    }
}

type WantsClientCert = tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::client::WantsClientCert>;

fn client_config(provider: Arc<CryptoProvider>, roots: Arc<RootCertStore>) -> WantsClientCert {
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .expect("the provider knows TLS 1.3")
        .with_root_certificates(roots)
}

fn certificates(setting: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, LinkTlsError> {
    let refused = |reason: String| LinkTlsError { setting, path: path.to_owned(), reason };
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| refused(error.to_string()))?.collect();
    match found {
        Ok(found) if found.is_empty() => Err(refused("holds no certificate in PEM".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(refused(error.to_string())),
    }
}
