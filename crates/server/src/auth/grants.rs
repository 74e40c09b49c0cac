//! What a token allows: grants, each a pattern of conversations and what may be done in them; and membership.
//!
//! Invariant: nothing is allowed that neither a grant nor membership allows. Membership allows reading and sending, and
//! nothing else: starting turns, creating, and administering take a grant, whoever is a member.

use conch_core::ids::{ConvRef, ConversationId, Subject};
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::glob::Glob;
use crate::hub::Right;

/// Something that may be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// History, streams, presence, one's cursor.
    Read,
    /// Messages, events, typing.
    Send,
    /// Starting turns, running them again, cancelling them, and answering what they wait for.
    Run,
    /// Create the conversation.
    Create,
    /// Members, title, agent, settings; on `*` also a lifted rate limit.
    Admin,
}

impl Permission {
    /// Every permission.
    pub const ALL: [Self; 5] = [Self::Read, Self::Send, Self::Run, Self::Create, Self::Admin];

    /// The name in a token.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Send => "send",
            Self::Run => "run",
            Self::Create => "create",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Permission {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|permission| permission.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not read, send, run, create or admin"))
    }
}

/// What may be done in the conversations that fit a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Which conversations.
    pub conversations: Glob,
    /// What may be done. No permission contains another: `admin` without `read` does not read.
    pub can: Vec<Permission>,
}

/// Whether the per-sender rate limit holds for a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimit {
    /// As configured.
    Default,
    /// Lifted, as a bench needs. Takes an `admin` grant on `*` besides the claim.
    Lifted,
}

/// Whether a subject belongs to a conversation, as the store says at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// It does.
    Member,
    /// It does not, or nobody has looked: both allow nothing.
    None,
}

/// Who acts, as their token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The subject; never a reserved one.
    pub sub: Subject,
    /// A name to show.
    pub name: Option<String>,
    /// When the token ends. Connections are cut at this moment.
    pub expires_at: Timestamp,
    /// What it grants.
    pub grants: Vec<Grant>,
    /// Whether the rate limit holds.
    pub rate_limit: RateLimit,
}

impl Principal {
    /// Whether a grant alone allows this.
    #[must_use]
    pub fn allows(&self, permission: Permission, conversation: &ConversationId) -> bool {
        let fits =
            |grant: &Grant| grant.can.contains(&permission) && grant.conversations.matches(conversation.as_str());
        self.grants.iter().any(fits)
    }

    /// Whether a grant allows this everywhere, as what names no conversation needs (a lifted rate limit).
    #[must_use]
    pub fn allows_everywhere(&self, permission: Permission) -> bool {
        self.grants.iter().any(|grant| grant.conversations.is_any() && grant.can.contains(&permission))
    }

    /// Whether the token has ended.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }

    /// Whether membership could change the answer, so that the store need not be asked when it could not.
    #[must_use]
    pub fn needs_membership(&self, permission: Permission, conversation: &ConversationId) -> bool {
        membership_gives(permission) && !self.allows(permission, conversation)
    }

    /// By what right it may read a conversation, if it may.
    #[must_use]
    pub fn right_to_read(&self, conversation: &ConvRef) -> Right {
        if self.allows(Permission::Read, &conversation.id) { Right::Grant } else { Right::Membership }
    }
}

/// What members may do without a grant.
fn membership_gives(permission: Permission) -> bool {
    matches!(permission, Permission::Read | Permission::Send)
}

/// A principal before one conversation: the one place that says yes.
#[derive(Debug, Clone, Copy)]
pub struct Access<'a> {
    /// Who.
    pub principal: &'a Principal,
    /// Where.
    pub conversation: &'a ConversationId,
    /// Whether they belong to it.
    pub membership: Membership,
}

