//! What the link is made of: who this node is, the shared key, and the limits.
//!
//! Invariant: the key is never shown, nor is anything from which it can be computed; proofs are compared in constant time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use conch_core::ids::{Incarnation, NodeName};
use conch_core::wire::link::{Features, Hello, PROOF_BYTES, Proof, Side, VERSION, transcript};

use super::tls::LinkTls;
use crate::auth::secret::{HIDDEN, Secret};
use crate::metrics::Metrics;
use crate::seams::Seams;

/// What the key is derived for, so that it is good for nothing else.
const KEY_LABEL: &[u8] = b"conch link key 1";

/// The key by which the nodes of a cluster know each other.
#[derive(Clone)]
pub struct LinkKey(hmac::Key);

impl LinkKey {
    /// The key of nodes that share this secret: the cluster's, or one that is given for the link alone.
    #[must_use]
    pub fn derived(secret: &Secret) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
        Self(hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, KEY_LABEL).as_ref()))
    }

    /// The proof of a side that has the key.
    pub(super) fn prove(&self, side: Side, dialler: &Hello, listener: &Hello) -> Proof {
        let tag = hmac::sign(&self.0, &transcript(side, dialler, listener));
        let mut proof = [0; PROOF_BYTES];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether the other side has the key too.
    pub(super) fn verifies(&self, proof: &Proof, side: Side, dialler: &Hello, listener: &Hello) -> bool {
        hmac::verify(&self.0, &transcript(side, dialler, listener), proof).is_ok()
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Bounds of the link.
#[derive(Debug, Clone)]
pub struct LinkLimits {
    /// Most bytes of one frame, either way.
    pub frame_bytes: usize,
    /// Requests of one connection that wait for their answer.
    pub requests: usize,
    /// Follow streams of one connection.
    pub streams: usize,
    /// Bytes that wait to be written to one connection; one frame may exceed it.
    pub queue_bytes: usize,
    /// Frames of one stream that its follower has not taken.
    pub stream_frames: u32,
    /// Bytes of one stream that its follower has not taken; one frame may exceed it.
    pub stream_bytes: u32,
    /// Frames that may wait for the hub that follows.
    pub follower_frames: usize,
    /// Connections of other nodes to this one.
    pub connections: usize,
    /// Connections whose other side has not proved itself yet.
    pub handshakes: usize,
    /// How long a connection may take to be made and both sides to prove themselves.
    pub hello: Duration,
    /// How long a peer may be silent before its connection is dropped; asked after at a quarter of it.
    pub silence: Duration,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            frame_bytes: 4 * 1024 * 1024,
            requests: 4_096,
            streams: 65_536,
            queue_bytes: 8 * 1024 * 1024,
            stream_frames: 256,
            stream_bytes: 1024 * 1024,
            follower_frames: 4_096,
            connections: 1_024,
            handshakes: 64,
            hello: Duration::from_secs(2),
            silence: Duration::from_secs(3),
        }
    }
}

/// What both ends of the link need.
#[derive(Clone)]
pub struct LinkSettings {
    /// This process.
    pub incarnation: Incarnation,
    /// Its node's name.
    pub node: NodeName,
    /// The cluster's name, 1 to 128 bytes; nodes of another one are refused.
    pub cluster: String,
    /// What this node says that it can.
    pub features: Features,
    /// What the nodes share.
    pub key: LinkKey,
    /// With it, connections are TLS and both sides show a certificate.
    pub tls: Option<LinkTls>,
    /// Bounds.
    pub limits: LinkLimits,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Tasks, time and randomness.
    pub seams: Seams,
}

impl LinkSettings {
    /// A greeting with a fresh nonce.
    pub(super) fn hello(&self) -> Hello {
        let mut nonce = [0; 32];
        for part in nonce.chunks_exact_mut(8) {
            part.copy_from_slice(&self.seams.random.bits().to_be_bytes());
        }
        Hello {
            version: VERSION,
            features: self.features,
            cluster: self.cluster.clone(),
            incarnation: self.incarnation,
            node: self.node.clone(),
            nonce,
        }
    }
}
