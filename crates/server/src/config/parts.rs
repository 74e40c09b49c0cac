//! The configuration as the parts of the node take it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use conch_core::coalesce::CoalesceLimits;
use conch_core::ids::AgentName;
use conch_core::sequencer::SequencerLimits;

use super::{AgentKind, Config};
use crate::agents::{Callbacks, ModelAgent, WorkerAgent};
use crate::auth::origin::AllowedOrigin;
use crate::auth::secret::{Mode, SigningKey};
use crate::hub::HubLimits;
use crate::link::{LinkKey, LinkLimits, LinkTlsFiles};
use crate::node::OwnerLimits;
use crate::turn::agents::{AGENTS_MAX, AgentConfig, AgentLimits, Agents, InvalidAgents};

impl Config {
    /// The pages that may call: what is listed, and those of the cluster's other nodes.
    #[must_use]
    pub fn allowed_origins(&self) -> Vec<AllowedOrigin> {
        let nodes = self.client_urls.iter().cloned().map(AllowedOrigin::Exactly);
        self.auth.allowed_origins.iter().cloned().chain(nodes).collect()
    }

    /// Of ownership.
    #[must_use]
    pub fn owner_limits(&self) -> OwnerLimits {
        let limits = &self.limits;
        OwnerLimits {
            sequencer: SequencerLimits {
                block: self.sequencer.block,
                gap: self.sequencer.gap,
                batch_records: limits.append_records,
                batch_bytes: limits.append_bytes,
                queue_records: limits.owner_queue_records,
                queue_bytes: limits.owner_queue_bytes,
                recent_keys: limits.recent_keys,
            },
            commands: limits.owner_commands,
            follower_frames: limits.follower_frames,
            presence_threshold: self.fanout.presence_count_from,
            commit_queue: limits.commit_queue,
            commit_batches: limits.commit_batches,
            commits: limits.commits,
            hibernate_after: Duration::from_millis(self.hibernation.memory_ms),
            release_after: Duration::from_millis(self.hibernation.release_ms),
            rebalance_per_s: self.rebalance.per_s,
            rebalance_every: Duration::from_millis(self.rebalance.interval_ms),
            rebalance_idle: Duration::from_millis(self.rebalance.idle_ms),
            known_owners: limits.known_owners,
            claims: limits.claims,
            claims_per_s: limits.claims_per_s,
            claims_burst: limits.claims_burst,
            route_budget: Duration::from_millis(limits.route_ms),
            agent_wait: Duration::from_millis(limits.agent_wait_ms),
        }
    }

    /// Of a gateway's hubs.
    #[must_use]
    pub fn hub_limits(&self) -> HubLimits {
        let limits = &self.limits;
        HubLimits {
            sessions: limits.sessions,
            ring_records: limits.ring_records,
            ring_bytes: limits.ring_bytes,
            commands: limits.hub_commands,
            catch_up_records: limits.catch_up_records,
            catch_up_page: limits.catch_up_page,
            catch_up_reads: limits.catch_up_reads,
            catch_up_reads_per_s: self.fanout.catch_up_reads_per_s,
            catch_up_kept_bytes: self.fanout.catch_up_kept_bytes,
            join_wait: Duration::from_millis(limits.join_wait_ms),
            linger: Duration::from_millis(limits.hub_linger_ms),
            silence: Duration::from_millis(limits.owner_silence_ms),
            presence_threshold: self.fanout.presence_count_from,
            workers: match self.fanout.workers {
                0 => std::thread::available_parallelism().map_or(1, NonZero::get),
                workers => workers,
            },
            coalesce: CoalesceLimits {
                sessions: self.fanout.coalesce_sessions as u64,
                base: Duration::from_millis(self.fanout.coalesce_ms),
                most: Duration::from_millis(self.fanout.coalesce_max_ms),
            },
        }
    }

    /// Of the link between nodes.
    #[must_use]
    pub fn link_limits(&self) -> LinkLimits {
        let link = &self.link;
        LinkLimits {
            frame_bytes: link.frame_bytes,
            requests: link.requests,
            streams: link.streams,
            queue_bytes: link.queue_bytes,
            stream_frames: link.stream_frames,
            stream_bytes: link.stream_bytes,
            follower_frames: self.limits.follower_frames,
            connections: link.connections,
            handshakes: link.handshakes,
            hello: Duration::from_millis(link.hello_timeout_ms),
            silence: Duration::from_millis(link.silence_ms),
        }
    }

    /// The link's key: from its own secret, or else from the cluster's.
    #[must_use]
    pub fn link_key(&self, cluster: &SigningKey) -> LinkKey {
        LinkKey::derived(self.link.secret.as_ref().unwrap_or(&cluster.secret))
    }

