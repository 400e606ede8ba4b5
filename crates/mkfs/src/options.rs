//! Build options.

pub(crate) mod coding;
mod file_contexts;
mod fs_config;
pub(crate) mod image_format;
mod layout;
mod tree_changes;

use std::{
    fmt,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use coding::{Coding, Hint};
pub use file_contexts::FileContexts;
use floe_codec::encode::Compression;
use floe_erofs::{
    format,
    write::{InodeForm, LongPrefix},
};
use floe_image::{Shown, Timestamp};
pub use fs_config::FsConfig;
pub use image_format::{Format, PackedTails, SquashfsOptions, UncompressedParts};
pub use layout::{Layout, Metabox};
pub use tree_changes::{
    ImpliedDirectories, PseudoAction, PseudoAttributes, PseudoBody, PseudoFile, RootAttributes, TreeChanges,
};

use crate::{
    error::{Error, Result},
    files::temporaries::Temporaries,
    profile::Profile,
    tree::source_image::SourceImage,
};

/// Build options. [`Options::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// The output path. An existing file is replaced when the new image is complete.
    pub output: PathBuf,
    /// The format of the image.
    pub format: Format,
    /// The paths of files that accompany the output, such as the one with its root hash. Existing ones are omitted if
    /// they are inside a source directory, as an existing output is.
    pub companions: Vec<PathBuf>,
    /// log2 of the block size, 9 to 16. Linux does not mount images whose blocks are larger than the machine's pages.
    pub block_size_log2: u8,
    /// The compression of files; `None` stores them uncompressed.
    pub compression: Option<Compression>,
    /// The pcluster size in bytes: a multiple of the block size, at most 1 MiB.
    pub pcluster_bytes: u32,
    /// Per-file settings; the first hint that matches a path counts.
    pub hints: Vec<Hint>,
    /// Whether the tail of an uncompressed file follows its inode.
    pub inline_data: bool,
    /// Whether the last pcluster of a compressed file may follow its inode ("ztailpacking").
    pub inline_pclusters: bool,
    /// Which data goes into the packed inode.
    pub fragments: Fragments,
    /// Whether equal data is stored once.
    pub dedupe: bool,
    /// Whether compact indexes are used where possible.
    pub compact_index: bool,
    /// The choice between compact and extended inodes.
    pub inode_form: InodeForm,
    /// Use the 48-bit layout, for more than 2^32 blocks and for timestamps in compact inodes.
    pub wide: bool,
    /// The chunk size in bytes for chunk-based files: a power of two, at least the block size.
    pub chunk_bytes: Option<u64>,
    /// Whether chunk maps use 8-byte records even where 4-byte records suffice.
    pub chunk_indexes: bool,
    /// A separate file for chunks.
    pub blob_device: Option<PathBuf>,
    /// The timestamps of inodes.
    pub times: Times,
    /// The owners of inodes.
    pub ownership: Ownership,
    /// Which xattrs are kept, and how.
    pub xattrs: Xattrs,
    /// Paths within the image that are excluded with everything below them, without a leading slash.
    pub excludes: Vec<PathBuf>,
    /// Extended regular expressions. A path within the image, without a leading slash, is excluded if some part of it
    /// matches.
    pub exclude_expressions: Vec<String>,
    /// Excludes further paths.
    pub exclude_filter: Option<PathFilter>,
    /// Whether each of [`Options::excludes`] must match something.
    pub excludes_must_match: bool,
    /// Whether each hard link gets an inode of its own.
    pub splits_links: bool,
    /// Whether a file that changes while it is read fails the build. Otherwise the image has as much of it as was
    /// available, and the summary a warning.
    pub strict: bool,
    /// The meaning of whiteouts in a source.
    pub whiteouts: Whiteouts,
    /// The handling of overlayfs metadata.
    pub overlay_marks: OverlayMarks,
    /// Whether files refer to the data in their sources, which become extra devices of the image, in their order. Such
    /// sources are EROFS images with the same block size, and plain tar archives.
    pub refers_to_sources: bool,
    /// An earlier EROFS image with the same block size, which becomes an extra device. Files that it has, too, refer to their data
    /// there.
    pub base: Option<SourceImage>,
    /// Whether the output may be one of the sources: an image in a file, which stays until the new one is complete.
    pub may_replace_source: bool,
    /// Directories that archives have no members for.
    pub implied_directories: ImpliedDirectories,
    /// Changes to the tree after the sources were listed.
    pub tree_changes: TreeChanges,
    /// The layout of the image in its file, and optional features of the format.
    pub layout: Layout,
    /// A recorded launch. The files that it reads come first in the image, and the image lists them, so that a mount
    /// can prefetch them.
    pub profile: Option<Profile>,
    /// Whether the profile is that of a launch from several images, such as the layers of a container: steps that are about other
    /// images are left out.
    pub is_profile_of_several: bool,
    /// The volume's UUID; `None` derives one from the content.
    pub uuid: Option<[u8; 16]>,
    /// The volume label, at most 15 bytes.
    pub volume_name: Vec<u8>,
    /// Whether the summary lists what the types of files take.
    pub lists_types: bool,
    /// The number of compression threads.
    pub jobs: NonZeroUsize,
    /// The temporary names that builds with these options use.
    pub temporaries: Temporaries,
    /// The limit in bytes for file data and compressed data in memory. One job may exceed it: it needs twice a segment
    /// of 4 or 16 MiB. `None` allows each thread that much. The tree and the metadata are not counted.
    pub memory_bytes: Option<usize>,
}

