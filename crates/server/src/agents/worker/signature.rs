//! Standard Webhooks signatures: a worker knows by them that the cluster calls, and that the body is what it sent.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use conch_core::time::Timestamp;

use crate::auth::secret::{HIDDEN, Secret};

const PREFIX: &str = "whsec_";
/// The range of a secret's length, in bytes, as Standard Webhooks has it.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The secret that a worker shares with the cluster.
pub(super) struct WebhookKey(hmac::Key);

impl WebhookKey {
    /// Reads `whsec_` and base64; the error says what is wrong, and nothing of the secret.
    pub(super) fn read(secret: &Secret) -> Result<Self, String> {
        let text = std::str::from_utf8(secret.expose()).ok().map(str::trim);
        let encoded = text.and_then(|text| text.strip_prefix(PREFIX));
        let encoded = encoded.ok_or_else(|| format!("must begin with {PREFIX}"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| format!("is not base64 after {PREFIX}"))?;
        if !SECRET_BYTES.contains(&bytes.len()) {
            let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
            return Err(format!("is of {} bytes after {PREFIX}; {least} to {most} are needed", bytes.len()));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The headers of a request: names and values.
    pub(super) fn headers(&self, id: &str, at: Timestamp, body: &str) -> [(&'static str, String); 3] {
        let seconds = at.0.div_euclid(1000);
        let signed = hmac::sign(&self.0, format!("{id}.{seconds}.{body}").as_bytes());
        [
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", format!("v1,{}", STANDARD.encode(signed.as_ref()))),
        ]
    }
}

impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_standard_s_own_example() {
        let key = WebhookKey::read(&Secret::new(*b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")).expect("a secret");
        let body = r#"{"test": 2432232314}"#;
        let [id, at, signature] = key.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", Timestamp(1_614_265_330_999), body);
        assert_eq!((id.1.as_str(), at.1.as_str()), ("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330"));
        assert_eq!(signature.1, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn what_is_no_secret_is_refused_without_its_words() {
        for (text, problem) in [
            ("hush", "must begin with whsec_"),
            ("whsec_hush!", "is not base64 after whsec_"),
            ("whsec_aHVzaA==", "is of 4 bytes after whsec_; 24 to 64 are needed"),
        ] {
            assert_eq!(WebhookKey::read(&Secret::new(text)).expect_err("refused"), problem);
        }
    }
}