    /// The link's TLS files; [`Config::check`] has ruled out that some are missing.
    #[must_use]
    pub fn link_tls_files(&self) -> Option<LinkTlsFiles<'_>> {
        let link = &self.link;
        let (Some(cert), Some(key), Some(ca)) = (&link.tls_cert, &link.tls_key, &link.tls_ca) else { return None };
        Some(LinkTlsFiles { cert, key, ca })
    }

    /// What the link may bind: more than loopback only with something configured that others do not have.
    #[must_use]
    pub fn link_mode(&self, cluster: &SigningKey) -> Mode {
        let own = self.link.secret.is_some() || self.link_tls_files().is_some();
        if own { Mode::Configured } else { cluster.mode }
    }

    /// Where other nodes reach this one, given what its link's listener has bound.
    #[must_use]
    pub fn link_advertised(&self, bound: SocketAddr) -> String {
        self.link_advertise.as_ref().map_or_else(|| bound.to_string(), ToString::to_string)
    }

    /// The agents, ready to run. Workers are told to call back as `callbacks` says.
    ///
    /// # Errors
    /// When there are too many; [`Config::check`] has ruled out the rest.
    pub fn agents(&self, callbacks: &Callbacks) -> Result<Agents, InvalidAgents> {
        let limits = |agent: &super::Agent| {
            let turn_time = Duration::from_secs(agent.turn_time_s);
            AgentLimits { turn_time, tokens: (agent.turn_tokens > 0).then_some(agent.turn_tokens) }
        };
        let of_kind = |kind| self.agents.0.iter().filter(move |(_, agent)| agent.kind == kind);
        let demos: BTreeMap<_, _> = of_kind(AgentKind::Demo)
            .map(|(name, agent)| (name.clone(), (AgentConfig::Demo { pace_ms: Some(agent.pace_ms) }, limits(agent))))
            .collect();
        if self.agents.0.len() > AGENTS_MAX {
            return Err(InvalidAgents::TooMany(self.agents.0.len()));
        }
        let mut agents = Agents::from_config(&demos)?;
        let broken = |name: &AgentName, problem| InvalidAgents::Setting { name: name.clone(), problem };
        for (name, agent) in of_kind(AgentKind::Openai) {
            let work = ModelAgent::new(agent).map_err(|problem| broken(name, problem))?;
            agents = agents.with(name.clone(), limits(agent), Arc::new(work));
        }
        for (name, agent) in of_kind(AgentKind::Http) {
            let work = WorkerAgent::new(agent, callbacks.clone()).map_err(|problem| broken(name, problem))?;
            agents = agents.with(name.clone(), limits(agent), Arc::new(work));
        }
        match &self.ai.agent {
            Some(name) if agents.get(name).is_none() => {
                Err(InvalidAgents::NoSuch { field: "ai.agent", name: name.clone() })
            }
            _ => Ok(agents),
        }
    }

    /// Where workers call back, given what the public listener has bound.
    #[must_use]
    pub fn callbacks(&self, key: &SigningKey, bound: SocketAddr) -> Callbacks {
        let base = self.advertise_url.as_ref().map_or_else(|| format!("http://{bound}"), |url| url.as_str().to_owned());
        Callbacks::new(&key.secret, base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::secret::Secret;

    /// The parts' own defaults, which tests and the simulation use, are those of the configuration.
    #[test]
    fn the_defaults_agree() {
        use conch_core::{limit, presence, turn};
        let config = Config::default();
        assert_eq!(format!("{:?}", config.owner_limits()), format!("{:?}", OwnerLimits::default()));
        assert_eq!(format!("{:?}", config.hub_limits()), format!("{:?}", HubLimits::default()));
        assert_eq!(format!("{:?}", config.link_limits()), format!("{:?}", LinkLimits::default()));
        assert_eq!((config.rate.per_second, config.rate.burst), (limit::SENDER_RATE_PER_S, limit::SENDER_BURST));
        assert_eq!(config.rate.senders, limit::SENDERS_MAX);
        assert_eq!(config.fanout.presence_count_from, presence::COUNT_THRESHOLD);
        assert_eq!(config.limits.body().bytes, conch_core::body::Limits::default().bytes);
        assert_eq!(config.limits.body().depth, conch_core::body::Limits::default().depth);
        let demo = &config.agents.0[&"demo".parse().expect("a name")];
        assert_eq!(Duration::from_millis(demo.pace_ms.into()), turn::demo::DEFAULT_PACE);
        let agents = config.agents(&Callbacks::new(&Secret::new([0; 32]), String::new())).expect("valid");
        assert_eq!(agents.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["demo"]);
        let limits = agents.limits(&"demo".parse().expect("a name"));
        assert_eq!(limits, AgentLimits::default());
    }
}
