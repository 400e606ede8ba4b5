//! The kept metadata of a front, in the cache directory.

use std::{
    fs, io,
    ops::ControlFlow,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use floe::Offset;
use floe_front::{Identity, KeptImage, NotKept, keep};
use floe_fuse::RequestCounts;
use floe_image::{FileSystem, ShownName};
use floe_keeper::can_mount_kept;
use floe_remote_cache::{CacheOptions, TrustedDirectory};
use floe_sandbox::{Access, Policy};
use rustix::process::{Resource, getrlimit, setpriority_process};
use sha2::{Digest, Sha256};

use crate::{front::Front, log::MountLog, options::Settings, remote};

/// The directory of kept metadata in the cache directory.
const DIRECTORY: &str = "fronts";

/// The name of the file in the directory of its image.
const NAME: &str = "metadata";

/// The number of bytes at either end of an image that its identity covers.
const END_BYTES: u64 = 128 << 10;

/// The maximum size of the kept metadata of one image. Each mount reads all of it.
const BYTES_MAX: u64 = 128 << 20;

/// The maximum size of the kept metadata of all images. The least recently used are removed.
const ALL_BYTES_MAX: u64 = 1 << 30;

/// An image that changed less than this ago could change again without another time.
const STAMP_AGE_MIN: Duration = Duration::from_millis(100);

/// The time between the mount and the begin of the work.
const DELAY: Duration = Duration::from_secs(1);

/// The pause while the mount has requests.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the end of the mount waits for the thread.
const END_TIME_MAX: Duration = Duration::from_millis(500);

/// The lowest priority of time-shared threads.
const NICE_MAX: i32 = 19;

/// The place of the kept metadata of an image: `fronts/IDENTITY/metadata` in the cache directory.
///
/// The identity covers the file and its times, both ends of its content, and the options that the metadata depends on.
pub(crate) struct KeptFront {
    directory: TrustedDirectory,
    identity: Identity,
    image: PathBuf,
    stamp: Stamp,
    /// What an earlier mount kept, verified.
    kept: Option<KeptImage>,
    /// Whether the kernel mounts it.
    is_mountable: bool,
}

/// Changes with each change of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The thread that keeps the metadata of a front. Dropping this ends it.
pub(crate) struct Keeping {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KeptFront {
    /// Finds or creates the place for an image, and verifies what is there. `None` if nothing is to be kept, or the image or the
    /// directory do not permit it.
    pub(crate) fn find(image: &Path, settings: &Settings, log: &MountLog) -> Option<Self> {
        let open = &settings.open;
        let is_whole_file = open.offset == Offset::None && open.devices.is_empty() && open.device_directory.is_none();
        if !settings.keeps_front
            || settings.front == Front::Fuse
            || settings.subdirectory.is_some()
            || !is_whole_file
            || remote::is_url(image)
            // The file has addresses above the limit, and exceeding it is a signal.
            || getrlimit(Resource::Fsize).current.is_some()
        {
            return None;
        }
        let refused = |error: io::Error| log.remark(format_args!("the metadata of the front is not kept: {error}"));
        let place = Self::place(image, settings).map_err(refused).ok()??;
        Some(place)
    }

    fn place(image: &Path, settings: &Settings) -> io::Result<Option<Self>> {
        let image = image.canonicalize()?;
        let stamp = Stamp::of(&image)?;
        let Some(stamp) = stamp.filter(Stamp::is_settled) else { return Ok(None) };
        let identity = identity_of(&image, &stamp, settings)?;
        let cache = settings.open.remote.cache_directory.clone().or_else(CacheOptions::default_directory);
        let Some(cache) = cache else { return Ok(None) };
        let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let directory = TrustedDirectory::create(&cache.join(DIRECTORY), &name)?;
        let kept = directory.read_file(NAME).and_then(|file| KeptImage::verify(file, &identity)).ok();
        match &kept {
            // The time of the last use.
            Some(kept) => drop(kept.file().set_modified(SystemTime::now())),
            None => remove_least_recently_used(&cache.join(DIRECTORY), &name),
        }
        let is_mountable = kept.as_ref().is_some_and(|kept| can_mount_kept(kept.file().as_fd()));
        Ok(Some(Self { directory, identity, image, stamp, kept, is_mountable }))
    }

    /// The kept image for the kernel.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.kept.as_ref().filter(|_| self.is_mountable).map(|kept| kept.file().as_fd())
    }

    /// What an earlier mount kept, if the image is still the same.
    pub(crate) fn kept(&self) -> Option<&KeptImage> {
        self.kept.as_ref().filter(|_| self.is_mountable && self.is_unchanged())
    }

    /// Whether an earlier mount kept the metadata.
    pub(crate) fn has_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Allows a confined process to keep the metadata, if that is to be done.
    pub(crate) fn allow(&self, policy: &mut Policy) {
        if self.kept.is_none() {
            policy.allow(self.directory.path(), Access::Files);
        }
    }

    /// Starts a thread that keeps the metadata of `original`, unless that was done before. It gives way to the requests that are
    /// counted.
    pub(crate) fn start(self, original: Arc<dyn FileSystem>, requests: RequestCounts, log: Arc<MountLog>) -> Keeping {
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let work = move || {
            // Without it, the thread only takes more time from others.
            let _ = setpriority_process(None, NICE_MAX);
            match self.write(original, &requests, &told) {
                Ok(()) => log.event(&format!("the metadata of the front is kept in {}", self.directory.path().shown())),
                Err(NotKept::Ended) => {}
                Err(reason) => log.event(&format!("the metadata of the front is not kept: {reason}")),
            }
        };
        let thread = thread::Builder::new().name("floe-keep".to_owned()).spawn(work).ok();
        Keeping { ended, thread }
    }

    fn write(
        &self,
        original: Arc<dyn FileSystem>,
        requests: &RequestCounts,
        ended: &AtomicBool,
    ) -> Result<(), NotKept> {
        let begin = Instant::now() + DELAY;
        while Instant::now() < begin {
            if ended.load(Relaxed) {
                return Err(NotKept::Ended);
            }
            thread::sleep(PAUSE);
        }
        let mut seen = requests.total();
        let mut pace = || {
            let now = requests.total();
            if std::mem::replace(&mut seen, now) != now {
                thread::sleep(PAUSE);
            }
            if ended.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (unfinished, file) = self.directory.new_file()?;
        let written = keep(original, &file, &self.identity, BYTES_MAX, &mut pace).and_then(|()| {
            if !self.is_unchanged() {
                return Err(NotKept::Ended);
            }
            Ok(self.directory.rename(&unfinished, &self.directory, NAME)?)
        });
        written.inspect_err(|_| drop(self.directory.remove_file(&unfinished)))
    }

    fn is_unchanged(&self) -> bool {
        Stamp::of(&self.image).is_ok_and(|stamp| stamp == Some(self.stamp))
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        let until = Instant::now() + END_TIME_MAX;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Stamp {
    /// The stamp of a regular file; `None` for others, which can change without a sign.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        let file = fs::metadata(path)?;
        Ok(file.is_file().then(|| Self {
            device: file.dev(),
            inode: file.ino(),
            len: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }))
    }

    /// Whether any further change gives another stamp.
    fn is_settled(&self) -> bool {
        let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        SystemTime::now().duration_since(changed).is_ok_and(|age| age >= STAMP_AGE_MIN)
    }
}

fn identity_of(image: &Path, stamp: &Stamp, settings: &Settings) -> io::Result<Identity> {
    let mut digest = Sha256::new().chain_update(env!("CARGO_PKG_VERSION"));
    let Stamp { device, inode, len, modified, changed } = *stamp;
    let owners = [settings.mount.uid, settings.mount.gid].map(|id| id.map_or(u64::MAX, u64::from));
    for number in [device, inode, len].into_iter().chain(owners) {
        digest.update(number.to_le_bytes());
    }
    for number in [modified.0, modified.1, changed.0, changed.1] {
        digest.update(number.to_le_bytes());
    }
    let file = fs::File::open(image)?;
    for start in [0, len.saturating_sub(END_BYTES)] {
        let mut bytes = vec![0; usize::try_from(END_BYTES.min(len)).unwrap_or(0)];
        file.read_exact_at(&mut bytes, start)?;
        digest.update(&bytes);
    }
    Ok(digest.finalize().into())
}

/// Removes what was used least recently from the directory of all kept metadata, but not `name`, so that the limit holds after
/// another image is kept.
fn remove_least_recently_used(all: &Path, name: &str) {
    let entries = fs::read_dir(all).into_iter().flatten().flatten().filter(|entry| entry.file_name() != name);
    let mut found: Vec<_> = entries
        .map(|entry| {
            let files = fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let files: Vec<_> = files.filter_map(|file| file.metadata().ok()).collect();
            let used = files.iter().filter_map(|file| file.modified().ok()).max();
            (used, files.iter().map(|file| file.blocks() * 512).sum::<u64>(), entry.path())
        })
        .collect();
    found.sort();
    let mut total = found.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    for (_, bytes, path) in found {
        if total + BYTES_MAX <= ALL_BYTES_MAX {
            break;
        }
        // Another process may remove it at the same time.
        let _ = fs::remove_dir_all(path);
        total -= bytes;
    }
}
