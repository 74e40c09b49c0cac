//! The wire formats as pure codecs: bytes in, values out, and back.
//!
//! Invariant: no input makes a parser here panic, and every parser's time and memory are linear in its input, with a
//! named limit. Deliberately absent: sockets, and what a frame *means* (that is the gateway's).

pub mod phoenix;
pub mod problem;
pub mod sse;
pub mod websocket;
