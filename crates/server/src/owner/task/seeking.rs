//! An owner whose node lacks the agent of what is to be done: as while the nodes of a cluster get another configuration one after
//! the other.
//!
//! Invariant: nothing of the agent is started or run meanwhile, and the due row stays; either the conversation goes to a node that
//! has the agent, or, after `limits.agent_wait_ms`, the turn fails with a record that names it. A cancel ends it as any turn, and a
//! search that is not needed any more is called off: it hands nothing over.
//!
//! Deliberately absent: who has the agent, which the router asks.

use super::*;
use crate::owner::Search;
use conch_core::ids::AgentName;
use conch_core::turn::AgentIs;

impl Owner {
    pub(super) fn where_is(&self, agent: &AgentName) -> AgentIs {
        let given_up = self.turns.as_ref().is_some_and(|turns| turns.sought.nowhere.borrow().as_ref() == Some(agent));
        let here =
            given_up || self.charge.agents.get(agent).is_some() || !self.charge.node.rules.hold(Rule::AgentIsSought);
        if here { AgentIs::Here } else { AgentIs::Elsewhere }
    }

    /// Looks for a node that has the agent, if this one lacks it and it is needed; once at a time.
    pub(super) fn seek_agent(&mut self) {
        let Some(turns) = &self.turns else { return };
        let missing = turns.machine.needs().filter(|agent| self.charge.agents.get(agent).is_none()).cloned();
        let holds = self.charge.node.rules.hold(Rule::AgentIsSought);
        let Some(turns) = &mut self.turns else { return };
        let Some(agent) = missing else {
            turns.sought.agent = None;
            if self.charge.node.rules.hold(Rule::SearchesAreCalledOff) {
                turns.sought.current.send_replace(0);
            }
            let was_given_up = turns.sought.nowhere.borrow().is_some();
            if was_given_up {
                // What comes next is looked after anew.
                turns.sought.nowhere.send_replace(None);
                self.set_up_anew();
            }
            return;
        };
        if turns.sought.agent.as_ref() == Some(&agent) {
            return;
        }
        turns.sought.searches += 1;
        turns.sought.agent = Some(agent.clone());
        let number = turns.sought.searches;
        turns.sought.current.send_replace(number);
        let current = turns.sought.current.subscribe();
        if !holds {
            return self.agent_is_nowhere(number);
        }
        let (conversation, epoch) = (self.charge.tenure.conversation.clone(), self.sequencer.epoch());
        (self.charge.seek)(Search { conversation, epoch, agent, number, current });
    }

    /// What waits for the agent is to fail.
    pub(super) fn agent_is_nowhere(&mut self, search: u64) {
        let Some(turns) = &mut self.turns else { return };
        if turns.sought.searches == search && turns.sought.agent.is_some() {
            turns.sought.current.send_replace(0);
            turns.sought.nowhere.send_replace(turns.sought.agent.clone());
            self.set_up_anew();
        }
    }
}
