//! Tokens: JSON Web Tokens signed with HS256 and a shared key.
//!
//! Invariant: [`TokenKey::verify`] returns a principal only for a token that was signed with this key by HS256, has not
//! ended, and whose every claim that Conch reads is well formed. The algorithm is ours to choose, never the token's.
//!
//! Claims that Conch does not know are ignored, `aud` and `iss` among them: the key is Conch's alone. Inside a grant an
//! unknown member is refused, because it may have been meant to narrow it.

use std::sync::Once;

use conch_core::ids::Subject;
use conch_core::refusal::{Code, Refusal};
use conch_core::time::Timestamp;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};

use super::glob::Glob;
use super::grants::{Grant, Permission, Principal, RateLimit};
use super::secret::SECRET_MIN_BYTES;
use super::secret::Secret;

/// Longest token, in bytes.
pub const TOKEN_MAX_BYTES: usize = 8 * 1024;
/// Most grants of one token.
pub const GRANTS_MAX: usize = 100;
/// Longest name to show, in bytes.
pub const NAME_MAX_BYTES: usize = 256;
/// How far the issuer's clock may be from ours, in milliseconds.
pub const LEEWAY_MS: i64 = 5_000;
/// The value of the claim `rate` that asks to lift the rate limit.
const RATE_UNLIMITED: &str = "unlimited";

/// What a token says, as it is written.
#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    sub: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    exp: NumericDate,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<NumericDate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iat: Option<serde_json::Value>,
    #[serde(default)]
    conch: Vec<GrantClaim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rate: Option<serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantClaim {
    conversations: String,
    can: Vec<Permission>,
}

/// Seconds since 1970, which RFC 7519 allows to have a fraction.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
struct NumericDate(f64);

impl NumericDate {
    /// The latest moment that is understood: the year 9999, in seconds.
    const LATEST_S: f64 = 253_402_300_799.0;

    fn of(moment: Timestamp) -> Self {
        // Whole seconds below 2^53 are exact.
        #[allow(clippy::cast_precision_loss, reason = "the range is checked by `to_timestamp` before use")]
        Self(moment.0.div_euclid(1000) as f64)
    }

    fn to_timestamp(self, claim: &str) -> Result<Timestamp, String> {
        if !(0.0..=Self::LATEST_S).contains(&self.0) {
            return Err(format!("{claim}: must be seconds since 1970, up to the year 9999"));
        }
        #[allow(clippy::cast_possible_truncation, reason = "the range was just checked")]
        Ok(Timestamp((self.0 * 1000.0) as i64))
    }
}

impl Claims {
    /// Checks every claim; the error names it.
    fn principal(self) -> Result<(Principal, Option<Timestamp>), String> {
        let sub: Subject = self.sub.parse().map_err(|error: conch_core::ids::InvalidId| error.to_string())?;
        if sub.is_reserved() {
            return Err("sub: may not start with @, which is reserved for the server".to_owned());
        }
        if let Some(name) = &self.name {
            if name.len() > NAME_MAX_BYTES {
                return Err(format!("name: is {} bytes long; at most {NAME_MAX_BYTES} are allowed", name.len()));
            }
            if name.chars().any(char::is_control) {
                return Err("name: may not hold control characters".to_owned());
            }
        }
        let not_before = self.nbf.map(|date| date.to_timestamp("nbf")).transpose()?;
        let expires_at = self.exp.to_timestamp("exp")?;
        if self.conch.len() > GRANTS_MAX {
            return Err(format!("conch: has {} grants; at most {GRANTS_MAX} are allowed", self.conch.len()));
        }
        let mut grants = Vec::with_capacity(self.conch.len());
        for (index, claim) in self.conch.into_iter().enumerate() {
            let conversations: Glob =
                claim.conversations.parse().map_err(|error| format!("conch[{index}].conversations: {error}"))?;
            grants.push(Grant { conversations, can: claim.can });
        }
        let mut principal = Principal {
            sub,
            name: self.name.filter(|name| !name.is_empty()),
            expires_at,
            grants,
            rate_limit: RateLimit::Default,
        };
        let asks = self.rate.as_ref().and_then(serde_json::Value::as_str) == Some(RATE_UNLIMITED);
        if asks && principal.allows_everywhere(Permission::Admin) {
            principal.rate_limit = RateLimit::Lifted;
        }
        Ok((principal, not_before))
    }
}

/// What a new token shall say.
#[derive(Debug, Clone)]
pub struct Mint {
    /// Who.
    pub sub: String,
    /// A name to show.
    pub name: Option<String>,
    /// When it ends; kept to the second.
    pub expires_at: Timestamp,
    /// What it grants.
    pub grants: Vec<Grant>,
    /// [`RateLimit::Lifted`] takes an `admin` grant on `*`.
    pub rate_limit: RateLimit,
}

