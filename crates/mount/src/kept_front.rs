//! The kept metadata of a front, in the cache directory.

use std::{
    fs,
    io::{self, Read, Seek},
    ops::ControlFlow,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use floe::Offset;
use floe_front::{Algorithms, Identity, ImageFile, KeptImage, NotKept, VirtualImage, empty_image, keep};
use floe_fuse::RequestCounts;
use floe_image::{FileSystem, ShownName};
use floe_keeper::{KeptFiles, can_mount_kept};
use floe_remote_cache::{CacheOptions, TrustedDirectory};
use floe_sandbox::{Access, Policy};
use rustix::{
    fs::fstatfs,
    process::{Resource, geteuid, getrlimit, setpriority_process},
};
use sha2::{Digest, Sha256};

use crate::{
    front::Front,
    log::MountLog,
    options::{ProfileChoice, Settings},
    remote,
};

/// The directory of kept metadata in the cache directory.
const DIRECTORY: &str = "fronts";

/// The name of the file in the directory of its image.
const NAME: &str = "metadata";

/// The number of bytes at either end of an image that its identity covers.
const END_BYTES: u64 = 128 << 10;

/// The maximum size of the kept metadata of one image. Each mount reads all of it.
pub(crate) const BYTES_MAX: u64 = 128 << 20;

/// The maximum size of the kept metadata of all images. The least recently used are removed.
const ALL_BYTES_MAX: u64 = 1 << 30;

/// The first bytes of the superblock of an EROFS image, and their offset.
const EROFS_MAGIC: [u8; 4] = 0xe0f5_e1e2_u32.to_le_bytes();
const EROFS_MAGIC_START: u64 = 1024;

/// The permissions of users other than the owner to change a file.
const OTHERS_WRITE: u32 = 0o022;

/// The file systems in which the kernel may read an image by itself, as statfs(2) numbers them: ext2 to ext4, XFS, Btrfs, F2FS,
/// bcachefs and tmpfs.
const NEAR_FILE_SYSTEMS: [u32; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x0102_1994];

/// An image that changed less than this ago could change again without another time.
const STAMP_AGE_MIN: Duration = Duration::from_millis(100);

/// A mount keeps metadata once it is this old: mounts for one command or one look end before, and writing would take more time
/// than they save.
const AGE_MIN: Duration = Duration::from_secs(5);

/// A mount keeps metadata once it has rendered this many blocks for the kernel, or one for so many inodes of the image: later
/// mounts need the metadata of an image only if this one does.
const BLOCKS_MIN: u64 = 64;
const INODES_PER_BLOCK: u64 = 16;

/// How long a mount must be without requests before it keeps metadata.
const REST: Duration = Duration::from_millis(250);

/// The longest interval between looks at a mount that renders no metadata.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// The pause while the mount has requests.
const PAUSE: Duration = Duration::from_millis(5);

/// How long the end of the mount waits for the thread, so that it removes an unfinished file.
const END_TIME_MAX: Duration = Duration::from_millis(100);

/// Directories without a file that are older than this are removed.
const EMPTY_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The lowest priority of time-shared threads.
pub(crate) const NICE_MAX: i32 = 19;

/// The place of the kept metadata of an image: `fronts/IDENTITY/metadata` in the cache directory.
///
/// The identity covers the file and its times, both ends of its content, and the options that the metadata depends on.
pub(crate) struct KeptFront {
    directory: TrustedDirectory,
    identity: Identity,
    image: PathBuf,
    stamp: Stamp,
    /// The image, if the kernel may read data in it by itself.
    image_file: Option<ImageFile>,
    /// What an earlier mount kept, verified.
    kept: Option<KeptImage>,
    /// Whether the kernel mounts it.
    is_mountable: bool,
    /// The image, if its path leads through its descriptor.
    _opened: Option<fs::File>,
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
    /// Wakes the thread when it is dropped.
    alarm: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl KeptFront {
    /// Finds or creates the place for an image, and verifies what is there. `None` if nothing is to be kept, or the image or the
    /// directory do not permit it. A mount with an `idle` time must see all reads.
    pub(crate) fn find(image: &Path, idle: Option<Duration>, settings: &Settings, log: &MountLog) -> Option<Self> {
        if !may_be_kept(image, settings) {
            return None;
        }
        let refused =
            |error: io::Error| log.event(&format!("the metadata of the kernel's EROFS in front is not kept: {error}"));
        let image = image.canonicalize();
        image.and_then(|image| Self::place(image, None, idle, settings)).map_err(refused).ok()?
    }

    /// As [`KeptFront::find`], for an image that another process has opened, which messages call `shown`.
    ///
    /// # Errors
    /// The image cannot be read, or the cache directory is not one that only this user can change.
    pub(crate) fn of_open(shown: &Path, image: fs::File, settings: &Settings) -> io::Result<Option<Self>> {
        if !may_be_kept(shown, settings) {
            return Ok(None);
        }
        if settings.front == Front::Kernel
            && Stamp::of_file(&image.metadata()?).is_some_and(|stamp| !stamp.is_settled())
        {
            thread::sleep(STAMP_AGE_MIN);
        }
        Self::place(format!("/proc/self/fd/{}", image.as_raw_fd()).into(), Some(image), None, settings)
    }

    fn place(
        image: PathBuf,
        opened: Option<fs::File>,
        idle: Option<Duration>,
        settings: &Settings,
    ) -> io::Result<Option<Self>> {
        let stamp = Stamp::of(&image)?;
        let Some(stamp) = stamp.filter(Stamp::is_settled) else { return Ok(None) };
        let mut image_file = image_file(&image, &stamp, settings).filter(|_| idle.is_none());
        let identity = identity_of(&image, &stamp, settings, image_file.is_some())?;
        let cache = settings.open.remote.cache_directory.clone().or_else(CacheOptions::default_directory);
        let Some(cache) = cache else { return Ok(None) };
        let name: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let directory = TrustedDirectory::create(&cache.join(DIRECTORY), &name)?;
        let kept = directory.read_file(NAME).and_then(|file| KeptImage::verify(file, &identity)).ok();
        let is_mountable = kept.as_ref().is_some_and(|kept| can_mount_kept(kept.file().as_fd()));
        // Another kernel may have other algorithms.
        let kept = kept.filter(|kept| is_mountable || !kept.is_decoded_by_kernel());
        match &kept {
            // The time of the last use.
            Some(kept) => drop(kept.file().set_modified(SystemTime::now())),
            None => {
                make_room(&cache.join(DIRECTORY), &name, BYTES_MAX, ALL_BYTES_MAX);
                image_file = image_file.map(|file| file.decoding(kernel_algorithms(&image, &directory)));
            }
        }
        Ok(Some(Self { directory, identity, image, stamp, image_file, kept, is_mountable, _opened: opened }))
    }

    /// The identity of the image and its options.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What the kernel may decode in the image; `None` if it reads nothing there by itself.
    pub(crate) fn algorithms(&self) -> Option<Algorithms> {
        self.image_file.as_ref().map(ImageFile::algorithms)
    }

    /// A file without a name on the file system of the cache, for a process that renders the metadata.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn file_to_render(&self) -> io::Result<fs::File> {
        let (name, file) = self.directory.new_file()?;
        self.directory.remove_file(&name)?;
        Ok(file)
    }

    /// Keeps a copy of what another process has rendered. That process cannot change the copy.
    ///
    /// # Errors
    /// It is not whole, the image has changed meanwhile, or the copy cannot be written.
    pub(crate) fn keep_copy(&mut self, rendered: &fs::File) -> io::Result<()> {
        let (unfinished, mut copy) = self.directory.new_file()?;
        let mut kept = || -> io::Result<KeptImage> {
            let mut rendered = rendered;
            rendered.rewind()?;
            io::copy(&mut rendered.take(BYTES_MAX), &mut copy)?;
            let kept = KeptImage::verify(self.directory.read_file(&unfinished)?, &self.identity)?;
            if !self.is_unchanged() {
                return Err(io::Error::other("the image has changed"));
            }
            self.directory.rename(&unfinished, &self.directory, NAME)?;
            Ok(kept)
        };
        let kept = kept().inspect_err(|_| drop(self.directory.remove_file(&unfinished)))?;
        self.is_mountable = can_mount_kept(kept.file().as_fd());
        self.kept = Some(kept);
        Ok(())
    }

    /// The kept image for the kernel, and its device.
    pub(crate) fn files(&self) -> Option<KeptFiles<'_>> {
        let original = self.image_file.as_ref().map(|image| image.file().as_fd());
        let kept = self.kept.as_ref().filter(|_| self.is_mountable);
        kept.map(|kept| KeptFiles { metadata: kept.file().as_fd(), original })
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

    /// Starts a thread that keeps the metadata of `original` once `image` has rendered enough of it and the mount rests. It gives
    /// way to the requests that are counted.
    pub(crate) fn start(
        self,
        original: Arc<dyn FileSystem>,
        image: Arc<VirtualImage>,
        requests: RequestCounts,
        log: Arc<MountLog>,
    ) -> Keeping {
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let (alarm, woken) = channel();
        let work = move || {
            // Without it, the thread only takes more time from others.
            let _ = setpriority_process(None, NICE_MAX);
            if !is_worth_it(original.info().inode_count, &image, &requests, &woken) {
                return;
            }
            match self.write(original, &requests, &told) {
                Ok(()) => log.event(&format!("the metadata of the front is kept in {}", self.directory.path().shown())),
                Err(NotKept::Ended) => {}
                Err(reason) => log.event(&format!("the metadata of the front is not kept: {reason}")),
            }
        };
        let thread = thread::Builder::new().name("floe-keep".to_owned()).spawn(work).ok();
        Keeping { ended, alarm: Some(alarm), thread }
    }

    fn write(
        &self,
        original: Arc<dyn FileSystem>,
        requests: &RequestCounts,
        ended: &AtomicBool,
    ) -> Result<(), NotKept> {
        let mut seen = requests.total();
        let mut pace = || {
            let now = requests.total();
            if std::mem::replace(&mut seen, now) != now {
                thread::sleep(PAUSE);
            }
            if ended.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (unfinished, file) = self.directory.new_file()?;
        let kept = keep(original, self.image_file.as_ref(), &file, &self.identity, BYTES_MAX, &mut pace);
        let written = kept.and_then(|()| {
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
        self.alarm = None;
        let until = Instant::now() + END_TIME_MAX;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(PAUSE);
        }
    }
}

impl Stamp {
    /// The stamp of a regular file; `None` for others, which can change without a sign.
    fn of(path: &Path) -> io::Result<Option<Self>> {
        Ok(Self::of_file(&fs::metadata(path)?))
    }

    fn of_file(file: &fs::Metadata) -> Option<Self> {
        file.is_file().then(|| Self {
            device: file.dev(),
            inode: file.ino(),
            len: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        })
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

/// Whether the metadata of this image can be kept for mounts with these settings.
pub(crate) fn may_be_kept(image: &Path, settings: &Settings) -> bool {
    let open = &settings.open;
    let is_whole_file = open.offset == Offset::None && open.devices.is_empty() && open.device_directory.is_none();
    !settings.renders_front
        && settings.front != Front::Fuse
        && settings.subdirectory.is_none()
        && is_whole_file
        && !remote::is_url(image)
        && geteuid().is_root()
        // Exceeding the limit is a signal.
        && getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= BYTES_MAX)
        && age_min().is_some()
}

/// Waits until a mount has shown that keeping its metadata is worth the work, and rests. False if it ends before.
fn is_worth_it(inode_count: u64, image: &VirtualImage, requests: &RequestCounts, woken: &Receiver<()>) -> bool {
    let has_ended = |time| woken.recv_timeout(time) == Err(RecvTimeoutError::Disconnected);
    if age_min().is_none_or(has_ended) {
        return false;
    }
    let blocks_min = (inode_count / INODES_PER_BLOCK).min(BLOCKS_MIN);
    let mut look = REST;
    while image.rendered_block_count() < blocks_min {
        if has_ended(look) {
            return false;
        }
        look = LOOK_MAX.min(look * 2);
    }
    loop {
        let before = requests.total();
        if has_ended(REST) {
            return false;
        }
        if requests.total() == before {
            return true;
        }
    }
}

/// How old a mount must be; `None` if nothing is to be kept. Tests set it, in debug builds.
pub(crate) fn age_min() -> Option<Duration> {
    match std::env::var("FLOE_TEST_KEEP_AFTER_MS") {
        Ok(text) if cfg!(debug_assertions) => text.parse().ok().map(Duration::from_millis),
        _ => Some(AGE_MIN),
    }
}

/// What the running kernel decodes in EROFS images: it mounts an empty image with these algorithms. Nothing if `image` is no EROFS
/// image.
fn kernel_algorithms(image: &Path, directory: &TrustedDirectory) -> Algorithms {
    let has_magic = || -> io::Result<bool> {
        let mut magic = [0; EROFS_MAGIC.len()];
        fs::File::open(image)?.read_exact_at(&mut magic, EROFS_MAGIC_START)?;
        Ok(magic == EROFS_MAGIC)
    };
    let can_mount = |algorithms: &Algorithms| -> io::Result<bool> {
        let (name, file) = directory.new_file()?;
        let written = file.write_all_at(&empty_image(*algorithms), 0);
        let is_mounted = written.is_ok() && can_mount_kept(file.as_fd());
        directory.remove_file(&name)?;
        Ok(is_mounted)
    };
    if !has_magic().unwrap_or(false) {
        return Algorithms::default();
    }
    let tried = [Algorithms::FASTER, Algorithms::LZ4];
    tried.into_iter().find(|algorithms| can_mount(algorithms).unwrap_or(false)).unwrap_or_default()
}

/// The image, if the kernel may read data in it by itself, past Floe.
///
/// Other users must not be able to change or truncate it: the kernel shows whatever is behind its end as zeros. Its file system
/// must store it on a disk or in memory of this machine, because Floe's time limit for reads does not apply; and the kernel must
/// not need many steps to read it, as from an image in another image. An image whose bytes are to be verified is read by Floe
/// alone, and while a launch is recorded, Floe must see each read.
fn image_file(image: &Path, stamp: &Stamp, settings: &Settings) -> Option<ImageFile> {
    if settings.reads_all_data || settings.open.remote.require_verified || settings.profile == ProfileChoice::Learn {
        return None;
    }
    let file = fs::File::open(image).ok()?;
    let metadata = file.metadata().ok()?;
    let is_roots = metadata.uid() == 0 && metadata.mode() & OTHERS_WRITE == 0;
    let is_near = fstatfs(&file).is_ok_and(|found| NEAR_FILE_SYSTEMS.contains(&(found.f_type as u32)));
    let is_image = Stamp::of_file(&metadata).as_ref() == Some(stamp);
    if is_roots && is_near && is_image { ImageFile::new(file).ok() } else { None }
}

fn identity_of(image: &Path, stamp: &Stamp, settings: &Settings, has_image_file: bool) -> io::Result<Identity> {
    let mut digest = Sha256::new().chain_update(env!("CARGO_PKG_VERSION")).chain_update([u8::from(has_image_file)]);
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

/// Removes what was used least recently from a directory of kept metadata, but not `name`, so that it has at most `bytes_max` after
/// `bytes` more are kept; and the directories of images that were never kept. Returns how many bytes are left, apart from `name`.
pub(crate) fn make_room(all: &Path, name: &str, bytes: u64, bytes_max: u64) -> u64 {
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
    let is_old = |path: &Path| {
        let created = fs::metadata(path).and_then(|directory| directory.modified()).ok();
        created.and_then(|created| created.elapsed().ok()).is_some_and(|age| age > EMPTY_AGE_MAX)
    };
    for (_, _, path) in found.iter().filter(|(used, _, path)| used.is_none() && is_old(path)) {
        let _ = fs::remove_dir(path);
    }
    let mut total = found.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
    for (_, of_path, path) in found {
        if total + bytes <= bytes_max {
            break;
        }
        // Another process may remove it at the same time.
        let _ = fs::remove_dir_all(path);
        total -= of_path;
    }
    total
}
