//! What the fronts of a service share: the readahead in them, and the renderings of metadata in progress.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, mpsc::Sender},
    thread,
    time::{Duration, Instant},
};

use floe_front::{Algorithms, Identity};
use floe_keeper::{FrontDescriptors, FrontReadaheads, FrontTransfer, FuseConnections, Schedule};
use floe_sync::Mutex;

use super::user_fronts::{Admission, UserFront};
use crate::kept_front::KeptFront;

/// The maximum number of renderings for later mounts that are in progress.
const LATER_MAX: usize = 64;

/// The maximum number of those for one other user.
const LATER_OF_USER_MAX: usize = 2;

/// The maximum number of images whose metadata is known to break a rule.
const REFUSED_MAX: usize = 1024;

/// The shortest time between two looks at all fronts. A mount changes the mount table several times, and each look takes some
/// microseconds for each front.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The mount table, whose changes poll(2) reports.
const TABLE_PATH: &str = "/proc/self/mountinfo";

/// What the fronts of a service share.
#[derive(Default)]
pub(super) struct Fronts {
    shared: Mutex<Option<Shared>>,
    renderings: Mutex<HashMap<u64, Rendering>>,
    /// Images of users whose metadata breaks a rule, and the rule: rendering it again would be in vain.
    refused: Mutex<HashMap<Identity, String>>,
    looks: Mutex<Looks>,
    /// Where the connections of hidden mounts are aborted.
    pub(super) connections: FuseConnections,
}

/// The looks for fronts that were unmounted.
#[derive(Default)]
struct Looks {
    last: Option<Instant>,
    /// Whether the mount table has changed since.
    is_due: bool,
}

/// What exists from the first front on.
struct Shared {
    readaheads: Arc<FrontReadaheads>,
    /// The mount table, which is watched: an unmounted front ends once its clone is dropped.
    _table: File,
}

/// A rendering in progress.
struct Rendering {
    domain: u64,
    purpose: Purpose,
}

/// Who needs what is rendered.
pub(super) enum Purpose {
    /// A mount that waits for it.
    Mount(Sender<bool>),
    /// Later mounts, and where it is to be kept.
    Later(KeptFor, File),
}

/// The kept metadata of an image, and for whom.
pub(super) enum KeptFor {
    /// For mounts of the user who runs the service.
    Service(Box<KeptFront>),
    /// For those of another user.
    User(Box<UserFront>),
}

impl KeptFor {
    pub(super) fn identity(&self) -> &Identity {
        match self {
            Self::Service(front) => front.identity(),
            Self::User(front) => front.identity(),
        }
    }

    /// What the kernel may decode in the image; `None` if it reads nothing there by itself.
    pub(super) fn algorithms(&self) -> Option<Algorithms> {
        match self {
            Self::Service(front) => front.algorithms(),
            Self::User(_) => None,
        }
    }

    /// The other user.
    pub(super) fn admission(&self) -> Option<Admission> {
        match self {
            Self::Service(_) => None,
            Self::User(front) => Some(front.admission()),
        }
    }

    pub(super) fn has_kept(&self) -> bool {
        match self {
            Self::Service(front) => front.has_kept(),
            Self::User(front) => front.file().is_some(),
        }
    }

    /// The file and the original, if that is a device of it, that the kernel may mount.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(super) fn files(&self) -> io::Result<Option<(OwnedFd, Option<OwnedFd>)>> {
        let (metadata, original) = match self {
            Self::Service(front) => match front.files() {
                Some(files) => (files.metadata, files.original),
                None => return Ok(None),
            },
            Self::User(front) => match front.file() {
                Some(file) => (file.as_fd(), None),
                None => return Ok(None),
            },
        };
        let original = original.map(|original| original.try_clone_to_owned()).transpose()?;
        Ok(Some((metadata.try_clone_to_owned()?, original)))
    }

    /// A file for the process that renders the metadata.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn file_to_render(&self) -> io::Result<File> {
        match self {
            Self::Service(front) => front.file_to_render(),
            Self::User(_) => UserFront::file_to_render(),
        }
    }

    /// Keeps a copy of what a process has rendered.
    ///
    /// # Errors
    /// It is not whole, or the image has changed meanwhile; of another user, also if the kernel may not mount it, or there is no room.
    pub(super) fn keep_copy(&mut self, rendered: &File) -> io::Result<()> {
        match self {
            Self::Service(front) => front.keep_copy(rendered),
            Self::User(front) => front.keep_copy(rendered),
        }
    }
}

impl Fronts {
    /// The readahead in all fronts, which begins with the first one. `watch` is to report changes of the mount table, an open file.
    ///
    /// # Errors
    /// There are no descriptors left, or no thread can be started.
    pub(super) fn readaheads(
        &self,
        schedule: &Schedule,
        watch: impl FnOnce(&File) -> rustix::io::Result<()>,
    ) -> io::Result<Arc<FrontReadaheads>> {
        let mut shared = self.shared.lock();
        if let Some(shared) = &*shared {
            return Ok(Arc::clone(&shared.readaheads));
        }
        let table = File::open(TABLE_PATH)?;
        let readaheads = FrontReadaheads::start(schedule)?;
        watch(&table)?;
        *shared = Some(Shared { readaheads: Arc::clone(&readaheads), _table: table });
        Ok(readaheads)
    }

