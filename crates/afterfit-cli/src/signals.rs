//! Ctrl-C and its like: temporary files go, then the process.
//!
//! One thread waits for the signals, so that what happens is ordinary code and not a signal handler. Work need not look whether it
//! is to stop: whatever it is at, the process ends. Nothing is blocked: what this process starts can be stopped as usual, and a
//! signal that comes while it does is heard, too.

#[cfg(unix)]
pub(crate) use unix::watch;

#[cfg(not(unix))]
pub(crate) fn watch() {}

#[cfg(unix)]
mod unix {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::signal_name;

    use crate::output::say;

    /// The signals this process was told to ignore (as by `nohup`), one bit each.
    fn ignored() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    }

    /// From here on the signals are waited for.
    pub(crate) fn watch() {
        let ignored = ignored();
        let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let Ok(mut signals) = Signals::new(watched) else { return };
        let wait = move || {
            if let Some(signal) = signals.forever().next() {
                afterfit::files::stores::stop_sending();
                afterfit::files::atomic::remove_all();
                let name = signal_name(signal).unwrap_or("a signal");
                say(&format!("\nstopped by {name}: temporary files are removed, finished outputs stay"));
                std::process::exit(128 + signal);
            }
        };
        // (Without that thread signals would be heard by nobody.)
        if std::thread::Builder::new().name("signals".into()).spawn(wait).is_err() {
            std::process::exit(1);
        }
    }
}
