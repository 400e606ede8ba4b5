//! A mount, as the broker keeps it.

use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    sync::mpsc::{Receiver, Sender},
};

use floe_ipc::protocol::{MountRequest, ServedMount};
use floe_keeper::{DetachedMount, KeptMount, Place};

use super::{
    messages::{AttachedFront, Attachment, NegotiatedTerms, Report},
    refusal::Refusal,
    users::Owner,
};
use crate::control;

/// A mount, with all that a domain needs to serve it.
pub(super) struct KeptImage {
    /// The number of the domain that serves it.
    pub(super) domain: u64,
    pub(super) owner: Owner,
    pub(super) stage: Stage,
    /// The domain that is taking it over.
    pub(super) heir: Option<Heir>,
    pub(super) keeper: KeptMount,
    pub(super) request: MountRequest,
    pub(super) files: KeptFiles,
    /// The launch that its first domain is to replay; `None` once that has it.
    pub(super) launch: Option<LaunchFiles>,
    /// The format of the image; empty until a domain has opened it.
    pub(super) format: String,
    /// Why it has no front.
    pub(super) obstacle: String,
    /// Remarks while it is attached, for its client.
    pub(super) remarks: Vec<String>,
    /// Told when the mount has ended, and whether the image is closed.
    pub(super) end_waiters: Vec<Sender<bool>>,
    /// The name of its control socket.
    pub(super) control_name: control::Server,
    pub(super) for_user: FrontForUser,
}

/// The front of another user.
#[derive(Default)]
pub(super) struct FrontForUser {
    /// The mount, until it is attached or handed over.
    pub(super) detached: Option<DetachedMount>,
    /// The terms of the connection of its hidden mount.
    pub(super) terms: Option<NegotiatedTerms>,
}

/// The descriptors of a mount, which its broker and its domain have. For a domain, this is one descriptor more for each than the
/// service of the mount needs; the next broker gets them from it.
#[derive(Debug)]
pub(super) struct KeptFiles {
    /// The connection to the kernel.
    pub(super) device: OwnedFd,
    /// The state of the mount, a memory file.
    pub(super) state: OwnedFd,
    /// Its listening control socket.
    pub(super) control: OwnedFd,
    /// Its [record](super::record::Record).
    pub(super) record: OwnedFd,
    pub(super) image: OwnedFd,
    pub(super) devices: Vec<OwnedFd>,
    /// The kept metadata of its front, if that is the kernel's EROFS.
    pub(super) metadata: Option<OwnedFd>,
}

/// A launch that a mount replays.
pub(super) struct LaunchFiles {
    pub(super) profile: OwnedFd,
    /// The connection to a process of another user that looks up names.
    pub(super) walk: Option<OwnedFd>,
}

/// The receiver of a domain's answer, when it is to serve a mount.
pub(super) type Attaching = Receiver<Result<(), Refusal>>;

/// How far a mount has come.
pub(super) enum Stage {
    /// A domain is to serve it: a new mount, or one that is continued.
    Attaching(Sender<Result<(), Refusal>>),
    /// A domain serves it.
    Served,
    /// Its domain has died; another one is started.
    Orphaned,
}

/// A domain that is taking a mount over from the one that serves it.
pub(super) struct Heir {
    /// Its number.
    pub(super) domain: u64,
    /// Takes what comes of it.
    pub(super) outcomes: Sender<Outcome>,
}

/// What came of a takeover.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The next domain serves the mount.
    Taken,
    /// It has failed, or has died.
    Failed(String),
    /// The domain that has served the mount has handed it over, or still serves it.
    HandedOver {
        /// Whether it is handed over.
        is_given: bool,
    },
    /// That domain has died.
    Died,
}