impl Access<'_> {
    /// Grant or membership.
    #[must_use]
    pub fn allows(&self, permission: Permission) -> bool {
        let as_member = self.membership == Membership::Member && membership_gives(permission);
        as_member || self.principal.allows(permission, self.conversation)
    }

    /// As [`Access::allows`], as a refusal. It tells only what the caller said, not whether the conversation exists.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn require(&self, permission: Permission) -> Result<(), Refusal> {
        if self.allows(permission) {
            return Ok(());
        }
        let (permission, conversation) = (permission.as_str(), self.conversation);
        Err(Refusal::new(Code::Forbidden, format!("the token does not grant {permission} on {conversation}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Grants<'a> = &'a [(&'a str, &'a [Permission])];

    fn principal(grants: Grants<'_>) -> Principal {
        let grant = |(glob, can): &(&str, &[Permission])| Grant {
            conversations: glob.parse().expect("a valid pattern"),
            can: can.to_vec(),
        };
        Principal {
            sub: "alice".parse().expect("valid"),
            name: None,
            expires_at: Timestamp(1_000),
            grants: grants.iter().map(grant).collect(),
            rate_limit: RateLimit::Default,
        }
    }

    /// Invariant 12.
    #[test]
    fn only_grants_and_membership_allow() {
        use Membership::{Member, None};
        use Permission::{Admin, Create, Read, Run, Send};
        let cases: &[(Grants<'_>, Membership, &str, &[Permission])] = &[
            (&[], None, "a", &[]),
            (&[], Member, "a", &[Read, Send]),
            (&[("a", &[Read])], None, "a", &[Read]),
            (&[("a", &[Read])], None, "ab", &[]),
            (&[("a", &[Read])], None, "A", &[]),
            (&[("team:*", &[Read, Send])], None, "team:x", &[Read, Send]),
            (&[("team:*", &[Read, Send])], None, "teams:x", &[]),
            (&[("team:*", &[])], None, "team:x", &[]),
            // No permission contains another, and grants on different patterns do not mix.
            (&[("*", &[Admin])], None, "a", &[Admin]),
            (&[("*", &[Create])], None, "a", &[Create]),
            (&[("a", &[Read]), ("b", &[Send])], None, "a", &[Read]),
            (&[("a", &[Read]), ("?", &[Run])], None, "a", &[Read, Run]),
            // A member without a grant neither runs nor administers; a grant adds to membership.
            (&[("a", &[Run])], Member, "a", &[Read, Send, Run]),
            (&[("b", &[Run, Admin])], Member, "a", &[Read, Send]),
        ];
        for (grants, membership, conversation, expected) in cases {
            let principal = principal(grants);
            let conversation: ConversationId = conversation.parse().expect("valid");
            let access = Access { principal: &principal, conversation: &conversation, membership: *membership };
            for permission in Permission::ALL {
                let allowed = expected.contains(&permission);
                assert_eq!(access.allows(permission), allowed, "{permission:?} with {grants:?}, {membership:?}");
                assert_eq!(access.require(permission).is_ok(), allowed);
            }
        }
    }

    #[test]
    fn calls_without_a_conversation_need_a_grant_on_everything() {
        let everywhere = |glob: &str| principal(&[(glob, &[Permission::Admin])]).allows_everywhere(Permission::Admin);
        assert!(everywhere("*"));
        for narrower in ["a*", "?*", "a"] {
            assert!(!everywhere(narrower), "{narrower}");
        }
        assert!(!principal(&[("*", &[Permission::Read])]).allows_everywhere(Permission::Admin));
    }

    #[test]
    fn the_store_is_asked_only_when_its_answer_matters() {
        let someone = principal(&[("a", &[Permission::Read])]);
        let (a, b): (ConversationId, ConversationId) = ("a".parse().expect("valid"), "b".parse().expect("valid"));
        assert!(!someone.needs_membership(Permission::Read, &a));
        assert!(someone.needs_membership(Permission::Send, &a));
        assert!(someone.needs_membership(Permission::Read, &b));
        assert!(!someone.needs_membership(Permission::Run, &b));
    }

    #[test]
    fn a_token_ends_at_its_moment() {
        let someone = principal(&[]);
        assert!(!someone.is_expired(Timestamp(999)));
        assert!(someone.is_expired(Timestamp(1_000)));
    }

    #[test]
    fn a_refusal_names_what_was_asked() {
        let someone = principal(&[]);
        let conversation: ConversationId = "a".parse().expect("valid");
        let access = Access { principal: &someone, conversation: &conversation, membership: Membership::None };
        let refusal = access.require(Permission::Send).expect_err("nothing is granted");
        assert_eq!((refusal.code, refusal.retry), (Code::Forbidden, None));
        assert_eq!(refusal.detail, "the token does not grant send on a");
    }
}
