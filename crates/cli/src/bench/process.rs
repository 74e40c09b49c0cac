//! What the kernel says of a process: its CPU time and its memory.

use std::time::Duration;

use crate::exit::Failure;

/// The unit of /proc's CPU times: USER_HZ, which is 100 on every Linux architecture of today.
const TICKS_A_SECOND: f64 = 100.0;

/// CPU time of a process and its threads, user and system, with the kernel's resolution of 10 ms.
pub(crate) fn cpu(pid: u32) -> Result<Duration, Failure> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::other(format!("{path}: {error}")))?;
    parse_cpu(&text).ok_or_else(|| Failure::other(format!("{path}: not as expected")))
}

/// Resident memory of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::other(format!("{path}: {error}")))?;
    parse_resident(&text).ok_or_else(|| Failure::other(format!("{path}: has no VmRSS")))
}

fn parse_cpu(stat: &str) -> Option<Duration> {
    // The name in parentheses may hold anything; the fields are counted from behind it. utime is 14, stime 15.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_secs_f64((user + system) as f64 / TICKS_A_SECOND))
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Nanoseconds on the clock that all processes of this machine share.
pub(crate) fn shared_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// How many files this process may have open.
pub(crate) fn open_files_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_whatever_the_name() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0";
        assert_eq!(parse_cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_cpu("12 (x) S 1"), None);
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t1\n"), Some(2048 * 1024));
    }

    #[test]
    fn this_process_has_memory_and_a_limit() {
        assert!(resident_bytes(std::process::id()).expect("is there") > 0);
        assert!(cpu(std::process::id()).is_ok() && open_files_max() > 0);
        assert!(cpu(u32::MAX).is_err());
    }
}
