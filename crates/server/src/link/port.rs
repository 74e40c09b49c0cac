//! A node's end of the link, as the composition root opens and closes it: the listener for the others and the way to them.
//!
//! Order: bind before the node registers (its row names the address), serve once there is something to serve, and say
//! goodbye after the last lease is given up, so that hand-overs can be told of until then.

use std::sync::Arc;

use conch_core::wire::link::FEATURES;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Link, LinkListenError, LinkListener, LinkSettings, LinkTls, LinkTlsError, NoLink, Service, TcpLink};
use crate::auth::secret::SigningKey;
use crate::config::Config;
use crate::node::Node;

/// Why a link was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LinkOpenError {
    /// Its address.
    #[error(transparent)]
    Listen(#[from] LinkListenError),
    /// Its certificates.
    #[error(transparent)]
    Tls(#[from] LinkTlsError),
    /// The store, whose name is the cluster's.
    #[error("the store does not answer: {0}")]
    Store(#[from] conch_store::StoreError),
}

/// A bound end of the link that serves nobody yet; without `link_listen` the end of a node that is alone.
pub struct LinkPort {
    /// The way to the others.
    pub link: Arc<dyn Link>,
    /// Where they reach this node; empty: nowhere.
    pub advertised: String,
    bound: Option<Bound>,
}

struct Bound {
    listener: LinkListener,
    settings: LinkSettings,
    tcp: TcpLink,
}

impl LinkPort {
    /// Binds what the configuration says.
    ///
    /// # Errors
    /// As [`LinkOpenError`] lists.
    pub async fn bind(config: &Config, key: &SigningKey, node: &Arc<Node>) -> Result<Self, LinkOpenError> {
        let Some(addr) = config.link_listen else {
            return Ok(Self { link: Arc::new(NoLink), advertised: String::new(), bound: None });
        };
        let log = node.store.log().await?;
        let cluster = log.as_str().rsplit_once('.').map_or(log.as_str(), |(system, _)| system).to_owned();
        let settings = LinkSettings {
            incarnation: node.me,
            node: node.name.clone(),
            cluster,
            features: FEATURES,
            key: config.link_key(key),
            tls: config.link_tls_files().map(LinkTls::load).transpose()?,
            limits: config.link_limits(),
            metrics: Arc::clone(&node.metrics),
            seams: node.seams.clone(),
        };
        let listener = LinkListener::bind(addr, config.link_mode(key)).await?;
        let advertised = config.link_advertised(listener.addr());
        let tcp = TcpLink::new(settings.clone());
        Ok(Self { link: Arc::new(tcp.clone()), advertised, bound: Some(Bound { listener, settings, tcp }) })
    }

    /// What may say who answers at an address; `None`: this node has no link, so it proves nobody's death.
    #[must_use]
    pub fn evidence(&self) -> Option<Arc<dyn Link>> {
        self.bound.as_ref().map(|_| Arc::clone(&self.link))
    }

    /// Serves the others.
    #[must_use]
    pub fn serve(self, service: Arc<dyn Service>) -> OpenLink {
        let (stop, mut stopping) = watch::channel(());
        let serving = self.bound.map(|Bound { listener, settings, tcp }| {
            // An error means that nobody is left who could close it, which is as good.
            let stopped = async move { drop(stopping.changed().await) };
            (tokio::spawn(listener.serve(settings, service, stopped)), tcp)
        });
        OpenLink { stop, serving }
    }
}

/// A link that is served. Dropping it closes it.
pub struct OpenLink {
    stop: watch::Sender<()>,
    serving: Option<(JoinHandle<()>, TcpLink)>,
}

impl OpenLink {
    /// Says goodbye to all, and returns when they are gone.
    pub async fn close(self) {
        let Self { stop, serving } = self;
        drop(stop);
        if let Some((serving, tcp)) = serving {
            tcp.stop();
            if let Err(error) = serving.await {
                tracing::warn!(%error, "the link's listener did not end well");
            }
        }
    }
}
