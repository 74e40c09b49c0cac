//! The link between nodes, over real sockets: two ends of it with a scripted service behind one.

mod bad_peers;
mod broken;
mod follow;
mod harness;
mod requests;
mod tls;
