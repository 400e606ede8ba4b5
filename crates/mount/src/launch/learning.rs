//! Records the first launch of a mount, without prefetch, and keeps its profile.

use std::{sync::Arc, time::Duration};

use floe::Image;
use floe_engine::{PrefetchSet, Volume, VolumeOptions};
use floe_fuse::AccessSink;
use floe_image::ShownName;
use floe_sandbox::Policy;
use floe_sync::Mutex;

use super::{
    learned::LearnedPlace,
    recorder::Recorder,
    report::{LaunchState, Progress},
};

/// A launch is over when nothing new was used for this long.
const QUIET: Duration = Duration::from_secs(5);

/// The maximum duration of a recording.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Records the first launch of a mount.
///
/// Prefetch is off during the recording: the mount would not see reads of bytes that were pushed into the page cache.
pub(super) struct Learning {
    recorder: Arc<Recorder>,
    /// Taken by the thread that writes the profile.
    place: Mutex<Option<LearnedPlace>>,
    prefetch: PausedPrefetch,
    progress: Arc<Progress>,
}

impl Learning {
    /// Records a launch that will be kept at `place`. The options of the volume are those for the time after it.
    pub(super) fn new(place: LearnedPlace, options: &VolumeOptions, progress: Arc<Progress>) -> Self {
        let prefetch = PausedPrefetch::new(options);
        progress.set(LaunchState::Learning, "");
        Self { recorder: Arc::default(), place: Mutex::new(Some(place)), prefetch, progress }
    }

    /// Allows a confined process to write the profile.
    pub(super) fn allow(&self, policy: &mut Policy) {
        let place = self.place.lock();
        place.iter().for_each(|place| place.allow(policy));
    }

    pub(super) fn access_sink(&self) -> AccessSink {
        let recorder = Arc::clone(&self.recorder);
        Arc::new(move |access| recorder.note(access))
    }

    /// Waits until a launch is over.
    pub(super) fn wait_until_over(&self) {
        self.recorder.wait_until_quiet(QUIET, TIME_MAX);
    }

    /// Ends the recording and writes the profile, unless nothing was read.
    pub(super) fn end(&self, image: &Image) {
        let mut place = self.place.lock();
        let Some(place) = place.take() else { return };
        self.recorder.end();
        self.prefetch.resume(image.reader().volume());
        if !self.recorder.has_read() {
            return self.progress.set(LaunchState::None, "nothing was read");
        }
        let profile = match self.recorder.take_profile(image) {
            Ok(profile) => profile,
            Err(fail) => return self.progress.set(LaunchState::Unavailable, &fail.to_string()),
        };
        self.progress.set_steps((profile.ranges().len() + profile.names().len()) as u64);
        match place.write(&profile) {
            Ok(()) => self.progress.set(LaunchState::Learned, ""),
            Err(error) => {
                let reason = format!("cannot write {}: {error}", place.path().shown());
                self.progress.remark(format_args!("{reason}"));
                self.progress.set(LaunchState::Unavailable, &reason);
            }
        }
    }
}

/// The options of prefetch, which take effect after the launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct PausedPrefetch {
    reads_around: bool,
    prefetch: PrefetchSet,
}

impl PausedPrefetch {
    /// Keeps the options of prefetch, for the time after the launch.
    pub(super) fn new(options: &VolumeOptions) -> Self {
        Self { reads_around: options.read_around, prefetch: options.prefetch }
    }

    /// The options of a volume without prefetch.
    pub(super) fn pause(options: VolumeOptions) -> VolumeOptions {
        VolumeOptions { read_around: false, prefetch: PrefetchSet::NONE, ..options }
    }

    /// Switches prefetch on as the options were, unless it was switched on meanwhile.
    pub(super) fn resume(self, volume: &Volume) {
        let now = volume.options();
        if now.read_around || now.prefetch != PrefetchSet::NONE {
            return;
        }
        volume.tune(&VolumeOptions { read_around: self.reads_around, prefetch: self.prefetch, ..now });
    }
}
