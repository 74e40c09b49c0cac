//! The keys of the leases, and a node's value.
//!
//! All keys of a cluster begin with its database's system id, so that clusters which share an etcd never meet, and a
//! database that takes another one's place starts with no owner.

use conch_core::ids::{ConvKey, Incarnation};
use serde_json::{Value, json};

use super::wire::{Kv, odd};
use crate::{Lifeline, Registration, StoreError};

/// Where the keys are.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(system_id: &str) -> Self {
        Self { prefix: format!("/conch/{system_id}") }
    }

    pub(super) fn nodes(&self) -> String {
        format!("{}/node/", self.prefix)
    }

    pub(super) fn node(&self, incarnation: Incarnation) -> String {
        format!("{}/node/{:032x}", self.prefix, incarnation.0)
    }

    pub(super) fn beats(&self) -> String {
        format!("{}/beat/", self.prefix)
    }

    pub(super) fn beat(&self, incarnation: Incarnation) -> String {
        format!("{}/beat/{:032x}", self.prefix, incarnation.0)
    }

    pub(super) fn conversation(&self, key: ConvKey) -> String {
        format!("{}/conversation/{key:?}", self.prefix)
    }
}

/// The incarnation at the end of a node's key.
pub(super) fn incarnation_of(key: &str) -> Result<Incarnation, StoreError> {
    let name = key.rsplit('/').next().unwrap_or_default();
    incarnation(name).ok_or_else(|| odd(format!("the key {key} names no incarnation")))
}

fn incarnation(text: &str) -> Option<Incarnation> {
    u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).map(Incarnation)
}

/// What a node's key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeValue {
    pub(super) registration: Registration,
    pub(super) draining: bool,
}

impl NodeValue {
    pub(super) fn write(&self) -> Vec<u8> {
        let Registration { node, region, addr, lifeline, .. } = &self.registration;
        let lifeline = lifeline.map(|key| key.0);
        json!({
            "node": node.as_str(), "region": region.as_str(), "addr": addr, "lifeline": lifeline,
            "draining": self.draining,
        })
        .to_string()
        .into_bytes()
    }

    pub(super) fn read(kv: &Kv) -> Result<Self, StoreError> {
        let value: Value = serde_json::from_slice(&kv.value).map_err(|error| odd(format!("{}: {error}", kv.key)))?;
        let text = |name: &str| value[name].as_str().ok_or_else(|| odd(format!("{} has no {name}", kv.key)));
        let registration = Registration {
            incarnation: incarnation_of(&kv.key)?,
            node: text("node")?.parse().map_err(|error| odd(format!("{}: {error}", kv.key)))?,
            region: text("region")?.parse().map_err(|error| odd(format!("{}: {error}", kv.key)))?,
            addr: text("addr")?.to_owned(),
            lifeline: value["lifeline"].as_i64().map(Lifeline),
        };
        Ok(Self { registration, draining: value["draining"].as_bool().unwrap_or(false) })
    }
}

/// What a conversation's key says. The reign's revision is that of the change that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ownership {
    /// Somebody's: the key was last changed by the claim or the hand-off.
    Owned { by: Incarnation, revision: i64 },
    /// Given up by the reign of this revision.
    Released { revision: i64 },
}

impl Ownership {
    pub(super) fn owned(by: Incarnation) -> Vec<u8> {
        format!("{:032x}", by.0).into_bytes()
    }

    pub(super) fn released(revision: i64) -> Vec<u8> {
        format!("released {revision}").into_bytes()
    }

    pub(super) fn read(kv: &Kv) -> Result<Self, StoreError> {
        let text = std::str::from_utf8(&kv.value).map_err(|_| odd(format!("{} is not a text", kv.key)))?;
        let read = match text.strip_prefix("released ") {
            Some(revision) => revision.parse().ok().map(|revision| Self::Released { revision }),
            None => incarnation(text).map(|by| Self::Owned { by, revision: kv.mod_revision }),
        };
        read.ok_or_else(|| odd(format!("{} holds {text:?}", kv.key)))
    }

    pub(super) fn revision(self) -> i64 {
        match self {
            Self::Owned { revision, .. } | Self::Released { revision } => revision,
        }
    }
}
