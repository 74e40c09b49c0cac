//! A wire that can be held and cut: between a node and its database (a Unix socket), or between two nodes (TCP).
//!
//! What comes while a direction is held is kept, in order, and goes on when it is let go. Each connection has two threads, which
//! end with it.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use crate::node::until;

/// One end of a connection.
trait End: Read + Write + Send {
    fn again(&self) -> Box<dyn End>;
    fn close(&self);
}

macro_rules! end {
    ($stream:ty) => {
        impl End for $stream {
            fn again(&self) -> Box<dyn End> {
                Box::new(self.try_clone().expect("a socket can be shared"))
            }

            fn close(&self) {
                // The other side may have closed it.
                let _ = self.shutdown(Shutdown::Both);
            }
        }
    };
}
end!(TcpStream);
end!(UnixStream);

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From whoever connects.
    There,
    /// To whoever connected.
    Back,
}

#[derive(Default)]
struct State {
    /// Which way, and what a connection's first bytes must hold for it to be meant.
    held: Option<(Way, &'static str)>,
    /// What waits, of all connections.
    waiting: Vec<u8>,
    /// Of the connections that there are, by number.
    ends: BTreeMap<u64, [Box<dyn End>; 2]>,
    /// Connections so far.
    connections: u64,
}

/// The wire.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Gate {
    /// In front of a server's Unix socket; returns the directory to name as the host.
    pub(crate) fn before_socket(server: &Path, directory: &Path) -> (Self, PathBuf) {
        const SOCKET: &str = ".s.PGSQL.5432";
        let gate = Self::default();
        let listener = UnixListener::bind(directory.join(SOCKET)).expect("a short path");
        let (wire, server) = (gate.clone(), server.join(SOCKET));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that is away is a connection that ends.
                if let Ok(server) = UnixStream::connect(&server) {
                    wire.join(&client, &server);
                }
            }
        });
        (gate, directory.to_owned())
    }

    /// In front of a TCP address.
    pub(crate) fn before_address(listen: &str, server: &str) -> Self {
        let gate = Self::default();
        let listener = TcpListener::bind(listen).expect("the address is free");
        let (wire, server) = (gate.clone(), server.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect(&server) {
                    wire.join(&client, &server);
                }
            }
        });
        gate
    }

    fn join(&self, client: &dyn End, server: &dyn End) {
        let mut state = self.shared.0.lock().expect("nobody panicked");
        let number = state.connections;
        state.connections += 1;
        state.ends.insert(number, [client.again(), server.again()]);
        drop(state);
        for (way, from, to) in
            [(Way::There, client.again(), server.again()), (Way::Back, server.again(), client.again())]
        {
            let gate = self.clone();
            std::thread::spawn(move || {
                gate.carry(way, from, to);
                gate.shared.0.lock().expect("nobody panicked").ends.remove(&number);
            });
        }
    }

    fn carry(&self, way: Way, mut from: Box<dyn End>, mut to: Box<dyn End>) {
        let mut buffer = [0; 16 * 1024];
        let mut label = None;
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            let (state, changed) = &*self.shared;
            let mut state = state.lock().expect("nobody panicked");
            let label = label.get_or_insert_with(|| buffer[..read].to_vec());
            let is_held = |state: &State| state.held.is_some_and(|(held, only)| held == way && contains(label, only));
            if is_held(&state) {
                state.waiting.extend_from_slice(&buffer[..read]);
            }
            let state = changed.wait_while(state, |state| is_held(state)).expect("nobody panicked");
            drop(state);
            if to.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        from.close();
        to.close();
    }

    /// Holds what goes this way, on all connections.
    pub(crate) fn hold(&self, way: Way) {
        self.hold_only(way, "");
    }

    /// The same, on connections whose first bytes that way hold this text.
    pub(crate) fn hold_only(&self, way: Way, label: &'static str) {
        self.shared.0.lock().expect("nobody panicked").held = Some((way, label));
    }

    /// Waits until something with this text is held.
    pub(crate) fn wait_for(&self, text: &str) {
        until("something to be held", || {
            let state = self.shared.0.lock().expect("nobody panicked");
            contains(&state.waiting, text).then_some(())
        });
    }

    /// Lets everything through again.
    pub(crate) fn let_go(&self) {
        let mut state = self.shared.0.lock().expect("nobody panicked");
        state.held = None;
        state.waiting.clear();
        self.shared.1.notify_all();
    }

    /// Ends every connection; what was held is lost.
    pub(crate) fn cut(&self) {
        let state = self.shared.0.lock().expect("nobody panicked");
        for end in state.ends.values().flatten() {
            end.close();
        }
        drop(state);
        self.let_go();
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    text.is_empty() || bytes.windows(text.len()).any(|window| window == text.as_bytes())
}
