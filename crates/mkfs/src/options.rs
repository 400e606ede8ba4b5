//! What an image is to be like.

use std::{collections::BTreeMap, num::NonZeroUsize, path::PathBuf};

use floe_codec::encode::Compression;
use floe_erofs::{
    format,
    write::{AlgorithmConfiguration, InodeForm},
};
use floe_image::Timestamp;

use crate::{
    error::{Error, Result},
    hints::{Coding, Hint},
    layout::{Layout, Metabox},
    overlay::OverlayMarks,
    profile::Profile,
};

/// What an image is to be like. [`Options::new`] has the defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the image goes. What is there is replaced when the new image is whole.
    pub output: PathBuf,
    /// log2 of the block size, 9 to 16. Linux mounts no image whose blocks are larger than the machine's pages.
    pub block_size_log2: u8,
    /// How files are compressed; `None` stores them as they are.
    pub compression: Option<Compression>,
    /// The size of a pcluster in bytes: a multiple of the block size, at most 1 MiB.
    pub pcluster_bytes: u32,
    /// What is done otherwise with files whose paths match: the first that does counts.
    pub hints: Vec<Hint>,
    /// Whether the last part of a file that is not compressed stands behind its inode.
    pub inline_data: bool,
    /// Whether the last pcluster of a compressed file may stand behind its inode ("ztailpacking").
    pub inline_pclusters: bool,
    /// What is packed together in the packed inode.
    pub fragments: Fragments,
    /// Whether equal data is stored once.
    pub dedupe: bool,
    /// Whether compact indexes are used where they can be.
    pub compact_index: bool,
    /// Which form inodes take.
    pub inode_form: InodeForm,
    /// The 48-bit layout, for more than 2^32 blocks and for times in compact inodes.
    pub wide: bool,
    /// The size of a chunk in bytes where files are to be chunked: a power of two, at least the block size.
    pub chunk_bytes: Option<u64>,
    /// Whether chunk maps have 8-byte records even where 4 bytes would do.
    pub chunk_indexes: bool,
    /// A file beside the image that chunks go to.
    pub blob_device: Option<PathBuf>,
    /// Which times inodes have.
    pub times: Times,
    /// Which owners inodes have.
    pub ownership: Ownership,
    /// Which extended attributes are kept, and how.
    pub xattrs: Xattrs,
    /// Paths within the image that are left out, with all that is below, without a leading slash.
    pub excludes: Vec<PathBuf>,
    /// Extended regular expressions: a path within the image, without a leading slash, that one of them matches in some
    /// part is left out too.
    pub exclude_expressions: Vec<String>,
    /// Whether each of [`Options::excludes`] has to match something.
    pub excludes_must_match: bool,
    /// Whether each name of what has several gets an inode of its own.
    pub splits_links: bool,
    /// Whether a file that changes while it is read ends the build. Otherwise the image has as much of it as there was, and
    /// the summary a warning.
    pub strict: bool,
    /// What whiteouts in a source mean.
    pub whiteouts: Whiteouts,
    /// What becomes of what only overlayfs understands.
    pub overlay_marks: OverlayMarks,
    /// How the image lies in its file, and which of the format's freedoms it takes.
    pub layout: Layout,
    /// What a recorded launch reads: its files come first in the image, and it is listed in it, so that a mount can read
    /// ahead of it.
    pub profile: Option<Profile>,
    /// The volume's UUID; `None` makes one of the content.
    pub uuid: Option<[u8; 16]>,
    /// The volume's name: at most 15 bytes.
    pub volume_name: Vec<u8>,
    /// How many threads compress.
    pub jobs: NonZeroUsize,
    /// How much file data and compressed data may be under way at once, in bytes, over what one job needs (twice a
    /// segment of 4 or 16 MiB); `None` lets each thread have that. The tree and the metadata are not counted.
    pub memory_bytes: Option<usize>,
}

/// Where what goes into an image comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A directory, whose content becomes the root's.
    Directory(PathBuf),
    /// A tar archive, plain or compressed with gzip, zstd or xz.
    Tar(PathBuf),
    /// A tar archive that comes from the standard input.
    TarFromInput,
}

