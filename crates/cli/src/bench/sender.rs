//! The bare send loop: what the kernel itself asks for as many sends to as many sockets. Nothing else is in it: no
//! protocol, no queue, no other task.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{process, worker};
use crate::exit::Failure;

/// How a sender is started.
#[derive(Debug, Args)]
pub(super) struct SenderArgs {
    /// How many sockets to accept.
    #[arg(long)]
    sockets: usize,
}

/// Its first answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Listening {
    /// Where.
    pub(super) address: String,
}

/// Its second answer: all sockets are there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Accepted {
    /// How many.
    pub(super) sockets: usize,
}

/// A round to be run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SendRound {
    /// Messages to every socket.
    pub(super) messages: u64,
    /// Messages a second.
    pub(super) rate: u32,
    /// Bytes of a frame, header included.
    pub(super) frame_bytes: usize,
}

/// What the round took.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sent {
    /// Sends that succeeded.
    pub(super) sends: u64,
    /// CPU time of this process, user and system, in microseconds.
    pub(super) cpu_us: u64,
}

pub(super) fn run(args: &SenderArgs) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    worker::answer(&Listening { address: listener.local_addr()?.to_string() })?;
    let mut sockets = Vec::with_capacity(args.sockets);
    while sockets.len() < args.sockets {
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    worker::answer(&Accepted { sockets: sockets.len() })?;
    while let Some(round) = worker::next_question::<SendRound>()? {
        worker::answer(&send_round(&sockets, &round)?)?;
    }
    Ok(())
}

fn send_round(sockets: &[TcpStream], round: &SendRound) -> Result<Sent, Failure> {
    let before = process::cpu(std::process::id())?;
    let begun = Instant::now();
    let mut sends = 0;
    for number in 0..round.messages {
        let due = Duration::from_secs_f64(number as f64 / f64::from(round.rate));
        if let Some(wait) = due.checked_sub(begun.elapsed()) {
            std::thread::sleep(wait);
        }
        let frame = bare_frame(number + 1, process::shared_now_ns(), round.frame_bytes);
        for mut socket in sockets {
            socket.write_all(&frame)?;
            sends += 1;
        }
    }
    let cpu = process::cpu(std::process::id())?.saturating_sub(before);
    Ok(Sent { sends, cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX) })
}

/// An unmasked WebSocket text frame of exactly this many bytes, if they are enough for its content, which is what the
/// clients look at: a seq and the time of sending.
fn bare_frame(seq: u64, sent_ns: u64, frame_bytes: usize) -> Vec<u8> {
    let mut text =
        format!(r#"[null,null,"conversation:bare","message",{{"seq":{seq},"body":{{"sent_ns":{sent_ns},"text":""#);
    let tail = "\"}}]";
    let header = if frame_bytes > 129 { 4 } else { 2 };
    let padding = frame_bytes.saturating_sub(header + text.len() + tail.len());
    text.extend(std::iter::repeat_n('x', padding));
    text.push_str(tail);
    let mut frame = vec![0x81];
    match u8::try_from(text.len()) {
        Ok(length @ 0..=125) => frame.push(length),
        _ => {
            frame.push(126);
            frame.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
    }
    frame.extend_from_slice(text.as_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::super::load::number_after;
    use super::*;

    #[test]
    fn a_bare_frame_has_the_size_and_the_content() {
        for size in [140, 300, 5_000] {
            let frame = bare_frame(7, 12_345, size);
            assert_eq!(frame.len(), size);
            let number = |key: &str| number_after(&frame[4..], key.as_bytes());
            assert_eq!((number("\"seq\":"), number("\"sent_ns\":")), (Some(7), Some(12_345)));
        }
    }
}
