//! A way to etcd's members that a test can cut.

use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(super) struct Proxy {
    cut: Arc<watch::Sender<bool>>,
    places: Vec<String>,
}

impl Proxy {
    /// Listens, on the caller's runtime, in front of each of these.
    pub(super) async fn start(members: Vec<String>) -> Self {
        let cut = Arc::new(watch::Sender::new(false));
        let mut places = Vec::new();
        for member in members {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
            places.push(listener.local_addr().expect("bound").to_string());
            let seen = cut.subscribe();
            tokio::spawn(async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(pass(client, member.clone(), seen.clone()));
                }
            });
        }
        Self { cut, places }
    }

    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(super) fn url(&self) -> String {
        format!("etcd://{}", self.places.join(","))
    }
}

async fn pass(mut client: TcpStream, member: String, mut cut: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(member).await else { return };
    // Both branches may be dropped: the connections go with them.
    tokio::select! {
        biased;
        _ = cut.wait_for(|cut| *cut) => {}
        _ = copy_bidirectional(&mut client, &mut server) => {}
    }
}