/// What the names mean that OCI layers (and aufs) use for what a layer removes from those below: `.wh.NAME` for an
/// entry, `.wh..wh..opq` for all entries of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whiteouts {
    /// Nothing: they are names like others.
    #[default]
    Keep,
    /// They remove what earlier sources have, and are not in the image.
    Apply,
    /// They become what overlayfs has for the same: devices with the number 0 and the attribute
    /// `trusted.overlay.opaque`.
    Overlay,
}

/// What is packed together in the packed inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fragments {
    /// Nothing: there is no packed inode.
    #[default]
    None,
    /// The last part of each file that does not fill a pcluster.
    Tails,
    /// All files, whole.
    All,
}

/// Which times inodes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Times {
    /// Their own. The image's is the latest of them, so that equal trees give equal images.
    #[default]
    Own,
    /// Their own; the image's is this, in seconds since 1970.
    OwnBuiltAt(i64),
    /// All have this one, in seconds since 1970.
    All(i64),
    /// Their own, but none later than this, which is the image's, in seconds since 1970.
    AtMost(i64),
}

/// Which owners inodes have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ownership {
    /// The owner of all.
    pub force_uid: Option<u32>,
    /// The group of all.
    pub force_gid: Option<u32>,
    /// What is added to each owner, after the above.
    pub uid_offset: u32,
    /// What is added to each group.
    pub gid_offset: u32,
}

/// Which extended attributes are kept, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattrs {
    /// Whether there are any.
    pub keep: bool,
    /// An attribute that more inodes than this have in the same way is stored once; `None` stores each by itself.
    pub share_above: Option<usize>,
    /// Prefixes of names that are stored once, each a whole text that begins with `user.`, `trusted.` or `security.`.
    pub long_prefixes: Vec<Vec<u8>>,
    /// Whether inodes have a filter by which a name that is absent is mostly found to be so without a search.
    pub filter: bool,
}

/// What is under way beside a segment and its result for each thread, where nothing is said: enough that no thread waits
/// for another one's memory, in bytes.
const MEMORY_SPARE_BYTES: usize = 4 << 20;
/// What may be under way at least where nothing is said, in bytes.
const MEMORY_BYTES_MIN: usize = 32 << 20;
/// Pclusters of at least so many bytes hold some MiB of files.
const LARGE_PCLUSTER_BYTES: u32 = 256 << 10;

impl Options {
    /// The most threads that compress.
    pub const JOBS_MAX: usize = 256;

    /// The defaults: not compressed, blocks of 4 KiB, as many threads as CPUs.
    pub fn new(output: impl Into<PathBuf>) -> Self {
        let jobs = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self {
            output: output.into(),
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
            xattrs: Xattrs { keep: true, share_above: Some(2), long_prefixes: Vec::new(), filter: true },
            excludes: Vec::new(),
            exclude_expressions: Vec::new(),
            excludes_must_match: false,
            splits_links: false,
            strict: false,
            whiteouts: Whiteouts::Keep,
            overlay_marks: OverlayMarks::Keep,
            layout: Layout::default(),
            profile: None,
            uuid: None,
            volume_name: Vec::new(),
            jobs: jobs.min(NonZeroUsize::new(Self::JOBS_MAX).unwrap_or(NonZeroUsize::MIN)),
            memory_bytes: None,
        }
    }

    /// The block size in bytes.
    pub(crate) fn block_size(&self) -> u64 {
        1 << self.block_size_log2
    }

    /// The block size as a length of buffers.
    pub(crate) fn block_len(&self) -> usize {
        1 << self.block_size_log2
    }

    /// Whether the image has pclusters of several blocks.
    pub(crate) fn is_big(&self) -> bool {
        let is_big = |coding: &Coding| u64::from(coding.pcluster_bytes) > self.block_size();
        self.codings().iter().any(is_big)
    }

