//! Prefetch that is off during a launch.

use floe_engine::{Engine, EngineOptions, PrefetchSet};

use super::report::Progress;

/// The options of prefetch, which take effect after the launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PausedPrefetch {
    reads_around: bool,
    prefetch: PrefetchSet,
}

impl PausedPrefetch {
    /// Keeps the options of prefetch, for the time after the launch.
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self { reads_around: options.read_around, prefetch: options.prefetch }
    }

    /// The options of an engine without prefetch.
    pub(super) fn pause(options: EngineOptions) -> EngineOptions {
        EngineOptions { read_around: false, prefetch: PrefetchSet::NONE, ..options }
    }

    /// Switches prefetch on as the options were, unless it was switched on meanwhile. A refusal is reported; prefetch
    /// then stays off.
    pub(super) fn resume(self, engine: &Engine, progress: &Progress) {
        let now = engine.options();
        if now.read_around || now.prefetch != PrefetchSet::NONE {
            return;
        }
        let wanted = EngineOptions { read_around: self.reads_around, prefetch: self.prefetch, ..now };
        if let Err(error) = engine.tune(&wanted) {
            progress.remark(format_args!("prefetch stays off: {error}"));
        }
    }
}