/// An input of a build.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory; its entries become those of the root.
    Directory(PathBuf),
    /// A file or directory, which becomes an entry of the root with its own name.
    Entry(PathBuf),
    /// A tar archive, plain or compressed with gzip, zstd, xz or lzma.
    Tar(PathBuf),
    /// A tar archive from standard input.
    TarFromInput,
    /// An open image; the entries of its root become those of the root.
    Image(SourceImage),
}

/// Decides about each path within the image, without a leading slash, whether it is excluded with everything below it.
#[derive(Clone)]
pub struct PathFilter(Arc<dyn Fn(&Path) -> bool + Send + Sync>);

impl PathFilter {
    /// A filter that excludes the paths for which `excludes` holds.
    pub fn new(excludes: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(excludes))
    }

    /// Whether the entry at this path is excluded. Its parents are not considered.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        (self.0)(path)
    }
}

impl fmt::Debug for PathFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PathFilter")
    }
}

/// The meaning of names that OCI layers (and aufs) use to remove entries of lower layers: `.wh.NAME` removes an entry,
/// `.wh..wh..opq` all entries of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whiteouts {
    /// Ordinary names.
    #[default]
    Keep,
    /// Whiteouts: they remove entries of earlier sources and are not stored. In images, those of overlayfs do so too.
    Apply,
    /// Ordinary names. In images, the whiteouts of overlayfs remove entries of earlier sources, and stay.
    Merge,
    /// Whiteouts, converted to those of overlayfs: device nodes with number 0, and the attribute
    /// `trusted.overlay.opaque`.
    Overlay,
}

/// The handling of overlayfs metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverlayMarks {
    /// Keep it unchanged.
    #[default]
    Keep,
    /// Mark directories with whiteouts by the xattr that makes overlayfs look for them.
    MarkOrigins,
    /// Drop whiteouts and the xattrs of opaque directories.
    Strip,
}

/// Which data goes into the packed inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// Nothing; there is no packed inode.
    #[default]
    None,
    /// The last part of each file that does not fill a pcluster.
    Tails,
    /// All files entirely.
    All,
}

/// The timestamps of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Times {
    /// Each inode keeps its own timestamp. The image gets the latest of them, so that equal trees give equal images.
    #[default]
    Own,
    /// Each inode keeps its own timestamp; the image gets this one, in seconds since 1970.
    OwnBuiltAt(i64),
    /// All inodes and the image get this timestamp, in seconds since 1970.
    All(i64),
    /// Each inode keeps its own timestamp unless that is later than this one, in seconds since 1970. The image gets
    /// this one.
    AtMost(i64),
}

