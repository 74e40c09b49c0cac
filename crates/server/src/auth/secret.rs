//! The key of tokens: the configured one, or in development mode one that the node makes for itself.
//!
//! Invariant: a node whose key is not configured is in [`Mode::Development`] and binds loopback addresses only, so that a
//! key that lies in a data directory never guards anything that others can reach.

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Fewest bytes of a key. HS256's own block is 32 bytes; a shorter key would be the weakest part.
pub const SECRET_MIN_BYTES: usize = 32;
/// Most bytes of a key file.
pub const SECRET_MAX_BYTES: usize = 4096;
/// The development key's file in the data directory.
pub const DEVELOPMENT_SECRET_FILE: &str = "dev-secret";

/// What stands for a secret wherever one would be shown.
pub const HIDDEN: &str = "<hidden>";

/// Bytes that must never be shown: neither `Debug` nor `Serialize` gives them out.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes the bytes as they are.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for the one place that computes with them.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The parser's own message would repeat the value.
        let text = String::deserialize(deserializer).map_err(|_| serde::de::Error::custom("must be a string"))?;
        Ok(Self(text.into_bytes()))
    }
}

/// Where the key came from, and so what the node may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The node made its own key: loopback only; names can be had for the asking.
    Development,
    /// An operator configured a key.
    Configured,
}

/// What an operator has configured: the key itself, or a file that holds it; neither for development.
#[derive(Debug, Clone, Copy, Default)]
pub struct Configured<'a> {
    /// The key. Comes before the file.
    pub secret: Option<&'a Secret>,
    /// The file.
    pub file: Option<&'a Path>,
}

impl Configured<'_> {
    fn read(self) -> Result<Option<SigningKey>, SecretError> {
        let secret = match (self.secret, self.file) {
            (Some(secret), _) => secret.clone(),
            (None, Some(path)) => read_configured(path)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(SigningKey { secret, mode: Mode::Configured }))
    }
}

/// The key with its mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// The key; hidden wherever it would be shown.
    pub secret: Secret,
    /// Where it came from.
    pub mode: Mode,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn refused(path: &Path, reason: impl ToString) -> SecretError {
    SecretError::File { path: path.to_owned(), reason: reason.to_string() }
}

impl SigningKey {
    /// The configured key; else the development key of this data directory, made from `fresh` if there is none yet.
    ///
    /// `fresh` gives 32 random bytes from the system's generator.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn load(
        configured: Configured<'_>,
        data: &Path,
        fresh: impl FnOnce() -> [u8; 32],
    ) -> Result<Self, SecretError> {
        if let Some(key) = configured.read()? {
            return Ok(key);
        }
        let path = data.join(DEVELOPMENT_SECRET_FILE);
        let secret = match read_development(&path)? {
            Some(secret) => secret,
            None => create_development(data, &path, fresh())?,
        };
        Ok(Self { secret, mode: Mode::Development })
    }

    /// The configured key; `None`: there is none.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn configured(configured: Configured<'_>) -> Result<Option<Self>, SecretError> {
        configured.read()
    }

    /// The key for a command line on the same machine: as [`SigningKey::load`], but nothing is created.
    ///
    /// # Errors
    /// Names the file that is missing or wrong.
    pub fn find(configured: Configured<'_>, data: &Path) -> Result<Self, SecretError> {
        if let Some(key) = configured.read()? {
            return Ok(key);
        }
        let path = data.join(DEVELOPMENT_SECRET_FILE);
        let secret = read_development(&path)?.ok_or_else(|| {
            refused(
                &path,
                "does not exist; start `conch serve` once with this data directory, or set CONCH_AUTH_SECRET",
            )
        })?;
        Ok(Self { secret, mode: Mode::Development })
    }
}

/// Reads at most one byte more than a key may have.
fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let limit = u64::try_from(SECRET_MAX_BYTES).unwrap_or(u64::MAX) + 1;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn read_configured(path: &Path) -> Result<Secret, SecretError> {
    let mut bytes = read_bounded(path).map_err(|error| refused(path, error))?;
    for end in [b'\n', b'\r'] {
        if bytes.last() == Some(&end) {
            bytes.pop();
        }
    }
    match bytes.len() {
        SECRET_MIN_BYTES..=SECRET_MAX_BYTES => Ok(Secret::new(bytes)),
        length if length < SECRET_MIN_BYTES => {
            Err(refused(path, format!("holds {length} bytes; a key needs at least {SECRET_MIN_BYTES}")))
        }
        _ => Err(refused(path, format!("holds more than {SECRET_MAX_BYTES} bytes"))),
    }
}

fn read_development(path: &Path) -> Result<Option<Secret>, SecretError> {
    let bytes = match read_bounded(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, error)),
    };
    if bytes.len() != 32 {
        return Err(refused(
            path,
            format!("holds {} bytes instead of 32; delete it to have a new one made", bytes.len()),
        ));
    }
    let permissions = fs::metadata(path).map_err(|error| refused(path, error))?.permissions().mode() & 0o077;
    if permissions != 0 {
        return Err(refused(path, "can be read by others; it must have mode 0600"));
    }
    Ok(Some(Secret::new(bytes)))
}

