//! The greeting: who speaks, in which version, and what the proofs of the shared key are made over.
//!
//! Invariant: the head of a hello (protocol and version) is the same in every version, so that one of another version is
//! refused by name.
//!
//! Deliberately absent: the key, and the comparison of proofs.

use std::fmt;

use super::encoding::{DecodeError, Reader, Wire, wire_struct};
use crate::ids::{Incarnation, NodeName};

/// What a hello begins with.
const PROTOCOL: [u8; 10] = *b"conch-link";
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof, an HMAC-SHA256.
pub const PROOF_BYTES: usize = 32;
/// Most bytes of a cluster's name.
const CLUSTER_MAX_BYTES: usize = 128;

/// A proof that its sender has the key.
pub type Proof = [u8; PROOF_BYTES];

/// A version of the link's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Nodes of different majors do not talk.
    pub major: u16,
    /// A higher one knows more notices, reports and live events, which a lower one skips.
    pub minor: u16,
}

/// This node's version.
pub const VERSION: Version = Version { major: 1, minor: 1 };

/// What a node can besides what its version says; a bit each. Unknown bits mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Nothing besides.
    pub const NONE: Self = Self(0);
    /// It answers what operators ask: what it owns, and what happened on it.
    pub const SURVEY: Self = Self(1);
    /// It knows what is asked of turns and of what they are run by.
    pub const TURNS: Self = Self(2);
    /// It says whether it would take a session of an agent.
    pub const AGENTS: Self = Self(4);

    /// Whether all of these are there.
    #[must_use]
    pub fn have(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// What this node can.
pub const FEATURES: Features = Features(Features::SURVEY.0 | Features::TURNS.0 | Features::AGENTS.0);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What each side says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its version; of this node's major.
    pub version: Version,
    /// What it can besides.
    pub features: Features,
    /// The cluster that it belongs to; 1 to 128 bytes.
    pub cluster: String,
    /// Which process it is.
    pub incarnation: Incarnation,
    /// Its node's name, for logs.
    pub node: NodeName,
    /// Never used before.
    pub nonce: [u8; NONCE_BYTES],
}

/// The part of a hello that may differ between versions.
struct Rest {
    features: Features,
    cluster: String,
    incarnation: Incarnation,
    node: NodeName,
    nonce: [u8; NONCE_BYTES],
}

wire_struct!(Features { 0: features });
wire_struct!(Rest { features: features, cluster: cluster, incarnation: incarnation, node: node, nonce: nonce });

impl Wire for Hello {
    fn put(&self, out: &mut Vec<u8>) {
        PROTOCOL.put(out);
        out.extend_from_slice(&self.version.major.to_be_bytes());
        out.extend_from_slice(&self.version.minor.to_be_bytes());
        self.features.put(out);
        self.cluster.put(out);
        self.incarnation.put(out);
        self.node.put(out);
        self.nonce.put(out);
    }

    fn take(from: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        let protocol = <[u8; PROTOCOL.len()]>::take(from, "protocol").map_err(|_| DecodeError::OtherProtocol)?;
        if protocol != PROTOCOL {
            return Err(DecodeError::OtherProtocol);
        }
        let version = Version {
            major: u16::from_be_bytes(Wire::take(from, "major")?),
            minor: u16::from_be_bytes(Wire::take(from, "minor")?),
        };
        if version.major != VERSION.major {
            return Err(DecodeError::OtherVersion { theirs: version, ours: VERSION });
        }
        let Rest { features, cluster, incarnation, node, nonce } = Rest::take(from, "hello")?;
        if cluster.is_empty() || cluster.len() > CLUSTER_MAX_BYTES {
            let problem = format!("is {} bytes long; 1 to {CLUSTER_MAX_BYTES} are allowed", cluster.len());
            return Err(DecodeError::invalid("cluster", problem));
        }
        Ok(Self { version, features, cluster, incarnation, node, nonce })
    }
}

/// Who proves something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that dialled.
    Dialler,
    /// The one that was dialled.
    Listener,
}

/// What a side's proof is made over: all that both have said, and which side it is, so that no proof serves twice.
#[must_use]
pub fn transcript(side: Side, dialler: &Hello, listener: &Hello) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(match side {
        Side::Dialler => b"conch-link dialler ",
        Side::Listener => b"conch-link listener",
    });
    dialler.put(&mut out);
    listener.put(&mut out);
    out
}