/// The owners of inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ownership {
    /// The owner of all inodes.
    pub force_uid: Option<u32>,
    /// The group of all inodes.
    pub force_gid: Option<u32>,
    /// Added to the owner of each inode, after [`Ownership::force_uid`]; wraps at 2^32, with a warning.
    pub uid_offset: u32,
    /// Added to the group of each inode, after [`Ownership::force_gid`]; wraps at 2^32, with a warning.
    pub gid_offset: u32,
}

/// Which xattrs are kept, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattrs {
    /// Whether xattrs are kept at all.
    pub keep: bool,
    /// An xattr that more than this many inodes share is stored once; `None` stores each separately.
    pub share_above: Option<usize>,
    /// Name prefixes that are stored once. Each begins with `user.`, `trusted.` or `security.`.
    pub long_prefixes: Vec<Vec<u8>>,
    /// Whether inodes have a bloom filter, which answers most lookups of absent names without a search.
    pub filter: bool,
    /// The name of an xattr with the digest of each file, by which Linux shares the page cache of equal files. If it does not
    /// begin with `user.`, `trusted.` or `security.`, only the file system sees it.
    pub fingerprint: Option<Vec<u8>>,
}

/// The maximum number of long name prefixes.
const LONG_PREFIXES_MAX: usize = 128;
/// The default memory limit has, for each thread, one segment, its result and this many bytes more, so that no thread
/// waits for memory that another one holds.
const MEMORY_SPARE_BYTES: usize = 4 << 20;
/// The minimum default memory in bytes.
const MEMORY_BYTES_MIN: usize = 32 << 20;
/// Pclusters of at least this many bytes hold some MiB of files.
const LARGE_PCLUSTER_BYTES: u32 = 256 << 10;

impl Options {
    /// The maximum number of compression threads.
    pub const JOBS_MAX: usize = 256;

