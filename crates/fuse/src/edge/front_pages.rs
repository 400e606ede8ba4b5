//! The page cache of a front.

use std::sync::{Arc, OnceLock, atomic::Ordering::Relaxed};

use floe_engine::{Reader, Sink};
use floe_image::{ByteRange, Nid};
use floe_keeper::{Access, FrontOptions, FrontRange, FrontTransfer, KernelOptions};

use crate::{ImageAccess, MountHandles, MountHooks, MountOptions, MountSetup, edge::kernel_pages::KernelPages};

/// The image behind a front: a virtual EROFS image, whose bytes Floe renders.
///
/// It consists of two files: the image and the large file. The large file is an extra device of the EROFS image, and
/// contains the data of the original's large files. Both files share one range of addresses; ranges are in these
/// addresses, in bytes.
pub trait FrontImage: Send + Sync {
    /// The large file. The kernel reads it past its page cache, so that its bytes have no second copy.
    fn large_file(&self) -> Nid;

    /// Whether the kernel mounts a kept image, so that only file data is read here.
    fn is_kept(&self) -> bool;

    /// Whether the format of the original has access control lists.
    fn has_acls(&self) -> bool;

    /// The address of a byte of one of the files.
    fn address(&self, nid: Nid, offset: u64) -> u64;

    /// The files of the front with data in a range of the image; `None` if the range is not file data or this is
    /// unknown.
    fn files_in(&self, range: ByteRange) -> Option<Vec<FrontRange>>;

    /// The parts of a range of the image that are known to be file data, as offsets in their file. Does not wait.
    fn file_data_in(&self, range: ByteRange) -> Vec<ByteRange>;

    /// The inodes of the original with data in a range of the image, each with the range of that data; empty if the
    /// range is not file data or this is unknown. Does not wait.
    fn originals_in(&self, range: ByteRange) -> Vec<(Nid, ByteRange)>;

    /// Notes that the kernel reads a range of the image, and returns the ranges of metadata that it is likely to read
    /// next. The iterator may wait; the call itself does not.
    fn metadata_ahead(&self, range: ByteRange) -> Option<Box<dyn Iterator<Item = ByteRange> + Send>>;
}

/// A front to be mounted, as the mount behind it sees it.
pub(crate) struct BehindFront {
    image: Arc<dyn FrontImage>,
    /// Set when the front is mounted; with the transfer of file data into it, if a thread reads ahead there.
    mounted: Arc<OnceLock<Option<FrontTransfer>>>,
}

impl BehindFront {
    /// A front that is not mounted yet.
    pub(crate) fn new(image: Arc<dyn FrontImage>) -> Self {
        Self { image, mounted: Arc::default() }
    }

    /// The id of the thread that reads ahead in the front, if it is mounted.
    pub(crate) fn thread(&self) -> Option<u32> {
        self.mounted.get()?.as_ref().map(FrontTransfer::thread)
    }

    /// How the front is mounted.
    pub(crate) fn options(&self, options: &MountOptions, cpus_are_short: bool) -> FrontOptions {
        FrontOptions {
            is_kept: self.image.is_kept(),
            has_acls: self.image.has_acls(),
            cpus_are_short,
            has_direct_io: options.front_direct_io,
        }
    }

    /// The setup of the hidden mount behind a front with this setup.
    pub(crate) fn setup(&self, front: &MountSetup, reader: &Reader) -> MountSetup {
        let MountSetup { options, hooks, handles } = front;
        let kernel = KernelOptions { access: Some(Access::All), checks_permissions: false, ..options.kernel.clone() };
        let (image, mounted, reader) = (Arc::clone(&self.image), Arc::clone(&self.mounted), reader.clone());
        let (reads, accesses) = (hooks.reads.clone(), hooks.accesses.clone());
        let pauses_metadata = Arc::clone(&handles.pauses_metadata);
        let reads = move |nid: Nid, offset: u64, len: u32| {
            let range = ByteRange::new(image.address(nid, offset), len.into());
            let is_large = nid == image.large_file();
            let has_ahead = !is_large && !pauses_metadata.load(Relaxed);
            if let Some(ranges) = image.metadata_ahead(range).filter(|_| has_ahead) {
                reader.push_ahead(nid, ranges);
            }
            if let Some(Some(transfer)) = mounted.get().filter(|_| !is_large) {
                transfer.note_read(image.file_data_in(range).into_iter());
            }
            if let Some(reads) = &reads {
                reads(nid, offset, len);
            }
            if let Some(accesses) = &accesses {
                // Without direct I/O, a request of the kernel's readahead can continue into files that no program has read.
                let first = image.originals_in(range).into_iter().next();
                first.into_iter().for_each(|(nid, range)| accesses(ImageAccess::Read(nid, range)));
            }
        };
        MountSetup {
            options: MountOptions { kernel, direct_io: Some(self.image.large_file()), ..options.clone() },
            hooks: MountHooks { reads: Some(Arc::new(reads)), accesses: None, ..hooks.clone() },
            // The keeper waits for the session threads while it mounts the front, so they must not wait for the keeper.
            handles: MountHandles { keeper: None, ..handles.clone() },
        }
    }

    /// The page cache of the front. `hidden` is that of the hidden mount.
    pub(crate) fn pages(&self, hidden: KernelPages) -> FrontPages {
        FrontPages { hidden, image: Arc::clone(&self.image), mounted: Arc::clone(&self.mounted) }
    }

    /// Notes that the front is mounted, with the transfer of file data into it.
    pub(crate) fn note_mounted(&self, transfer: Option<FrontTransfer>) {
        let _ = self.mounted.set(transfer);
    }
}

/// The page cache of the kernel's EROFS in front of a hidden file.
///
/// The kernel's EROFS reads the hidden file through the page cache of that file, and copies file data into the pages
/// of its own files. Prefetch pushes bytes into the page cache of the hidden file, and then asks the front to copy them
/// ahead of its readers, if a thread does that.
pub(crate) struct FrontPages {
    hidden: KernelPages,
    image: Arc<dyn FrontImage>,
    mounted: Arc<OnceLock<Option<FrontTransfer>>>,
}

impl Sink for FrontPages {
    fn push(&self, nid: Nid, offset: u64, bytes: &[u8]) -> usize {
        if self.reads_by_itself(nid) {
            return 0;
        }
        let Some(ranges) = self.image.files_in(ByteRange::new(self.image.address(nid, offset), bytes.len() as u64))
        else {
            return self.hidden.push(nid, offset, bytes);
        };
        let Some(transfer) = self.mounted.get() else { return 0 };
        let len = self.hidden.push(nid, offset, bytes);
        if let Some(transfer) = transfer.as_ref().filter(|_| len > 0) {
            transfer.copy(&ranges);
        }
        len
    }

    fn reads_by_itself(&self, nid: Nid) -> bool {
        nid == self.image.large_file()
    }

    fn reads_whole_files(&self, nid: Nid) -> bool {
        !self.reads_by_itself(nid)
    }

    fn request(&self, nid: Nid, range: ByteRange, cpus_are_short: bool) {
        let range = ByteRange::new(self.image.address(nid, range.offset()), range.len());
        if let (Some(Some(transfer)), Some(ranges)) = (self.mounted.get(), self.image.files_in(range)) {
            transfer.read(&ranges, cpus_are_short);
        }
    }

    fn follow_load(&self, cpus_are_short: bool) {
        if let Some(Some(transfer)) = self.mounted.get() {
            transfer.set_urgency(cpus_are_short);
        }
    }

    fn page_bytes(&self) -> u64 {
        self.hidden.page_bytes()
    }
}