    /// Notes that the mount table has changed.
    pub(super) fn note_changes(&self) {
        self.looks.lock().is_due = true;
    }

    /// Ends fronts that were unmounted, if the mount table has changed. Returns the time until this is to be called again, if it is
    /// too early.
    pub(super) fn look(&self) -> Option<Duration> {
        {
            let mut looks = self.looks.lock();
            if !looks.is_due {
                return None;
            }
            let left = looks.last.map_or(Duration::ZERO, |last| LOOK_INTERVAL.saturating_sub(last.elapsed()));
            if !left.is_zero() {
                return Some(left);
            }
            *looks = Looks { last: Some(Instant::now()), is_due: false };
        }
        self.existing().iter().for_each(|readaheads| readaheads.drop_unmounted());
        None
    }

    /// The transfer into a front for the next process behind it, and the thread at its other end; `None` if nothing is read ahead
    /// there.
    pub(super) fn renew(&self, number: u64) -> Option<(FrontTransfer, u32)> {
        let shared = self.shared.lock();
        let readaheads = &shared.as_ref()?.readaheads;
        // The front works without readahead.
        Some((readaheads.renew(number).ok()??, readaheads.thread()))
    }

    /// Keeps a copy of rendered metadata, and notes if it breaks a rule.
    ///
    /// # Errors
    /// As for [`KeptFor::keep_copy`].
    pub(super) fn keep(&self, kept: &mut KeptFor, rendered: &File) -> io::Result<()> {
        let identity = *kept.identity();
        kept.keep_copy(rendered).inspect_err(|error| {
            if kept.admission().is_some() && error.kind() == io::ErrorKind::InvalidData {
                let mut refused = self.refused.lock();
                if refused.len() >= REFUSED_MAX {
                    refused.clear();
                }
                refused.insert(identity, error.to_string());
            }
        })
    }

    /// The rule that the metadata of an image breaks.
    pub(super) fn refusal(&self, kept: &KeptFor) -> Option<String> {
        self.refused.lock().get(kept.identity()).cloned()
    }

    /// The readahead, if there is one.
    pub(super) fn existing(&self) -> Option<Arc<FrontReadaheads>> {
        self.shared.lock().as_ref().map(|shared| Arc::clone(&shared.readaheads))
    }

    /// Passes the descriptors of the readahead to `pass`. Returns the results, by the numbers of the fronts.
    ///
    /// # Errors
    /// Those of `pass`.
    pub(super) fn pass<Passed>(
        &self,
        pass: impl FnMut(BorrowedFd<'_>) -> io::Result<Passed>,
    ) -> io::Result<Vec<(u64, FrontDescriptors<Passed>)>> {
        self.existing().map_or_else(|| Ok(Vec::new()), |readaheads| readaheads.pass(pass))
    }

    /// Notes a rendering in a domain. Returns `false` if it is one for later mounts that others make unnecessary, or if there are too
    /// many of those.
    pub(super) fn begin(&self, number: u64, domain: u64, purpose: Purpose) -> bool {
        let mut renderings = self.renderings.lock();
        if let Purpose::Later(front, _) = &purpose {
            let later: Vec<_> = renderings.values().filter_map(Rendering::later).collect();
            let account = |front: &KeptFor| front.admission().map(|admission| admission.account);
            let of_same = later.iter().filter(|other| account(front).is_some() && account(other) == account(front));
            let is_known = later.iter().any(|other| other.identity() == front.identity());
            if is_known || later.len() >= LATER_MAX || of_same.count() >= LATER_OF_USER_MAX {
                return false;
            }
        }
        renderings.insert(number, Rendering { domain, purpose });
        true
    }

    /// Forgets a rendering.
    pub(super) fn forget(&self, number: u64) {
        self.renderings.lock().remove(&number);
    }

    /// Notes the end of a rendering, as a domain tells it, which an attacker may control.
    pub(super) fn note_rendered(self: &Arc<Self>, domain: u64, number: u64, is_done: bool) {
        let purpose = {
            let mut renderings = self.renderings.lock();
            let is_its = renderings.get(&number).is_some_and(|rendering| rendering.domain == domain);
            if is_its { renderings.remove(&number).map(|rendering| rendering.purpose) } else { None }
        };
        match purpose {
            None => {}
            Some(Purpose::Mount(waiter)) => {
                // It may have given up.
                let _ = waiter.send(is_done);
            }
            Some(Purpose::Later(mut front, rendered)) if is_done => {
                // The copy takes time. If it fails, the next mount tries again.
                let fronts = Arc::clone(self);
                let work = move || drop(fronts.keep(&mut front, &rendered));
                let _ = thread::Builder::new().name("floe-keep".to_owned()).spawn(work);
            }
            Some(Purpose::Later(..)) => {}
        }
    }

    /// Notes the end of a domain: its renderings are lost.
    pub(super) fn note_end(&self, domain: u64) {
        self.renderings.lock().retain(|_, rendering| rendering.domain != domain);
    }
}

impl Rendering {
    fn later(&self) -> Option<&KeptFor> {
        match &self.purpose {
            Purpose::Mount(_) => None,
            Purpose::Later(front, _) => Some(front),
        }
    }
}
