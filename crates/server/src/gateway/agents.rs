//! The agents that a session may have, for whoever is to choose one.
//!
//! Deliberately absent: what they are set to. Names are all that a client may know of them.

use axum::Json;
use axum::extract::State;
use conch_core::ids::AgentName;
use serde::Serialize;

use super::{Caller, Gateway};

#[derive(Serialize)]
pub(super) struct AgentsJson {
    agents: Vec<AgentJson>,
}

#[derive(Serialize)]
struct AgentJson {
    name: AgentName,
}

/// `GET /v1/agents`.
pub(super) async fn list(State(gateway): State<Gateway>, _: Caller) -> Json<AgentsJson> {
    let agents = gateway.shared.agents.names().map(|name| AgentJson { name: name.clone() });
    Json(AgentsJson { agents: agents.collect() })
}
