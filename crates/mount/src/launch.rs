//! Launches of a mount: replays a recorded launch ahead of its programs, or records one.

mod footprint;
mod learned;
mod learning;
mod live;
mod profile_match;
mod recorder;
mod replay;
mod report;
mod store_queue;

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe::{FormatImage, Image, Reader, remote::RemoteProcess};
use floe_engine::VolumeOptions;
use floe_front::VirtualImage;
use floe_fuse::{AccessSink, RequestCounts};
use floe_image::ShownName;
use floe_keeper::{Access, Keeper, LaunchWalk};
use floe_mkfs::Profile;
use floe_sandbox::Policy;

pub(crate) use self::report::LaunchReport;
pub use self::{
    footprint::Footprint,
    live::{RecordingState, RecordingStep},
    recorder::Recorder,
    replay::replayed_range,
};
use self::{
    learned::LearnedPlace,
    learning::Learning,
    live::LiveRecording,
    profile_match::ProfileMatch,
    replay::Replay,
    report::{LaunchState, Progress},
};
pub(crate) use crate::options::LAUNCH_WAIT;
pub use crate::options::ProfileChoice;
use crate::{failure::Failure, log::MountLog, options::Settings};
use learning::PausedPrefetch;

/// The launch task of a mount: to replay a launch, to learn one, or neither. It is set before the process is confined.
pub(crate) struct LaunchPlan {
    task: Task,
    /// How long mounting waits for the replay.
    wait: Duration,
    progress: Arc<Progress>,
    live: Arc<LiveRecording>,
}

/// What the service was given for a launch.
#[derive(Default)]
pub(crate) struct GivenLaunch {
    /// The profile that the settings name, if it is open already.
    pub(crate) profile: Option<File>,
    /// Looks names up in place of the keeper.
    pub(crate) walk: Option<LaunchWalk>,
}

enum Task {
    /// Nothing.
    Nothing,
    /// Replay a launch.
    Replay(Replaying),
    /// Record the first launch.
    Learn(Learning),
}

/// A launch to replay.
struct Replaying {
    /// Its profile; `None` for the one in the image.
    profile: Option<Profile>,
    /// Looks names up in place of the keeper.
    walk: Option<LaunchWalk>,
    profile_match: Arc<ProfileMatch>,
    /// Set until the launch of a remote image is over: the launch would wait for requests for metadata that it does not
    /// need.
    holds_metadata: Option<Arc<AtomicBool>>,
    /// Set if the image is remote with a launch bundle. The source then fetches the bytes of the launch without being asked.
    /// Prefetch is off until the launch is over, because it would ask for other bytes.
    paused_prefetch: Option<PausedPrefetch>,
}

/// The parts of a running mount that a replay needs.
pub(crate) struct Mounted {
    pub image: Image,
    /// The reader that serves the mount.
    pub reader: Reader,
    /// The image behind the kernel's EROFS, if that is in front.
    pub virtual_image: Option<Arc<VirtualImage>>,
    pub keeper: Arc<Keeper>,
    pub requests: RequestCounts,
}

/// The launches of a running mount.
pub(crate) struct Launches {
    progress: Arc<Progress>,
    wait: Duration,
    requests: RequestCounts,
    profile_match: Option<Arc<ProfileMatch>>,
    learning: Option<Arc<Learning>>,
    image: Image,
    /// A recording that a client may ask for.
    live: Arc<LiveRecording>,
}

impl LaunchPlan {
    /// Reads the profile, from `given` if that is open already, or prepares to record one.
    ///
    /// # Errors
    /// The profile that the user named cannot be read, or there is no directory for a learned one.
    pub(crate) fn prepare(
        image: &std::path::Path,
        settings: &Settings,
        given: GivenLaunch,
        remote: Option<&RemoteProcess>,
        log: &Arc<MountLog>,
    ) -> Result<Self, Failure> {
        let progress = Arc::new(Progress::new(Arc::clone(log)));
        let nothing = |state, reason: &str| {
            progress.set(state, reason);
            Ok(Self {
                task: Task::Nothing,
                wait: Duration::ZERO,
                progress: Arc::clone(&progress),
                live: Arc::default(),
            })
        };
        if settings.mount.kernel.access == Some(Access::OwnerAndRoot) {
            return nothing(LaunchState::Unavailable, "with allow_root, the kernel caches no names");
        }
        let profile = match &settings.profile {
            ProfileChoice::Off => return nothing(LaunchState::Off, ""),
            ProfileChoice::Image => None,
            ProfileChoice::File(path) => {
                let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{}: {error}", path.shown()));
                let file = given.profile.map_or_else(|| File::open(path), Ok).map_err(|error| failed(&error))?;
                progress.set_source(&path.to_string_lossy());
                Some(Profile::read(file).map_err(|error| failed(&error))?)
            }
            ProfileChoice::Learn => {
                let place = match LearnedPlace::of(image, &settings.open, remote)? {
                    Ok(place) => place,
                    Err(error) => {
                        log.remark(format_args!("{error}; no launch is learned or replayed"));
                        return nothing(LaunchState::Unavailable, &error.to_string());
                    }
                };
                progress.set_source(&place.path().to_string_lossy());
                let Some(profile) = place.read(log) else {
                    let learning = Learning::new(place, &settings.open.volume, Arc::clone(&progress));
                    let task = Task::Learn(learning);
                    return Ok(Self { task, wait: Duration::ZERO, progress, live: Arc::default() });
                };
                Some(profile)
            }
        };
        let holds_metadata = remote.map(|_| Arc::new(AtomicBool::new(true)));
        let has_bundle = remote.is_some_and(|remote| remote.about().has_launch_bundle);
        let paused_prefetch = has_bundle.then(|| PausedPrefetch::new(&settings.open.volume));
        let replaying =
            Replaying { profile, walk: given.walk, profile_match: Arc::default(), holds_metadata, paused_prefetch };
        let wait = if has_bundle { settings.launch_wait.unwrap_or(LAUNCH_WAIT) } else { Duration::ZERO };
        Ok(Self { task: Task::Replay(replaying), wait, progress, live: Arc::default() })
    }

