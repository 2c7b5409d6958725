//! Ctrl-C and its like: temporary files go, then the process.
//!
//! The signals are blocked in every thread and one thread waits for them, so that what happens is ordinary code and not a
//! signal handler. Work need not look whether it is to stop: whatever it is at, the process ends.

#[cfg(unix)]
pub(crate) use unix::{unblocked, watch};

#[cfg(not(unix))]
pub(crate) fn watch() {}

#[cfg(not(unix))]
pub(crate) fn unblocked<T>(spawn: impl FnOnce() -> T) -> T {
    spawn()
}

#[cfg(unix)]
mod unix {
    use nix::sys::signal::{SigSet, Signal};

    use crate::output::say;

    /// What stops a process politely, and is not ignored (as by `nohup`).
    fn watched() -> SigSet {
        let ignored = ignored();
        let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        all.into_iter().filter(|&signal| ignored >> (signal as i32 - 1) & 1 == 0).collect()
    }

    /// The signals this process was told to ignore, one bit each.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }

    /// From here on the signals are waited for. To be called before there is any other thread: they inherit what is blocked.
    pub(crate) fn watch() {
        let set = watched();
        if set.thread_block().is_err() {
            return;
        }
        let wait = move || {
            if let Ok(signal) = set.wait() {
                afterfit::files::atomic::remove_all();
                say(&format!("\nstopped by {signal}: temporary files are removed, finished outputs stay"));
                std::process::exit(128 + signal as i32);
            }
        };
        if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
            let _ = set.thread_unblock();
        }
    }

    /// Starts another process, which would inherit what is blocked and could not be stopped.
    pub(crate) fn unblocked<T>(spawn: impl FnOnce() -> T) -> T {
        let set = watched();
        let _ = set.thread_unblock();
        let spawned = spawn();
        let _ = set.thread_block();
        spawned
    }
}
