//! The data directory and the lock that makes one process its only user.
//!
//! Invariant: at most one [`DirectoryLock`] exists for a directory, over all processes of the machine; whoever holds it
//! knows that every predecessor is dead, because the kernel drops the lock with its holder, however that ended.
//!
//! Deliberately absent: taking over a lock, waiting for one, and network file systems that do not honour `flock`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use conch_core::ids::NodeName;
use rustix::fs::{FlockOperation, flock};

use super::error::OpenError;

/// The database's file in the data directory.
pub const DATABASE_FILE: &str = "conch.db";
/// The lock's file in the data directory. It stays when the lock is dropped: removing it would be a race.
pub const LOCK_FILE: &str = "lock";
/// More than any "PID NODE" line; what a foreign file holds beyond it is not read.
const HOLDER_MAX_BYTES: u64 = 256;

/// The exclusive use of a data directory, held until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    // Closing the file drops the lock.
    _file: File,
}

/// Creates the directory (mode 0700, for it holds what people write) if it is missing, and locks it.
///
/// # Errors
/// [`OpenError::InUse`] names the holder; [`OpenError::Directory`] the path and what the system said.
pub(super) fn lock(directory: &Path, node: &NodeName) -> Result<DirectoryLock, OpenError> {
    let failed = |path: &Path, source: io::Error| OpenError::Directory { path: path.to_owned(), source };
    create(directory).map_err(|source| failed(directory, source))?;
    let path = directory.join(LOCK_FILE);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| failed(&path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(OpenError::InUse { directory: directory.to_owned(), holder: holder(&mut file) });
        }
        Err(errno) => return Err(failed(&path, errno.into())),
    }
    if !is_still_at(&file, &path) {
        let source = io::Error::other("the lock file was replaced while it was being locked");
        return Err(failed(&path, source));
    }
    write_holder(&mut file, node).map_err(|source| failed(&path, source))?;
    Ok(DirectoryLock { _file: file })
}

/// Makes the names in a directory durable: a new file may otherwise be gone after a power cut, synced content and all.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn create(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    fs::create_dir_all(&parent)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        // Somebody else was as quick; the lock decides.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
        other => other?,
    }
    sync(&parent)
}

/// A lock on a file that another process has removed meanwhile would exclude nobody.
fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => ours.ino() == theirs.ino() && ours.dev() == theirs.dev(),
        _ => false,
    }
}

fn write_holder(file: &mut File, node: &NodeName) -> io::Result<()> {
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(format!("{} {node}\n", std::process::id()).as_bytes())
}

/// What the lock file says of its holder, for a person to read. Never trusted for anything else.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let read = Read::by_ref(file).take(HOLDER_MAX_BYTES).read_to_string(&mut text);
    match (read, text.trim_end().split_once(' ')) {
        (Ok(_), Some((pid, node))) => format!("process {pid} (node {node})"),
        _ => "a process that has not written its id yet".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeName {
        "n1".parse().expect("valid")
    }

    #[test]
    fn the_second_holder_is_refused_and_told_the_first() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = temporary.path().join("a/b");
        let first = lock(&directory, &node()).expect("locks");
        let error = lock(&directory, &"n2".parse().expect("valid")).expect_err("must be refused").to_string();
        assert!(error.contains(&format!("process {} (node n1)", std::process::id())), "{error}");
        assert!(error.contains(&directory.display().to_string()), "{error}");
        drop(first);
        lock(&directory, &node()).expect("locks again");
    }

    #[test]
    fn a_new_directory_is_private() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = temporary.path().join("data");
        let _lock = lock(&directory, &node()).expect("locks");
        assert_eq!(fs::metadata(&directory).expect("exists").mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_in_the_directorys_place_is_named() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let path = temporary.path().join("data");
        fs::write(&path, "x").expect("writes");
        let error = lock(&path, &node()).expect_err("must be refused").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
    }
}