    /// Allows a confined process to write the profile that it learns.
    pub(crate) fn allow(&self, policy: &mut Policy) {
        if let Task::Learn(learning) = &self.task {
            learning.allow(policy);
        }
    }

    /// The options of the volume until the launch is over.
    pub(crate) fn volume_options(&self, options: VolumeOptions) -> VolumeOptions {
        match &self.task {
            Task::Learn(_) | Task::Replay(Replaying { paused_prefetch: Some(_), .. }) => PausedPrefetch::pause(options),
            Task::Nothing | Task::Replay(_) => options,
        }
    }

    /// What the mount calls for each access.
    pub(crate) fn access_sink(&self) -> AccessSink {
        let live = Arc::clone(&self.live);
        match &self.task {
            Task::Nothing => Arc::new(move |access| live.note(access)),
            Task::Replay(Replaying { profile_match, .. }) => {
                let noted = Arc::clone(profile_match);
                Arc::new(move |access| {
                    noted.note(access);
                    live.note(access);
                })
            }
            Task::Learn(learning) => {
                let learn = learning.access_sink();
                Arc::new(move |access| {
                    learn(access);
                    live.note(access);
                })
            }
        }
    }

    /// Whether a front does not read metadata ahead at present.
    pub(crate) fn holds_metadata(&self) -> Arc<AtomicBool> {
        match &self.task {
            Task::Replay(Replaying { holds_metadata: Some(holds), .. }) => Arc::clone(holds),
            _ => Arc::default(),
        }
    }

    /// Whether the launch is recorded, so that the mount must see each access.
    pub(crate) fn is_learning(&self) -> bool {
        matches!(self.task, Task::Learn(_))
    }

    /// Starts the replay or the recording.
    pub(crate) fn start(self, mounted: Mounted) -> Arc<Launches> {
        let Self { task, wait, progress, live } = self;
        let (image, requests) = (mounted.image.clone(), mounted.requests.clone());
        let (mut profile_match, mut learning) = (None, None);
        // The mount also works without this thread. Work that is dropped before it runs ends its launch.
        let run =
            |work: Box<dyn FnOnce() + Send>| drop(thread::Builder::new().name("floe-launch".to_owned()).spawn(work));
        match task {
            Task::Nothing => run(Box::new(move || mounted.image.read_ahead_of_launch())),
            Task::Replay(replaying) => {
                profile_match = Some(Arc::clone(&replaying.profile_match));
                let end = ReplayEnd {
                    profile_match: Arc::clone(&replaying.profile_match),
                    holds_metadata: replaying.holds_metadata.clone(),
                    paused_prefetch: replaying.paused_prefetch,
                    image: mounted.image.clone(),
                    progress: Arc::clone(&progress),
                    has_run: false,
                };
                run(Box::new(move || {
                    let mut end = end;
                    end.has_run = true;
                    if end.paused_prefetch.is_none() {
                        mounted.image.read_ahead_of_launch();
                    }
                    replay(replaying, mounted, &end.progress);
                }));
            }
            Task::Learn(task) => {
                let learner = Arc::new(task);
                learning = Some(Arc::clone(&learner));
                let end = LearningEnd { learner, image: mounted.image };
                run(Box::new(move || {
                    let end = end;
                    end.learner.wait_until_over();
                }));
            }
        }
        Arc::new(Launches { progress, wait, requests, profile_match, learning, image, live })
    }
}

impl Launches {
    /// The progress of the replay or the recording.
    pub(crate) fn report(&self) -> LaunchReport {
        self.progress.report(&self.requests, self.profile_match.as_deref().map_or(0, ProfileMatch::outside_count))
    }

    /// Does a step of a recording for a client. A replay would hide reads, so it ends.
    ///
    /// # Errors
    /// As for [`LiveRecording::step`].
    pub(crate) fn record(&self, step: RecordingStep) -> Result<RecordingState, String> {
        if step == RecordingStep::Begin {
            self.profile_match.iter().for_each(|profile_match| profile_match.end());
        }
        self.live.step(step, &self.image)
    }

