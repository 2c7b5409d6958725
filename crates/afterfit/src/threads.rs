//! One setting for every thread this library starts.

/// Sets how many threads the whole library uses (0: one per core). Call it once, before any work; a second call, or
/// one after work has begun, fails because the pool is already running.
pub fn set_threads(count: usize) -> Result<(), rayon::ThreadPoolBuildError> {
    rayon::ThreadPoolBuilder::new().num_threads(count).build_global()
}

/// The linear algebra's share of that setting.
#[cfg(feature = "tables")]
pub(crate) fn par() -> faer::Par {
    faer::Par::rayon(0)
}
