//! What a store takes on its disk. Only benchmarks ask.

/// Bytes of a store, by its database's own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Pages in use, indexes included.
    pub bytes: u64,
    /// Of all conversations' checkpoints: their states alone.
    pub checkpoint_bytes: u64,
}
