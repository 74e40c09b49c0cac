//! The link inside of TLS, where both sides show a certificate.

use std::path::Path;

use conch_core::ids::Incarnation;
use conch_server::link::{Link, LinkError, LinkTls, LinkTlsError, LinkTlsFiles, TcpLink};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

use super::follow::record;
use super::harness::{LONG, Node, OWNER, asker, connected, conversation, metric, quick, sessions, settings};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed")
}

/// A certificate of this authority for 127.0.0.1, believing that one.
fn load(signed_by: &Authority, believes: &Authority) -> (TempDir, Result<LinkTls, LinkTlsError>) {
    let directory = tempfile::tempdir().expect("a directory");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let certificate = params.signed_by(&key, signed_by).expect("signed");
    let write = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path
    };
    let cert = write("cert.pem", certificate.pem());
    let key = write("key.pem", key.serialize_pem());
    let ca = write("ca.pem", believes.pem());
    let tls = LinkTls::load(LinkTlsFiles { cert: &cert, key: &key, ca: &ca });
    (directory, tls)
}

fn tls(signed_by: &Authority, believes: &Authority) -> Option<LinkTls> {
    Some(load(signed_by, believes).1.expect("good files"))
}

async fn node(authority: &Authority) -> Node {
    let mut with = settings(OWNER, 7, quick());
    with.tls = tls(authority, authority);
    Node::start(with).await
}

fn link(secret: u8, tls: Option<LinkTls>) -> TcpLink {
    let mut with = settings(Incarnation(0xa), secret, quick());
    with.tls = tls;
    TcpLink::new(with)
}

#[tokio::test]
async fn nodes_of_one_authority_talk() {
    let authority = authority();
    let node = node(&authority).await;
    let link = link(7, tls(&authority, &authority));
    assert_eq!(link.ask(&node.peer(), sessions("1"), LONG).await, Ok(connected(1)));
    assert_eq!(link.who_answers(&node.addr.to_string(), LONG).await, Ok(OWNER));
    let to = node.owns("c", 8);
    let mut follow = link.follow(&node.peer(), &conversation("c"), LONG).await.expect("reached").expect("owned");
    for seq in 6..=500 {
        to.send(record(seq)).await.expect("followed");
        assert!(follow.frames.recv().await.is_some());
    }
    node.stop().await;
    assert!(follow.frames.recv().await.is_none());
}

#[tokio::test]
async fn whoever_has_no_certificate_of_the_authority_is_refused() {
    let (ours, theirs) = (authority(), authority());
    let node = node(&ours).await;
    for (what, link, said) in [
        ("no TLS", asker(quick()), "cannot be understood: it sends TLS (link.tls_cert"),
        ("a certificate of another authority", link(7, tls(&theirs, &ours)), ""),
        ("a belief in another authority", link(7, tls(&ours, &theirs)), ""),
    ] {
        let refused = link.ask(&node.peer(), sessions("1"), LONG).await;
        assert!(matches!(&refused, Err(LinkError::Unreachable(why)) if why.contains(said)), "{what}: {refused:?}");
        let asked = link.who_answers(&node.addr.to_string(), LONG).await;
        assert!(matches!(asked, Err(LinkError::Ambiguous(_))), "{what}: {asked:?}");
    }
    assert_ne!(metric(&node.metrics, "conch_link_refusals_total{reason=\"tls\"}"), "0");
    assert_eq!(node.service.asked.load(std::sync::atomic::Ordering::SeqCst), 0);
    node.stop().await;
}

#[tokio::test]
async fn a_listener_without_tls_is_named_to_whoever_speaks_it() {
    let authority = authority();
    let node = Node::start(settings(OWNER, 7, quick())).await;
    let refused = link(7, tls(&authority, &authority)).ask(&node.peer(), sessions("1"), LONG).await;
    let said = |why: &str| why.contains("seems to speak without TLS");
    assert!(matches!(&refused, Err(LinkError::Unreachable(why)) if said(why)), "{refused:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_certificate_does_not_stand_for_the_secret() {
    let authority = authority();
    let node = node(&authority).await;
    let refused = link(8, tls(&authority, &authority)).ask(&node.peer(), sessions("1"), LONG).await;
    assert!(matches!(&refused, Err(LinkError::Unreachable(why)) if why.contains("secret differs")), "{refused:?}");
    node.stop().await;
}

#[test]
fn bad_files_are_named() {
    let authority = authority();
    let (directory, good) = load(&authority, &authority);
    assert!(good.is_ok());
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("empty.pem"), "").expect("writable");
    let (cert, key, ca, empty, none) =
        (path("cert.pem"), path("key.pem"), path("ca.pem"), path("empty.pem"), path("none"));
    let refused = |cert: &Path, key: &Path, ca: &Path| {
        LinkTls::load(LinkTlsFiles { cert, key, ca }).expect_err("must be refused").to_string()
    };
    for (error, setting, file) in [
        (refused(&none, &key, &ca), "link.tls_cert", &none),
        (refused(&empty, &key, &ca), "link.tls_cert", &empty),
        (refused(&cert, &cert, &ca), "link.tls_key", &cert),
        (refused(&cert, &key, &empty), "link.tls_ca", &empty),
        (refused(&ca, &key, &ca), "link.tls_key", &key),
    ] {
        assert!(error.starts_with(&format!("{setting} ({}): ", file.display())), "{error}");
    }
}
