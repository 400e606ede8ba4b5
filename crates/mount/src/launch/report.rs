//! The report of a mount about launches.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use floe_fuse::{RequestCounts, RequestKind};
use floe_keeper::Walked;
use floe_sync::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::log::MountLog;

/// The progress of the replay or the recording of a launch.
#[derive(Clone, Serialize, Deserialize, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaunchReport {
    /// `off`, `none`, `unavailable`, `waiting`, `replaying`, `replayed`, `left`, `stopped`, `learning` or `learned`.
    pub state: String,
    /// The reason for the state; may be empty.
    pub reason: String,
    /// The location of the profile: a path, or `image`.
    pub source: String,
    /// The steps of the profile.
    pub steps: u64,
    /// Names that were looked up ahead of the programs and exist.
    pub found_names: u64,
    /// Names that were looked up ahead of the programs and do not exist.
    pub missing_names: u64,
    pub failed_names: u64,
    /// Ranges of files that were stored in the page cache, or that the kernel's EROFS was asked to read.
    pub ranges: u64,
    pub range_bytes: u64,
    /// Steps whose files are not in the image.
    pub skipped_steps: u64,
    /// Files outside of the profile that programs used during the replay.
    pub outside_files: u64,
    /// The requests that the replay made, by kind. The mount's `requests` contain them.
    pub requests: BTreeMap<String, u64>,
}

/// The state of a replay or a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum LaunchState {
    /// The profile is not read yet, or the launch has not begun.
    #[default]
    Waiting,
    Off,
    /// There is no profile.
    None,
    Unavailable,
    Replaying,
    Replayed,
    /// The launch used too many files that the profile does not have.
    Left,
    /// A limit was reached, or the mount ended.
    Stopped,
    Learning,
    Learned,
}

/// The progress of a replay or a recording.
#[derive(Default)]
pub(super) struct Progress {
    /// `None` in tests.
    log: Option<Arc<MountLog>>,
    state: Mutex<(LaunchState, String)>,
    changed: Condvar,
    source: Mutex<String>,
    steps: AtomicU64,
    found: AtomicU64,
    missing: AtomicU64,
    failed: AtomicU64,
    ranges: AtomicU64,
    range_bytes: AtomicU64,
    skipped: AtomicU64,
}

impl Progress {
    pub(super) fn new(log: Arc<MountLog>) -> Self {
        Self { log: Some(log), ..Self::default() }
    }

    /// Tells the user that something is not quite as requested.
    pub(super) fn remark(&self, message: fmt::Arguments<'_>) {
        self.log.iter().for_each(|log| log.remark(message));
    }

    pub(super) fn set(&self, state: LaunchState, reason: &str) {
        *self.state.lock() = (state, reason.to_owned());
        self.changed.notify_all();
    }

    /// Waits until there is nothing to replay, or the replay is over, at most for `time`.
    pub(super) fn wait_for_replay(&self, time: Duration) {
        let is_running =
            |state: &mut (LaunchState, String)| matches!(state.0, LaunchState::Waiting | LaunchState::Replaying);
        let _ = self.changed.wait_timeout_while(self.state.lock(), time, is_running);
    }

    pub(super) fn set_source(&self, source: &str) {
        source.clone_into(&mut self.source.lock());
    }

    pub(super) fn set_steps(&self, count: u64) {
        self.steps.store(count, Relaxed);
    }

    pub(super) fn note_walked(&self, walked: Walked) {
        self.found.fetch_add(walked.found.into(), Relaxed);
        self.missing.fetch_add(walked.missing.into(), Relaxed);
        self.failed.fetch_add(walked.failed.into(), Relaxed);
    }

    pub(super) fn note_range(&self, bytes: u64) {
        self.ranges.fetch_add(1, Relaxed);
        self.range_bytes.fetch_add(bytes, Relaxed);
    }

    pub(super) fn note_skipped(&self) {
        self.skipped.fetch_add(1, Relaxed);
    }

    pub(super) fn report(&self, requests: &RequestCounts, outside_files: u64) -> LaunchReport {
        let (state, reason) = self.state.lock().clone();
        let walked = RequestKind::ALL.map(|kind| (kind.name().to_owned(), requests.walked_of(kind)));
        LaunchReport {
            state: state.name().to_owned(),
            reason,
            source: self.source.lock().clone(),
            steps: self.steps.load(Relaxed),
            found_names: self.found.load(Relaxed),
            missing_names: self.missing.load(Relaxed),
            failed_names: self.failed.load(Relaxed),
            ranges: self.ranges.load(Relaxed),
            range_bytes: self.range_bytes.load(Relaxed),
            skipped_steps: self.skipped.load(Relaxed),
            outside_files,
            requests: walked.into_iter().collect(),
        }
    }
}

impl LaunchState {
    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Off => "off",
            Self::None => "none",
            Self::Unavailable => "unavailable",
            Self::Replaying => "replaying",
            Self::Replayed => "replayed",
            Self::Left => "left",
            Self::Stopped => "stopped",
            Self::Learning => "learning",
            Self::Learned => "learned",
        }
    }
}
