//! Records the accesses of a launch.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use floe::{ByteRange, Image, Nid};
use floe_fuse::ImageAccess;
use floe_mkfs::{NameUsage, Profile, ProfileRange, RecordedStep};
use floe_sync::{Condvar, Mutex, MutexGuard};

use crate::failure::Failure;

/// The maximum depth of a path.
const DEPTH_MAX: usize = 1024;

/// Records the accesses of a launch, in order.
#[derive(Default)]
pub struct Recorder {
    recording: Mutex<Recording>,
    changed: Condvar,
}

#[derive(Default)]
struct Recording {
    accesses: Vec<Recorded>,
    /// The directory and the name of each inode that was found.
    names: HashMap<Nid, (Nid, Box<[u8]>)>,
    has_read: bool,
    is_over: bool,
}

enum Recorded {
    Name { parent: Nid, name: Box<[u8]>, usage: NameUsage },
    Inode(Nid, NameUsage),
    Range(Nid, ByteRange),
}

impl Recorder {
    /// Records an access, unless there are too many already.
    pub fn note(&self, access: ImageAccess<'_>) {
        let mut recording = self.lock();
        if recording.is_over || recording.accesses.len() >= Profile::STEPS_MAX {
            return;
        }
        let recorded = match access {
            ImageAccess::Found { parent, name, nid, .. } => {
                recording.names.entry(nid).or_insert_with(|| (parent, name.into()));
                Recorded::Name { parent, name: name.into(), usage: NameUsage::Found }
            }
            ImageAccess::Missing { parent, name } => {
                Recorded::Name { parent, name: name.into(), usage: NameUsage::Missing }
            }
            ImageAccess::Link(nid) => Recorded::Inode(nid, NameUsage::Link),
            ImageAccess::List(nid) => Recorded::Inode(nid, NameUsage::List),
            ImageAccess::Read(nid, range) => {
                recording.has_read = true;
                Recorded::Range(nid, range)
            }
        };
        recording.accesses.push(recorded);
        self.changed.notify_all();
    }

    /// Waits until files were read and then nothing was used for `quiet`, until `time_max` has passed since the first read,
    /// or until the recording ends.
    pub(crate) fn wait_until_quiet(&self, quiet: Duration, time_max: Duration) {
        let nothing = |recording: &mut Recording| !recording.has_read && !recording.is_over;
        let mut recording = self.changed.wait_while(self.lock(), nothing);
        let begun = Instant::now();
        while !recording.is_over && begun.elapsed() < time_max {
            let count = recording.accesses.len();
            let same = |recording: &mut Recording| recording.accesses.len() == count && !recording.is_over;
            let (now, result) = self.changed.wait_timeout_while(recording, quiet, same);
            recording = now;
            if result.timed_out() {
                break;
            }
        }
    }

    /// Waits until the recording ends, at most for `time_max`.
    pub(super) fn wait_until_over(&self, time_max: Duration) {
        drop(self.changed.wait_timeout_while(self.lock(), time_max, |recording| !recording.is_over));
    }

    /// The number of accesses.
    pub(super) fn count(&self) -> usize {
        self.lock().accesses.len()
    }

    /// Whether a file was read.
    pub(crate) fn has_read(&self) -> bool {
        self.lock().has_read
    }

    /// Ends the recording.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Takes the recorded accesses, and returns their profile.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn take_profile(&self, image: &Image) -> Result<Profile, Failure> {
        let Recording { accesses, names, .. } = std::mem::take(&mut *self.lock());
        let mut paths = Paths { root: image.root(), names, known: HashMap::new() };
        paths.find_unnamed(image, &accesses)?;
        let mut sizes = HashMap::new();
        let steps = accesses.into_iter().filter_map(|access| match access {
            Recorded::Name { parent, name, usage } => {
                Some(RecordedStep::Name([&paths.of(parent)?[..], b"/", &name].concat(), usage))
            }
            Recorded::Inode(nid, usage) => {
                let path = paths.of(nid)?;
                Some(RecordedStep::Name(if path.is_empty() { b"/".to_vec() } else { path }, usage))
            }
            Recorded::Range(nid, range) => {
                let size = || image.file_system().attr(nid).map_or(0, |attr| attr.size);
                let size = *sizes.entry(nid).or_insert_with(size);
                let range = range.intersection(ByteRange::new(0, size));
                let is_read = !range.is_empty();
                is_read.then(|| Some(RecordedStep::Range(ProfileRange { path: paths.of(nid)?, range })))?
            }
        });
        Ok(Profile::of_steps(steps.collect::<Vec<_>>()))
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock()
    }
}

/// The paths of inodes. The path of the root is empty.
struct Paths {
    root: Nid,
    names: HashMap<Nid, (Nid, Box<[u8]>)>,
    known: HashMap<Nid, Vec<u8>>,
}

impl Paths {
    /// Finds the paths of inodes whose names the mount did not look up: those listed with attributes, or all if the kernel's
    /// EROFS looks names up.
    fn find_unnamed(&mut self, image: &Image, accesses: &[Recorded]) -> Result<(), Failure> {
        let nids = accesses.iter().map(|access| match access {
            Recorded::Name { parent, .. } => *parent,
            Recorded::Inode(nid, _) | Recorded::Range(nid, _) => *nid,
        });
        let mut wanted: HashSet<Nid> = nids.collect();
        wanted.retain(|nid| self.of(*nid).is_none());
        let mut walk = image.walk();
        while !wanted.is_empty()
            && let Some(entry) = walk.next()
        {
            let entry = entry.map_err(|failed| Failure::failed(format!("the image: {}", failed.error)))?;
            if wanted.remove(&entry.attr.nid) {
                self.known.insert(entry.attr.nid, entry.path);
            }
        }
        Ok(())
    }

    fn of(&mut self, nid: Nid) -> Option<Vec<u8>> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = nid;
        let mut path = loop {
            if at == self.root {
                break Vec::new();
            }
            if let Some(path) = self.known.get(&at) {
                break path.clone();
            }
            let (parent, name) = self.names.get(&at).filter(|_| names.len() < DEPTH_MAX)?;
            names.push(name);
            at = *parent;
        };
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        self.known.insert(nid, path.clone());
        Some(path)
    }
}