    /// How much of a file is compressed at once, in bytes, without regard to what is before and after.
    pub(crate) fn segment_len(&self) -> usize {
        if self.has_large_pclusters() { 16 << 20 } else { 4 << 20 }
    }

    /// How many bytes of fragments are put in order by what files they are of. A large pcluster holds much of what is
    /// alike without, and what is in a directory with it is more alike than what is of the same kind.
    pub(crate) fn fragment_run_len(&self) -> usize {
        if self.has_large_pclusters() { 0 } else { self.segment_len() }
    }

    /// How much may be under way at once, in bytes.
    pub(crate) fn memory_len(&self) -> usize {
        let wanted = || self.jobs.get().saturating_mul(2 * self.segment_len() + MEMORY_SPARE_BYTES);
        self.memory_bytes.unwrap_or_else(|| wanted().max(MEMORY_BYTES_MIN))
    }

    /// Whether pclusters hold some MiB of files.
    pub(crate) fn has_large_pclusters(&self) -> bool {
        self.codings().iter().any(|coding| coding.pcluster_bytes >= LARGE_PCLUSTER_BYTES)
    }

    /// The codings that files may have, the usual one first, if there is one.
    pub(crate) fn codings(&self) -> Vec<Coding> {
        let usual = self.compression.map(|compression| Coding { compression, pcluster_bytes: self.pcluster_bytes });
        let mut codings: Vec<Coding> = usual.into_iter().collect();
        for coding in self.hints.iter().filter_map(|hint| hint.coding).chain(self.layout.codings()) {
            if !codings.contains(&coding) {
                codings.push(coding);
            }
        }
        codings
    }

    /// The number of a coding among [`Options::codings`].
    pub(crate) fn coding_number(&self, coding: Coding) -> Option<usize> {
        self.codings().iter().position(|known| *known == coding)
    }

    /// The number of a coding's algorithm.
    pub(crate) fn algorithm(&self, coding: Coding) -> u8 {
        self.configuration(coding).algorithm()
    }

    /// What the superblock says of the algorithms: each once, with room for all that is done with it.
    pub(crate) fn configurations(&self) -> Vec<AlgorithmConfiguration> {
        let mut joined = BTreeMap::new();
        for configuration in self.codings().into_iter().map(|coding| self.configuration(coding)) {
            let known = joined.entry(configuration.algorithm()).or_insert(configuration);
            *known = larger(*known, configuration);
        }
        joined.into_values().collect()
    }

    fn configuration(&self, coding: Coding) -> AlgorithmConfiguration {
        let pcluster_blocks = u64::from(coding.pcluster_bytes) >> self.block_size_log2;
        match coding.compression {
            Compression::Lz4 { window_bytes } | Compression::Lz4High { window_bytes, .. } => {
                AlgorithmConfiguration::Lz4 {
                    window_bytes: u16::try_from(window_bytes.get()).unwrap_or(u16::MAX),
                    pcluster_blocks_max: u16::try_from(pcluster_blocks).unwrap_or(u16::MAX),
                }
            }
            Compression::MicroLzma { dictionary_bytes, .. } => AlgorithmConfiguration::Lzma { dictionary_bytes },
            Compression::Deflate { .. } => AlgorithmConfiguration::Deflate { window_log2: 15 },
            Compression::Zstd { window_log2, .. } => AlgorithmConfiguration::Zstd { window_log2 },
        }
    }

    /// Whether equal files are stored once. With fragments they are in any case: their ends would be, and looking for
    /// the rest costs little.
    pub(crate) fn shares_files(&self) -> bool {
        self.dedupe || self.fragments != Fragments::None
    }