    /// Waits for the replay of a launch that has a bundle, at most for `launch-wait=`. A program that starts earlier is
    /// ahead of the replay, and waits for bytes that the launch does not need.
    pub(crate) fn wait_for_replay(&self) {
        self.progress.wait_for_replay(self.wait);
    }

    /// Ends the replay or the recording, after the mount has ended. The profile of a recording is written.
    pub(crate) fn end(&self) {
        if let Some(profile_match) = &self.profile_match {
            profile_match.end();
        }
        if let Some(learning) = &self.learning {
            learning.end(&self.image);
        }
    }
}

/// Ends a replay when it is dropped, whether the replay has run or its thread could not be started.
struct ReplayEnd {
    profile_match: Arc<ProfileMatch>,
    holds_metadata: Option<Arc<AtomicBool>>,
    paused_prefetch: Option<PausedPrefetch>,
    image: Image,
    progress: Arc<Progress>,
    has_run: bool,
}

impl Drop for ReplayEnd {
    fn drop(&mut self) {
        self.paused_prefetch.iter().for_each(|prefetch| prefetch.resume(self.image.reader().volume()));
        self.holds_metadata.iter().for_each(|holds| holds.store(false, Relaxed));
        self.profile_match.end();
        if !self.has_run {
            self.progress.set(LaunchState::Unavailable, "no thread can be started");
        }
    }
}

/// Ends a recording when it is dropped, whether a thread has waited for the end of the launch or could not be started.
struct LearningEnd {
    learner: Arc<Learning>,
    image: Image,
}

impl Drop for LearningEnd {
    fn drop(&mut self) {
        self.learner.end(&self.image);
    }
}

/// Waits for the launch, and replays it.
fn replay(replaying: Replaying, mounted: Mounted, progress: &Arc<Progress>) {
    let Replaying { profile, walk, profile_match, holds_metadata, paused_prefetch } = replaying;
    let profile = match profile {
        Some(profile) => profile,
        None => match embedded(&mounted.image, progress) {
            Some(profile) => profile,
            None => return,
        },
    };
    let steps = profile.ranges().len() + profile.names().len();
    progress.set_steps(steps as u64);
    if profile.is_empty() {
        return progress.set(LaunchState::None, "the profile is empty");
    }
    let walk = match walk.map_or_else(|| mounted.keeper.walk(), Ok) {
        Ok(walk) => Some(walk),
        // The kernel looks them up in kept metadata without a request, and has the files to which bytes are pushed.
        Err(_) if mounted.virtual_image.as_ref().is_some_and(|front| front.is_kept()) => None,
        Err(error) => return progress.set(LaunchState::Unavailable, &format!("cannot look names up: {error}")),
    };
    walk.iter().for_each(|walk| mounted.requests.set_walker(walk.thread()));
    let Mounted { image, reader, virtual_image: front, .. } = mounted;
    let progress = Arc::clone(progress);
    let has_bundle = paused_prefetch.is_some();
    Replay { image, reader, walk, front, has_bundle, profile_match, progress, holds_metadata }.run(&profile);
}

/// The profile in the image.
fn embedded(image: &Image, progress: &Progress) -> Option<Profile> {
    progress.set_source("image");
    let text = match image.format_image() {
        FormatImage::Erofs(erofs) => erofs.launch_profile().ok().flatten(),
        FormatImage::Squashfs(_) => None,
    };
    let Some(text) = text else {
        progress.set_source("");
        progress.set(LaunchState::None, "the image has no profile");
        return None;
    };
    match Profile::read(text.as_slice()) {
        Ok(profile) => Some(profile),
        Err(error) => {
            progress.set(LaunchState::None, &format!("the profile in the image is ignored: {error}"));
            None
        }
    }
}

/// The interval at which a waiting thread checks whether the mount has ended.
const GLANCE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use floe::OpenOptions;
    use floe_engine::PrefetchSet;

    use super::*;

    const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/demo.erofs");

    #[test]
    fn a_replay_whose_thread_does_not_start_ends() {
        let mut options = OpenOptions::default();
        let before = options.volume.clone();
        let paused_prefetch = Some(PausedPrefetch::new(&before));
        options.volume = PausedPrefetch::pause(options.volume);
        let image = Image::open(DEMO, &options).expect("the demo image");
        let volume = Arc::clone(image.reader().volume());
        assert_eq!(volume.options().prefetch, PrefetchSet::NONE);
        let (holds, progress) = (Arc::new(AtomicBool::new(true)), Arc::new(Progress::default()));
        let end = ReplayEnd {
            profile_match: Arc::default(),
            holds_metadata: Some(Arc::clone(&holds)),
            paused_prefetch,
            image,
            progress: Arc::clone(&progress),
            has_run: false,
        };
        // As by a thread that cannot be started.
        drop(Box::new(move || drop(end)) as Box<dyn FnOnce() + Send>);
        let now = volume.options();
        assert_eq!((now.prefetch, now.read_around), (before.prefetch, before.read_around));
        assert!(!holds.load(Relaxed), "requests for metadata wait no longer");
        let began = Instant::now();
        progress.wait_for_replay(Duration::from_secs(60));
        assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for the replay");
    }
}
