//! The key under which a sender sends: nobody else's, and at most once.

use std::cmp::Ordering;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::ids::{ClientMsgId, Subject};
use crate::record::Draft;

/// Ordered by a digest first, which tells nearly all keys apart without a look at their texts. Keys that somebody makes with equal
/// digests are as different as others, and only take longer to find.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    digest: u64,
    client_msg_id: ClientMsgId,
    sender: Subject,
}

impl Key {
    pub(super) fn of(draft: &Draft) -> Self {
        let (client_msg_id, sender) = (draft.client_msg_id.clone(), draft.sender.clone());
        // Its keys are fixed, so that the same happens everywhere.
        let mut hasher = DefaultHasher::new();
        (&client_msg_id, &sender).hash(&mut hasher);
        Self { digest: hasher.finish(), client_msg_id, sender }
    }

    /// Equal for equal keys, and nearly never for others.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// A key whose digest is what a test wants it to be.
    #[cfg(test)]
    pub(super) fn with_digest(digest: u64, client_msg_id: &str) -> Self {
        let client_msg_id = client_msg_id.parse().expect("valid");
        Self { digest, client_msg_id, sender: "alice".parse().expect("valid") }
    }

    fn texts(&self) -> (&ClientMsgId, &Subject) {
        (&self.client_msg_id, &self.sender)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.digest.cmp(&other.digest).then_with(|| self.texts().cmp(&other.texts()))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_of_one_digest_are_told_apart() {
        let keys = ["a", "b"].into_iter().flat_map(|id| {
            let key = |sender: &str| Key {
                digest: 7,
                client_msg_id: id.parse().expect("valid"),
                sender: sender.parse().expect("valid"),
            };
            [key("alice"), key("bob")]
        });
        let keys: BTreeSet<Key> = keys.collect();
        assert_eq!(keys.len(), 4);
        assert!(keys.iter().all(|key| keys.contains(key)));
    }
}
