//! Where workers call back: a URL that says, under a signature of the cluster, which run of which turn it is for.
//!
//! Invariant: a URL is good for one attempt of one turn. Any node verifies it, for all have the cluster's key; only the
//! owner knows whether the attempt is the one that runs.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use conch_core::ids::{ConversationId, Epoch, Seq};

use crate::auth::secret::{HIDDEN, Secret};

/// What the key is derived for, so that it is good for nothing else.
const KEY_LABEL: &[u8] = b"conch worker callback 1";
/// Longest token, in bytes: the longest conversation's, and its signature.
const TOKEN_MAX_BYTES: usize = 512;
/// The path under which workers call back.
pub const PATH: &str = "/v1/worker/";

/// The run that asked a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Where.
    pub conversation: ConversationId,
    /// The turn.
    pub turn: Seq,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Which attempt in it.
    pub attempt: u32,
}

/// See the module's description. Cheap to clone.
#[derive(Clone)]
pub struct Callbacks {
    key: hmac::Key,
    base: Arc<str>,
}

impl Callbacks {
    /// Callbacks of a cluster with this secret, at the base URL of its public listener.
    #[must_use]
    pub fn new(secret: &Secret, base: String) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
        let key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&root, KEY_LABEL).as_ref());
        Self { key, base: base.into() }
    }

    /// Where the worker that this run asks calls back.
    #[must_use]
    pub fn url(&self, asked: &Asked) -> String {
        format!("{}{PATH}{}", self.base, self.token(asked))
    }

    fn token(&self, asked: &Asked) -> String {
        let Asked { conversation, turn, epoch, attempt } = asked;
        let said = format!("{conversation}/{turn}/{epoch}/{attempt}");
        let proof = hmac::sign(&self.key, said.as_bytes());
        format!("{}.{}", URL_SAFE_NO_PAD.encode(&said), URL_SAFE_NO_PAD.encode(proof.as_ref()))
    }

    /// The run that a token was made for; `None`: this cluster did not make it.
    #[must_use]
    pub fn verify(&self, token: &str) -> Option<Asked> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let (said, proof) = token.split_once('.')?;
        let (said, proof) = (URL_SAFE_NO_PAD.decode(said).ok()?, URL_SAFE_NO_PAD.decode(proof).ok()?);
        hmac::verify(&self.key, &said, &proof).ok()?;
        let said = String::from_utf8(said).ok()?;
        // No conversation's id holds a slash.
        let mut parts = said.split('/');
        let conversation = parts.next()?.parse().ok()?;
        let (turn, epoch) = (Seq(parts.next()?.parse().ok()?), Epoch(parts.next()?.parse().ok()?));
        Some(Asked { conversation, turn, epoch, attempt: parts.next()?.parse().ok()? })
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("key", &HIDDEN).field("base", &self.base).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_what_it_was_made_for_and_only_in_its_cluster() {
        let callbacks = |byte| Callbacks::new(&Secret::new([byte; 32]), "http://conch.example".to_owned());
        let asked =
            Asked { conversation: "a:b.c".parse().expect("valid"), turn: Seq(7), epoch: Epoch(1 << 40), attempt: 3 };
        let url = callbacks(1).url(&asked);
        let token = url.strip_prefix("http://conch.example/v1/worker/").expect("where it is");
        assert!(token.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.')), "{token}");
        assert_eq!(callbacks(1).verify(token), Some(asked.clone()));
        assert_eq!(callbacks(2).verify(token), None, "another cluster's");
        let other = callbacks(1).token(&Asked { attempt: 4, ..asked });
        let (said, _) = other.split_once('.').expect("two parts");
        let (_, proof) = token.split_once('.').expect("two parts");
        for forged in [format!("{said}.{proof}"), format!("{said}."), said.to_owned(), String::new(), "x".repeat(9_999)]
        {
            assert_eq!(callbacks(1).verify(&forged), None, "{forged}");
        }
    }

    #[test]
    fn the_longest_conversation_fits() {
        let callbacks = Callbacks::new(&Secret::new([1; 32]), String::new());
        let conversation = "c".repeat(128).parse().expect("the longest");
        let asked = Asked { conversation, turn: Seq(u64::MAX), epoch: Epoch(u64::MAX), attempt: u32::MAX };
        assert_eq!(callbacks.verify(&callbacks.token(&asked)), Some(asked));
    }
}