impl KeptImage {
    /// The message that makes a domain serve it.
    pub(super) fn attachment(&self, number: u64) -> Attachment {
        let directory = self.place().directory().as_os_str().as_bytes().to_vec();
        let front = self.files.metadata.is_some().then_some(AttachedFront { thread: None, terms: self.for_user.terms });
        let (request, place, obstacle) = (self.request.clone(), self.place().to_numbers(), self.obstacle.clone());
        let has_walk = self.launch.as_ref().is_some_and(|launch| launch.walk.is_some());
        Attachment {
            number,
            request,
            directory,
            place,
            format: self.format.clone(),
            front,
            is_taken: false,
            has_profile: self.launch.is_some(),
            has_walk,
            obstacle,
        }
    }

    /// Tells what comes of a takeover, if there is one.
    pub(super) fn tell_heir(&self, outcome: Outcome) {
        if let Some(heir) = &self.heir {
            // The receiver may have given up.
            let _ = heir.outcomes.send(outcome);
        }
    }

    /// Takes a message of another domain than the one that serves the mount: of the one that is taking it over.
    pub(super) fn note_heir(&mut self, domain: u64, report: &Report) {
        if self.heir.as_ref().is_none_or(|heir| heir.domain != domain) {
            return;
        }
        match report {
            Report::Attached { .. } => {
                (self.domain, self.stage) = (domain, Stage::Served);
                self.tell_heir(Outcome::Taken);
                self.heir = None;
            }
            Report::Failed { message, .. } => self.tell_heir(Outcome::Failed(message.clone())),
            _ => {}
        }
    }

    /// Where it is.
    pub(super) fn place(&self) -> &Place {
        self.keeper.place()
    }

    /// Whether its files have this device number.
    pub(super) fn has_device(&self, [major, minor]: [u32; 2]) -> bool {
        self.place().device() == Some((major, minor))
    }

    /// The mount for clients. `process` is its domain.
    pub(super) fn shown(&self, number: u64, process: u32) -> ServedMount {
        let (major, minor) = self.place().device().unwrap_or_default();
        ServedMount {
            number,
            image: self.request.image.clone(),
            directory: self.place().directory().as_os_str().as_bytes().to_vec(),
            format: self.format.clone(),
            device: [major, minor],
            process,
            user: self.owner.uid(),
        }
    }
}

impl LaunchFiles {
    /// Copies of the descriptors.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let walk = self.walk.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { profile: self.profile.try_clone()?, walk })
    }

    /// The descriptors in their order.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.profile].into_iter().chain(&self.walk).map(AsFd::as_fd)
    }
}

impl KeptFiles {
    /// The files of a message, in the order of [`KeptFiles::descriptors`]. Returns `None` if there are not as many as an image with
    /// this number of devices has, with a front or without.
    pub(super) fn of(descriptors: Vec<OwnedFd>, device_count: usize) -> Option<Self> {
        let mut descriptors = descriptors.into_iter();
        let [device, state, control, record, image] = std::array::from_fn(|_| descriptors.next());
        let mut devices: Vec<OwnedFd> = descriptors.collect();
        let metadata = if devices.len() == device_count + 1 { devices.pop() } else { None };
        let is_whole = devices.len() == device_count;
        let (control, record, image) = (control?, record?, image?);
        is_whole.then_some(Self { device: device?, state: state?, control, record, image, devices, metadata })
    }

    /// The place of the [record](super::record::Record) among the descriptors.
    pub(super) const RECORD: usize = 3;

    /// Copies of the descriptors.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            device: self.device.try_clone()?,
            state: self.state.try_clone()?,
            control: self.control.try_clone()?,
            record: self.record.try_clone()?,
            image: self.image.try_clone()?,
            devices: self.devices.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?,
            metadata: self.metadata.as_ref().map(OwnedFd::try_clone).transpose()?,
        })
    }

    /// The descriptors in their order.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let Self { device, state, control, record, image, devices, metadata } = self;
        let others = devices.iter().chain(metadata);
        [device, state, control, record, image].into_iter().chain(others).map(AsFd::as_fd).collect()
    }
}