/// Why there is no token, or no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// A key that is too short.
    #[error("the key is {0} bytes long; at least {SECRET_MIN_BYTES} are needed")]
    ShortKey(usize),
    /// A claim that would be refused when it comes back.
    #[error("{0}")]
    Claim(String),
}

/// A key, ready to verify and to mint.
pub struct TokenKey {
    decoding: DecodingKey,
    encoding: EncodingKey,
    validation: Validation,
}

impl TokenKey {
    /// Prepares a key.
    ///
    /// # Errors
    /// When it is shorter than [`SECRET_MIN_BYTES`].
    pub fn new(secret: &Secret) -> Result<Self, TokenError> {
        install_provider();
        let bytes = secret.expose();
        let short = || TokenError::ShortKey(bytes.len());
        if bytes.len() < SECRET_MIN_BYTES {
            return Err(short());
        }
        let mut validation = Validation::new(Algorithm::HS256);
        // Time is checked here with the clock that is passed in, not by the library with its own.
        validation.required_spec_claims.clear();
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        Ok(Self {
            decoding: DecodingKey::from_secret(bytes).map_err(|_| short())?,
            encoding: EncodingKey::from_secret(bytes).map_err(|_| short())?,
            validation,
        })
    }

    /// Who presents this token. [`Principal::expires_at`] includes the leeway, so that a token which is let in at its last
    /// moment is not cut at once.
    ///
    /// # Errors
    /// `unauthenticated`. What the claims hold is mentioned only once the signature is known to be good.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Principal, Refusal> {
        if token.len() > TOKEN_MAX_BYTES {
            let length = token.len();
            return Err(refused(format!("the token is {length} bytes long; at most {TOKEN_MAX_BYTES} are allowed")));
        }
        let header =
            jsonwebtoken::decode_header(token).map_err(|_| refused("the token is not an HS256 JSON Web Token"))?;
        if header.alg != Algorithm::HS256 {
            return Err(refused("the token is not signed with HS256"));
        }
        let data = jsonwebtoken::decode::<Claims>(token, &self.decoding, &self.validation).map_err(|error| {
            match error.kind() {
                ErrorKind::Json(error) => refused(format!("the token's claims are not valid: {error}")),
                ErrorKind::Utf8(_) => refused("the token's claims are not valid: not UTF-8"),
                // One answer for a wrong key and a changed token: nobody learns which it was.
                _ => refused("the token's signature is not valid"),
            }
        })?;
        let claims = data.claims;
        let (mut principal, not_before) =
            claims.principal().map_err(|problem| refused(format!("the token's claims are not valid: {problem}")))?;
        principal.expires_at = Timestamp(principal.expires_at.0 + LEEWAY_MS);
        if principal.is_expired(now) {
            return Err(refused("the token has expired"));
        }
        if not_before.is_some_and(|moment| now.0 + LEEWAY_MS < moment.0) {
            return Err(refused("the token is not valid yet"));
        }
        Ok(principal)
    }

    /// A token that [`TokenKey::verify`] accepts until it ends.
    ///
    /// # Errors
    /// Names the claim that would be refused.
    pub fn mint(&self, mint: &Mint, now: Timestamp) -> Result<String, TokenError> {
        let claims = || Claims {
            sub: mint.sub.clone(),
            name: mint.name.clone(),
            exp: NumericDate::of(mint.expires_at),
            nbf: None,
            iat: Some(now.0.div_euclid(1000).into()),
            conch: mint.grants.iter().map(GrantClaim::of).collect(),
            rate: match mint.rate_limit {
                RateLimit::Default => None,
                RateLimit::Lifted => Some(RATE_UNLIMITED.into()),
            },
        };
        let (principal, _) = claims().principal().map_err(TokenError::Claim)?;
        if principal.rate_limit != mint.rate_limit {
            return Err(TokenError::Claim("rate: takes an admin grant on *".to_owned()));
        }
        if principal.is_expired(now) {
            return Err(TokenError::Claim("exp: has passed already".to_owned()));
        }
        let token = jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims(), &self.encoding)
            .map_err(|error| TokenError::Claim(error.to_string()))?;
        if token.len() > TOKEN_MAX_BYTES {
            let length = token.len();
            return Err(TokenError::Claim(format!(
                "conch: the token would be {length} bytes long; at most {TOKEN_MAX_BYTES} are allowed"
            )));
        }
        Ok(token)
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey")
    }
}

impl GrantClaim {
    fn of(grant: &Grant) -> Self {
        Self { conversations: grant.conversations.as_str().to_owned(), can: grant.can.clone() }
    }
}

fn refused(detail: impl Into<String>) -> Refusal {
    Refusal::new(Code::Unauthenticated, detail)
}

/// Names the cryptography explicitly: where two providers are compiled in, the library would panic at its first use.
fn install_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error says that the embedding program has chosen one already, which is as good.
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
    });
}

#[cfg(test)]
#[path = "token_tests.rs"]
mod tests;
