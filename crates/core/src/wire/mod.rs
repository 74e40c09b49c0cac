//! The wire formats as pure codecs: bytes in, values out, and back.
//!
//! Invariant: no input makes a parser here panic, and every parser's time and memory are linear in its input, with a
//! named limit. Deliberately absent: sockets, and what a frame *means* (that is the gateway's).

pub mod ai;
pub mod link;
pub mod openai;
pub mod phoenix;
pub mod problem;
pub mod sse;
pub mod websocket;

/// Writes a JSON string. Most texts need no escape and are copied as they are.
pub(crate) fn push_json_text(out: &mut String, text: &str) {
    if text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\') {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else {
        out.push_str(&serde_json::Value::from(text).to_string());
    }
}
