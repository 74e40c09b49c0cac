//! The node among nodes: its lease, and the observation of others.

pub mod heartbeat;
pub mod membership;
