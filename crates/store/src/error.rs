//! What can go wrong with a store, by what the caller may conclude.

/// A failed call. The distinction that matters is whether the write may have happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Not reached, or refused for now. Definite: nothing was applied.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The request was sent and no answer came: it may or may not have been applied. Only a re-claim settles it.
    #[error("the store's answer was lost: {0}")]
    Ambiguous(String),
    /// No room left. Definite: nothing was applied.
    #[error("the store is full: {0}")]
    Full(String),
    /// The database is damaged, or not one of ours. Nothing can be trusted until an operator has looked.
    #[error("the store is damaged: {0}")]
    Damaged(String),
    /// Two conversation ids with one key (2⁻¹²⁸ likely by chance). The second is refused.
    #[error("the conversation id collides with another one in the store")]
    Collision,
}

impl StoreError {
    /// True if the call may have been applied all the same.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }
}