    /// Refuses what contradicts itself or is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |reason: String| Err(Error::Option(reason));
        let block_sizes = format::BLOCK_SIZE_LOG2_MIN..=format::BLOCK_SIZE_LOG2_MAX;
        if !block_sizes.contains(&self.block_size_log2) {
            return refuse("the block size is a power of two from 512 to 65536 bytes".into());
        }
        let block_size = self.block_size();
        self.layout.check(block_size)?;
        let sizes = self.codings().into_iter().map(|coding| (coding.pcluster_bytes, Some(coding.compression)));
        for (pcluster_bytes, compression) in sizes.chain([(self.pcluster_bytes, self.compression)]) {
            let pcluster = u64::from(pcluster_bytes);
            if pcluster < block_size || pcluster % block_size != 0 || pcluster > format::PCLUSTER_MAX_SIZE {
                return refuse(format!("the pcluster size is a multiple of {block_size} bytes, up to 1048576"));
            }
            let is_lz4 = matches!(compression, Some(Compression::Lz4 { .. } | Compression::Lz4High { .. }));
            if is_lz4 && pcluster >> self.block_size_log2 > 256 {
                return refuse(
                    "pclusters of LZ4 have at most 256 blocks: choose larger blocks or smaller pclusters".into(),
                );
            }
        }
        if self.compression.is_none() && (self.inline_pclusters || self.fragments != Fragments::None) {
            return refuse(
                "tails and fragments can be packed only where files are compressed: choose an algorithm".into(),
            );
        }
        if let Some(chunk_bytes) = self.chunk_bytes {
            if !self.codings().is_empty() {
                return refuse("chunked files cannot be compressed: leave out one of the two".into());
            }
            if !chunk_bytes.is_power_of_two()
                || chunk_bytes < block_size
                || chunk_bytes >> self.block_size_log2 > 1 << 31
            {
                return refuse(format!("the chunk size is a power of two, at least {block_size} bytes"));
            }
        } else if self.blob_device.is_some() || self.chunk_indexes {
            return refuse("a blob device and chunk indexes need a chunk size".into());
        }
        if self.layout.metabox != Metabox::None && !self.wide {
            return refuse("a metabox needs the 48-bit layout".into());
        }
        if self.volume_name.len() > 15 {
            return refuse("the volume name has at most 15 bytes".into());
        }
        if self.jobs.get() > Self::JOBS_MAX {
            return refuse(format!("there are at most {} jobs", Self::JOBS_MAX));
        }
        self.codings().iter().try_for_each(|coding| coding.compression.encoder().map(|_| ()))?;
        Ok(())
    }
}

/// What has room for both of two configurations of the same algorithm.
fn larger(left: AlgorithmConfiguration, right: AlgorithmConfiguration) -> AlgorithmConfiguration {
    use AlgorithmConfiguration::{Deflate, Lz4, Lzma, Zstd};
    match (left, right) {
        (
            Lz4 { window_bytes, pcluster_blocks_max },
            Lz4 { window_bytes: other_window, pcluster_blocks_max: other_blocks },
        ) => Lz4 {
            window_bytes: window_bytes.max(other_window),
            pcluster_blocks_max: pcluster_blocks_max.max(other_blocks),
        },
        (Lzma { dictionary_bytes }, Lzma { dictionary_bytes: other }) => {
            Lzma { dictionary_bytes: dictionary_bytes.max(other) }
        }
        (Deflate { window_log2 }, Deflate { window_log2: other }) => Deflate { window_log2: window_log2.max(other) },
        (Zstd { window_log2 }, Zstd { window_log2: other }) => Zstd { window_log2: window_log2.max(other) },
        (left, _) => left,
    }
}

impl Ownership {
    pub(crate) fn apply(&self, uid: u32, gid: u32) -> (u32, u32) {
        let uid = self.force_uid.unwrap_or(uid).wrapping_add(self.uid_offset);
        (uid, self.force_gid.unwrap_or(gid).wrapping_add(self.gid_offset))
    }
}

impl Times {
    /// The time of an inode whose own is `own`.
    pub(crate) fn apply(&self, own: Timestamp) -> Timestamp {
        match *self {
            Self::Own | Self::OwnBuiltAt(_) => own,
            Self::All(seconds) => Timestamp { seconds, nanoseconds: 0 },
            Self::AtMost(seconds) if own.seconds < seconds => own,
            Self::AtMost(seconds) => Timestamp { seconds, nanoseconds: 0 },
        }
    }
}