    /// The defaults: uncompressed, blocks of 4 KiB, as many threads as CPUs.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        let jobs = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self {
            output: output.into(),
            format: Format::Erofs,
            companions: Vec::new(),
            block_size_log2: 12,
            compression: None,
            pcluster_bytes: 4096,
            hints: Vec::new(),
            inline_data: true,
            inline_pclusters: false,
            fragments: Fragments::None,
            dedupe: false,
            compact_index: true,
            inode_form: InodeForm::Smallest,
            wide: false,
            chunk_bytes: None,
            chunk_indexes: false,
            blob_device: None,
            times: Times::Own,
            ownership: Ownership::default(),
            xattrs: Xattrs {
                keep: true,
                share_above: Some(2),
                long_prefixes: Vec::new(),
                filter: true,
                fingerprint: None,
            },
            excludes: Vec::new(),
            exclude_expressions: Vec::new(),
            exclude_filter: None,
            excludes_must_match: false,
            splits_links: false,
            strict: false,
            whiteouts: Whiteouts::Keep,
            overlay_marks: OverlayMarks::Keep,
            refers_to_sources: false,
            base: None,
            may_replace_source: false,
            implied_directories: ImpliedDirectories::default(),
            tree_changes: TreeChanges::default(),
            layout: Layout::default(),
            profile: None,
            is_profile_of_several: false,
            uuid: None,
            volume_name: Vec::new(),
            lists_types: false,
            jobs: jobs.min(NonZeroUsize::new(Self::JOBS_MAX).unwrap_or(NonZeroUsize::MIN)),
            temporaries: Temporaries::default(),
            memory_bytes: None,
        }
    }

    /// The block size in bytes.
    pub(crate) fn block_size(&self) -> u64 {
        1 << self.block_size_log2
    }

    /// The block size as a buffer length.
    pub(crate) fn block_len(&self) -> usize {
        1 << self.block_size_log2
    }

    /// Whether the image has pclusters of several blocks.
    pub(crate) fn is_big(&self) -> bool {
        let is_big = |coding: &Coding| u64::from(coding.pcluster_bytes) > self.block_size();
        self.codings().iter().any(is_big)
    }

    /// The length of independently compressed segments, in bytes.
    pub(crate) fn segment_len(&self) -> usize {
        if self.has_large_pclusters() { 16 << 20 } else { 4 << 20 }
    }

    /// The length of the runs in which fragments are sorted by similarity group, in bytes. A large pcluster already
    /// contains much similar data, and files of one directory are more similar than files of one group.
    pub(crate) fn fragment_run_len(&self) -> usize {
        if self.has_large_pclusters() { 0 } else { self.segment_len() }
    }

    /// The limit of data in memory, in bytes.
    pub(crate) fn memory_len(&self) -> usize {
        let wanted = || self.jobs.get().saturating_mul(2 * self.segment_len() + MEMORY_SPARE_BYTES);
        self.memory_bytes.unwrap_or_else(|| wanted().max(MEMORY_BYTES_MIN))
    }

    /// Whether pclusters hold some MiB of files.
    pub(crate) fn has_large_pclusters(&self) -> bool {
        self.codings().iter().any(|coding| coding.pcluster_bytes >= LARGE_PCLUSTER_BYTES)
    }

    /// Whether equal files are stored once. With fragments, they always are: the fragments of equal files are shared
    /// anyway, and comparing the rest costs little.
    pub(crate) fn shares_files(&self) -> bool {
        match &self.format {
            Format::Erofs => self.dedupe || self.fragments != Fragments::None,
            Format::Squashfs(squashfs) => squashfs.shares_files,
        }
    }

    /// The timestamp that the image has for an inode whose own timestamp is `own`.
    pub(crate) fn stored_time(&self, own: Timestamp) -> Timestamp {
        let applied = self.times.apply(own);
        match self.format {
            Format::Erofs => applied,
            Format::Squashfs(_) => Timestamp { seconds: applied.seconds.clamp(0, i64::from(u32::MAX)), nanoseconds: 0 },
        }
    }

    /// Rejects contradictions and values out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Option(reason));
        if self.jobs.get() > Self::JOBS_MAX {
            return refuse(format!("the number of jobs must not exceed {}", Self::JOBS_MAX));
        }
        if let Format::Squashfs(squashfs) = &self.format {
            if self.refers_to_sources || self.base.is_some() {
                return refuse("SquashFS has no extra devices: it cannot refer to other images".into());
            }
            return squashfs.check();
        }
        if self.refers_to_sources && self.blob_device.is_some() {
            return refuse("a blob device cannot be added to sources that are extra devices".into());
        }
        let block_sizes = format::BLOCK_SIZE_LOG2_MIN..=format::BLOCK_SIZE_LOG2_MAX;
        if !block_sizes.contains(&self.block_size_log2) {
            return refuse("the block size must be a power of two from 512 to 65536 bytes".into());
        }
        let block_size = self.block_size();
        self.layout.check(block_size)?;
        let sizes = self.codings().into_iter().map(|coding| (coding.pcluster_bytes, Some(coding.compression)));
        for (pcluster_bytes, compression) in sizes.chain([(self.pcluster_bytes, self.compression)]) {
            let pcluster = u64::from(pcluster_bytes);
            if pcluster < block_size || pcluster % block_size != 0 || pcluster > format::PCLUSTER_MAX_SIZE {
                return refuse(format!("the pcluster size must be a multiple of {block_size} bytes, up to 1048576"));
            }
            let is_lz4 = matches!(compression, Some(Compression::Lz4 { .. } | Compression::Lz4High { .. }));
            if is_lz4 && pcluster >> self.block_size_log2 > 256 {
                return refuse("LZ4 pclusters have at most 256 blocks: use larger blocks or smaller pclusters".into());
            }
        }
        if self.compression.is_none() && (self.inline_pclusters || self.fragments != Fragments::None) {
            return refuse("packing tails and fragments needs compression: choose an algorithm".into());
        }
        if let Some(chunk_bytes) = self.chunk_bytes {
            if !self.codings().is_empty() {
                return refuse("chunk-based files cannot be compressed: use only one of the two".into());
            }
            if !chunk_bytes.is_power_of_two()
                || chunk_bytes < block_size
                || chunk_bytes >> self.block_size_log2 > 1 << 31
            {
                return refuse(format!("the chunk size must be a power of two, at least {block_size} bytes"));
            }
        } else if self.blob_device.is_some() || self.chunk_indexes {
            return refuse("a blob device and chunk indexes require a chunk size".into());
        }
        if self.layout.metabox != Metabox::None && !self.wide {
            return refuse("a metabox requires the 48-bit layout".into());
        }
        if self.volume_name.len() > 15 {
            return refuse("the volume name must not exceed 15 bytes".into());
        }
        if self.base.is_some() && (self.blob_device.is_some() || self.refers_to_sources) {
            return refuse("a base cannot be combined with other extra devices".into());
        }
        self.xattrs.parsed_prefixes()?;
        if self.xattrs.fingerprint.is_some() && self.refers_to_sources {
            return refuse("digests of files need their data, and the image only refers to it".into());
        }
        self.codings().iter().try_for_each(|coding| coding.compression.encoder().map(|_| ()))?;
        Ok(())
    }
}

