//! Records what programs use of a running mount, from one question to the next.

use std::{
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe::Image;
use floe_fuse::ImageAccess;
use floe_sync::Mutex;
use serde::{Deserialize, Serialize};

use super::{learning::PausedPrefetch, recorder::Recorder};

/// The maximum duration of a recording. It ends a recording whose client is gone.
const TIME_MAX: Duration = Duration::from_secs(900);

/// The maximum number of bytes of a profile in one answer.
const PART_BYTES_MAX: usize = 1 << 20;

/// What a client wants to happen with the recording of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum RecordingStep {
    /// Begin. Prefetch is off until the recording ends: it would hide reads.
    Begin,
    /// Tell how many accesses there are so far.
    Count,
    /// End, and tell the profile.
    End,
    /// Tell the rest of the profile, from this byte on.
    Rest(usize),
    /// End without a profile.
    GiveUp,
}

/// What a mount tells about its recording.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct RecordingState {
    /// The number of accesses.
    pub count: usize,
    /// A part of the text of the profile.
    pub text: String,
    /// Whether more of it follows.
    pub has_more: bool,
}

/// The recording of a running mount, if there is one.
#[derive(Default)]
pub(crate) struct LiveRecording {
    is_on: AtomicBool,
    phase: Mutex<Phase>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Off,
    On {
        recorder: Arc<Recorder>,
        prefetch: PausedPrefetch,
    },
    /// The profile is being told.
    Ended(String),
}

impl LiveRecording {
    /// Records an access, if there is a recording.
    pub(super) fn note(&self, access: ImageAccess<'_>) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let recorder = match &*self.phase.lock() {
            Phase::On { recorder, .. } => Arc::clone(recorder),
            Phase::Off | Phase::Ended(_) => return,
        };
        recorder.note(access);
    }

    /// Does a step for a client.
    ///
    /// # Errors
    /// There is a recording already, or none; or the image cannot be read. The text is the reason.
    pub(crate) fn step(self: &Arc<Self>, step: RecordingStep, image: &Image) -> Result<RecordingState, String> {
        let state = |count, text, has_more| Ok(RecordingState { count, text, has_more });
        match step {
            RecordingStep::Begin => self.begin(image).and_then(|()| state(0, String::new(), false)),
            RecordingStep::Count => match &*self.phase.lock() {
                Phase::On { recorder, .. } => state(recorder.count(), String::new(), false),
                Phase::Off | Phase::Ended(_) => Err(NONE.to_owned()),
            },
            RecordingStep::End => {
                let Some(recorder) = self.end(image) else { return Err(NONE.to_owned()) };
                let profile = recorder.take_profile(image).map_err(|failure| failure.to_string())?;
                *self.phase.lock() = Phase::Ended(profile.to_text());
                self.rest(0)
            }
            RecordingStep::Rest(from) => self.rest(from),
            RecordingStep::GiveUp => {
                self.end(image);
                *self.phase.lock() = Phase::Off;
                state(0, String::new(), false)
            }
        }
    }

    fn begin(self: &Arc<Self>, image: &Image) -> Result<(), String> {
        let volume = image.reader().volume();
        let recorder = {
            let mut phase = self.phase.lock();
            if matches!(*phase, Phase::On { .. }) {
                return Err("its accesses are being recorded already".to_owned());
            }
            let options = volume.options();
            let recorder = Arc::<Recorder>::default();
            *phase = Phase::On { recorder: Arc::clone(&recorder), prefetch: PausedPrefetch::new(&options) };
            volume.tune(&PausedPrefetch::pause(options));
            recorder
        };
        self.is_on.store(true, Relaxed);
        let (this, kept) = (Arc::downgrade(self), image.clone());
        let waiting = move || give_up_later(&this, &recorder, &kept);
        let started = thread::Builder::new().name("floe-record".to_owned()).spawn(waiting);
        started.map(drop).map_err(|error| {
            self.end(image);
            format!("no thread can be started: {error}")
        })
    }

    /// Ends the recording, if there is one. Prefetch is as before then.
    fn end(&self, image: &Image) -> Option<Arc<Recorder>> {
        self.is_on.store(false, Relaxed);
        let mut phase = self.phase.lock();
        match mem::take(&mut *phase) {
            Phase::On { recorder, prefetch } => {
                prefetch.resume(image.reader().volume());
                recorder.end();
                Some(recorder)
            }
            other => {
                *phase = other;
                None
            }
        }
    }

    /// A part of the profile. After the last one, it is forgotten.
    fn rest(&self, from: usize) -> Result<RecordingState, String> {
        let mut phase = self.phase.lock();
        let Phase::Ended(text) = &*phase else { return Err(NONE.to_owned()) };
        // Profiles are ASCII.
        let end = from.saturating_add(PART_BYTES_MAX).min(text.len());
        let part = text.get(from..end).ok_or("the profile is shorter")?.to_owned();
        let has_more = end < text.len();
        if !has_more {
            *phase = Phase::Off;
        }
        Ok(RecordingState { count: 0, text: part, has_more })
    }
}

const NONE: &str = "its accesses are not being recorded";

/// Ends a recording whose client does not.
fn give_up_later(recording: &Weak<LiveRecording>, recorder: &Arc<Recorder>, image: &Image) {
    recorder.wait_until_over(TIME_MAX);
    let Some(recording) = recording.upgrade() else { return };
    let is_current =
        matches!(&*recording.phase.lock(), Phase::On { recorder: current, .. } if Arc::ptr_eq(current, recorder));
    if is_current {
        recording.end(image);
    }
}