/// Makes the development key. The file appears whole or not at all, and of two processes that make it at once both use the
/// one that came first: it is written aside, then linked, which never replaces.
fn create_development(data: &Path, path: &Path, bytes: [u8; 32]) -> Result<Secret, SecretError> {
    // As private as what the store will put there.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data);
    made.map_err(|error| refused(data, error))?;
    let aside = data.join(format!("{DEVELOPMENT_SECRET_FILE}.{}", std::process::id()));
    // A leftover of a process that had this id and died between its two steps.
    match fs::remove_file(&aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(refused(&aside, error)),
        _ => {}
    }
    let written = (|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(&bytes)?;
        file.sync_all()
    })();
    let linked = written.and_then(|()| match fs::hard_link(&aside, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    // What matters is the link; a file left aside is a nuisance, and the next start removes it.
    let _ = fs::remove_file(&aside);
    linked.map_err(|error| refused(path, error))?;
    read_development(path)?.ok_or_else(|| refused(path, "vanished while it was made"))
}

/// An address that this mode does not bind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} ({addr}) is not a loopback address: without a key the node serves this machine alone. Set auth.secret or \
     auth.secret_file (CONCH_AUTH_SECRET) to a key of at least {SECRET_MIN_BYTES} bytes, or bind 127.0.0.1"
)]
pub struct NotLoopback {
    /// The setting.
    pub name: &'static str,
    /// The address.
    pub addr: SocketAddr,
}

/// Whether a client listener may bind this address: in development mode only a loopback address.
///
/// # Errors
/// Names the setting and the way out.
pub fn may_bind(name: &'static str, addr: SocketAddr, mode: Mode) -> Result<(), NotLoopback> {
    match mode {
        Mode::Configured => Ok(()),
        Mode::Development if addr.ip().to_canonical().is_loopback() => Ok(()),
        Mode::Development => Err(NotLoopback { name, addr }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(configured: Configured<'_>, data: &Path, byte: u8) -> Result<SigningKey, SecretError> {
        SigningKey::load(configured, data, || [byte; 32])
    }

    #[test]
    fn the_development_key_is_made_once_and_private() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let data = scratch.path().join("not/yet/there");
        let first = load(Configured::default(), &data, 1).expect("made");
        assert_eq!(first, SigningKey { secret: Secret::new([1; 32]), mode: Mode::Development });
        assert_eq!(load(Configured::default(), &data, 2).expect("found").secret, first.secret);
        assert_eq!(SigningKey::find(Configured::default(), &data).expect("found"), first);
        let mode = fs::metadata(data.join(DEVELOPMENT_SECRET_FILE)).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let files: Vec<_> =
            fs::read_dir(&data).expect("is there").map(|entry| entry.expect("read").file_name()).collect();
        assert_eq!(files, [DEVELOPMENT_SECRET_FILE], "nothing is left aside");
    }

    #[test]
    fn of_two_that_make_it_at_once_both_use_the_first() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join(DEVELOPMENT_SECRET_FILE);
        create_development(scratch.path(), &path, [1; 32]).expect("made");
        let second = create_development(scratch.path(), &path, [2; 32]).expect("found");
        assert_eq!(second, Secret::new([1; 32]));
    }

    #[test]
    fn a_development_key_that_is_not_one_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join(DEVELOPMENT_SECRET_FILE);
        let missing = SigningKey::find(Configured::default(), scratch.path()).expect_err("not there").to_string();
        assert!(missing.contains("does not exist"), "{missing}");
        assert!(!path.exists(), "looking for it makes nothing");
        for (bytes, mode, problem) in [
            (&b""[..], 0o600, "holds 0 bytes"),
            (&[7; 31], 0o600, "holds 31 bytes"),
            (&[7; 32], 0o644, "read by others"),
        ] {
            fs::write(&path, bytes).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            let error = load(Configured::default(), scratch.path(), 1).expect_err("must be refused").to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_key_file_is_bounded_and_loses_its_line_end() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("key");
        let configured = Configured { secret: None, file: Some(&path) };
        let write = |text: &str| fs::write(&path, text).expect("written");
        for text in ["k".repeat(32), "k".repeat(32) + "\n", "k".repeat(32) + "\r\n"] {
            write(&text);
            let key = load(configured, scratch.path(), 1).expect("a good key");
            assert_eq!(key, SigningKey { secret: Secret::new("k".repeat(32)), mode: Mode::Configured });
        }
        for (text, problem) in [("k".repeat(31) + "\n", "holds 31 bytes"), ("k".repeat(5000), "more than 4096")] {
            write(&text);
            let error = load(configured, scratch.path(), 1).expect_err("must be refused").to_string();
            assert!(error.contains(problem) && !error.contains("kkk"), "{error}");
        }
        assert!(!scratch.path().join(DEVELOPMENT_SECRET_FILE).exists());
    }

    #[test]
    fn development_binds_loopback_alone() {
        let cases = [
            ("127.0.0.1:4000", true),
            ("127.9.9.9:4000", true),
            ("[::1]:4000", true),
            ("[::ffff:127.0.0.1]:4000", true),
            ("0.0.0.0:4000", false),
            ("[::]:4000", false),
            ("10.0.0.1:4000", false),
            ("[::ffff:10.0.0.1]:4000", false),
        ];
        for (addr, loopback) in cases {
            let addr = addr.parse().expect("an address");
            assert_eq!(may_bind("listen", addr, Mode::Development).is_ok(), loopback, "{addr}");
            assert_eq!(may_bind("listen", addr, Mode::Configured), Ok(()));
        }
        let error =
            may_bind("listen", "0.0.0.0:1".parse().expect("an address"), Mode::Development).expect_err("refused");
        assert!(error.to_string().starts_with("listen (0.0.0.0:1) is not a loopback address"), "{error}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let secret = Secret::new("correct horse battery staple".as_bytes());
        assert_eq!(format!("{secret:?}"), HIDDEN);
        assert_eq!(serde_json::to_string(&secret).expect("serialises"), format!("{HIDDEN:?}"));
        let error = serde_json::from_str::<Secret>("12345678901").expect_err("not a string").to_string();
        assert!(!error.contains("12345678901"), "{error}");
    }
}
