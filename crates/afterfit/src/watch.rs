//! Long work that somebody waits for: how far it is, and whether it is to stop.
//!
//! The command needs neither: a signal ends its process. A program that calls the library shares a [`Watch`] with the thread
//! that works, reads its progress now and then, and may ask it to stop; the work then ends at its next step with an error, and
//! drops its temporary files like after any other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

/// Work that was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("stopped before it was done")]
pub struct Stopped;

/// Shared by those who work and those who wait.
#[derive(Debug, Default)]
pub struct Watch {
    stop: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl Watch {
    /// Asks the work to stop.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Parts done, of parts known so far: models of a fit, bytes of checkpoints.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// So many parts more are to be done.
    pub(crate) fn expect(&self, parts: u64) {
        self.total.fetch_add(parts, Ordering::Relaxed);
    }

    /// So many more are done.
    pub(crate) fn advance(&self, parts: u64) {
        self.done.fetch_add(parts, Ordering::Relaxed);
    }

    /// An error if the work is to stop.
    pub(crate) fn require(&self) -> Result<(), Stopped> {
        if self.stopped() { Err(Stopped) } else { Ok(()) }
    }
}