impl Xattrs {
    /// The number of the long prefix of [`Xattrs::fingerprint`].
    pub(crate) fn fingerprint_prefix(&self) -> Option<u8> {
        self.fingerprint.as_ref().map(|_| u8::try_from(self.long_prefixes.len()).unwrap_or(u8::MAX))
    }

    /// The long prefixes in their stored form.
    pub(crate) fn parsed_prefixes(&self) -> Result<Vec<LongPrefix>> {
        let parsed = self.long_prefixes.iter().map(|prefix| {
            LongPrefix::new(prefix).ok_or_else(|| {
                let text = Shown(prefix);
                Error::Option(format!("{text}: an xattr prefix must begin with user., trusted. or security."))
            })
        });
        let mut parsed = parsed.collect::<Result<Vec<_>>>()?;
        if let Some(name) = &self.fingerprint {
            let unfit = || Error::Option(format!("{}: the name of an xattr has 1 to 255 bytes", Shown(name)));
            parsed.push(LongPrefix::of_fingerprint(name).ok_or_else(unfit)?);
        }
        if parsed.len() > LONG_PREFIXES_MAX {
            return Err(Error::Option(format!("the number of xattr prefixes must not exceed {LONG_PREFIXES_MAX}")));
        }
        Ok(parsed)
    }
}

impl Ownership {
    pub(crate) fn apply(&self, uid: u32, gid: u32) -> (u32, u32) {
        let uid = self.force_uid.unwrap_or(uid).wrapping_add(self.uid_offset);
        (uid, self.force_gid.unwrap_or(gid).wrapping_add(self.gid_offset))
    }

    /// Whether an offset moves an owner or group beyond the last valid one.
    pub(crate) fn overflows(&self, uid: u32, gid: u32) -> bool {
        let is_valid = |id: u32, offset: u32| offset == 0 || id.checked_add(offset).is_some_and(|id| id < u32::MAX);
        let (uid, gid) = (self.force_uid.unwrap_or(uid), self.force_gid.unwrap_or(gid));
        !is_valid(uid, self.uid_offset) || !is_valid(gid, self.gid_offset)
    }
}

impl Times {
    /// The timestamp of an inode whose own timestamp is `own`.
    pub(crate) fn apply(&self, own: Timestamp) -> Timestamp {
        match *self {
            Self::Own | Self::OwnBuiltAt(_) => own,
            Self::All(seconds) => Timestamp { seconds, nanoseconds: 0 },
            Self::AtMost(seconds) if own.seconds < seconds => own,
            Self::AtMost(seconds) => Timestamp { seconds, nanoseconds: 0 },
        }
    }
}
