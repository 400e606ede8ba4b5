//! The options of an engine.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::PAGE_BYTES;

/// The unit of the budget for decoded metadata, in bytes.
pub(crate) const METADATA_BLOCK_BYTES: usize = 8 << 10;

/// The largest budget for decoded metadata, in blocks of 8 KiB: 8 GiB.
const METADATA_BLOCKS_MAX: usize = 1 << 20;

/// The options of an engine: memory and threads, which all its volumes share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineOptions {
    /// The budget of the cache of decoded blocks, in bytes.
    pub cache_bytes: u64,
    /// How far the cache of decoded blocks may grow beyond `cache_bytes` while memory is ample, in bytes. The cache
    /// grows when reads miss blocks that it recently evicted. It shrinks to `cache_bytes` when memory becomes scarce or
    /// the cache is unused for five minutes.
    pub cache_growth_bytes: u64,
    /// The number of 4 KiB pages that the page pool holds in reserve.
    pub reserved_pages: usize,
    /// The memory limit of decoders (dictionaries and windows), in bytes.
    pub decoder_bytes: u64,
    /// The memory limit of reads that left the session thread, in bytes: one half for their replies, the other half for
    /// their stored bytes and decoded blocks.
    pub read_bytes: u64,
    /// The design and the size of the cache of decoded metadata.
    pub metadata_cache: MetadataCacheDesign,
    /// Which threads decompress.
    pub workers: WorkerMode,
    /// How the threads that decompress are scheduled.
    pub priority: Priority,
    /// The size of the spill file in bytes. It holds decoded blocks that do not fit into the cache, that many files
    /// share, and that are costly to decode. Zero, the default, disables it, because such a file puts plain text of the
    /// image on a disk. Only engines that serve a page cache of the kernel use it.
    pub spill_file_bytes: u64,
    /// The directory of the spill file. A directory on a file system in memory is refused.
    pub spill_file_directory: Option<PathBuf>,
}

/// The options of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeOptions {
    /// Where blocks are decoded.
    pub sync_decompress: SyncDecompress,
    /// Whether to read more than was requested. If false, fault-around and all kinds of prefetch except
    /// [`PrefetchKind::RestOfBlock`] and [`PrefetchKind::DropBehind`] are off.
    pub read_around: bool,
    /// The enabled kinds of prefetch.
    pub prefetch: PrefetchSet,
    /// The effort with which readahead allocates pages.
    pub readahead_alloc: ReadaheadAlloc,
    /// Fault-around: a read that misses memory fetches at least the aligned window of this many bytes around it. Zero
    /// disables fault-around.
    pub fetch_around_bytes: u64,
}

/// The block cache takes at most one part in `CACHE_PART` of the available memory, including its growth.
const CACHE_PART: u64 = 8;

/// The block cache never grows beyond this, in bytes.
const GROWN_CACHE_BYTES_MAX: u64 = 2 << 30;

/// The reserve of pages and each metadata cache take at most one part in `RESERVE_PART` of the available memory.
const RESERVE_PART: u64 = 64;

/// Decoders, and reads that left the session thread, take at most one part in `WORK_PART` of the available memory each.
const WORK_PART: u64 = 32;

/// The memory of a decoder with the largest dictionary, in bytes. Each CPU may need one.
const DECODER_BYTES_MAX: u64 = (8 << 20) + (128 << 10);

/// The least reserve of pages, regardless of the available memory: enough for a read of 128 KiB and its decodes.
const RESERVED_PAGES_MIN: usize = 64;

impl EngineOptions {
    /// The defaults for a machine or container in which this process and its neighbours may use `memory_bytes`.
    pub fn for_memory(memory_bytes: u64) -> Self {
        let ample = Self::default();
        let part = |unit_bytes: usize| usize::try_from(memory_bytes / RESERVE_PART).unwrap_or(usize::MAX) / unit_bytes;
        let metadata_cache = match ample.metadata_cache {
            MetadataCacheDesign::Sharded { block_count } => {
                MetadataCacheDesign::Sharded { block_count: block_count.min(part(METADATA_BLOCK_BYTES)).max(1) }
            }
            single_lock @ MetadataCacheDesign::SingleLock { .. } => single_lock,
        };
        let grown_cache_bytes = (memory_bytes / CACHE_PART).min(GROWN_CACHE_BYTES_MAX);
        Self {
            cache_bytes: ample.cache_bytes.min(memory_bytes / CACHE_PART),
            cache_growth_bytes: grown_cache_bytes.saturating_sub(ample.cache_bytes),
            reserved_pages: ample.reserved_pages.min(part(PAGE_BYTES)).max(RESERVED_PAGES_MIN),
            metadata_cache,
            decoder_bytes: ample.decoder_bytes.min(memory_bytes / WORK_PART),
            read_bytes: ample.read_bytes.min(memory_bytes / WORK_PART),
            ..ample
        }
    }
}

impl Default for EngineOptions {
    /// The defaults for a machine with ample memory. The block cache does not grow.
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            cache_growth_bytes: 0,
            reserved_pages: 1024,
            decoder_bytes: cpu_count().max(2) * DECODER_BYTES_MAX,
            read_bytes: 64 << 20,
            metadata_cache: MetadataCacheDesign::Sharded { block_count: 1024 },
            workers: WorkerMode::PerCpu,
            priority: Priority::Auto,
            spill_file_bytes: 0,
            spill_file_directory: None,
        }
    }
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            sync_decompress: SyncDecompress::Auto,
            read_around: true,
            prefetch: PrefetchSet::ALL,
            readahead_alloc: ReadaheadAlloc::BestEffort,
            fetch_around_bytes: 128 << 10,
        }
    }
}

/// The number of CPUs that this process may use.
fn cpu_count() -> u64 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64)
}

/// A kind of prefetch. Each has its own switch, so that its effect can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefetchKind {
    /// Sequential readahead within a file, into the block cache.
    Sequential,
    /// The next small files of a directory that is read in order, into the kernel's page cache.
    Directory,
    /// The rest of a block that a read used only in part, into the kernel's page cache.
    RestOfBlock,
    /// Drops stored bytes from the kernel's page cache once all of them were decoded.
    DropBehind,
}

/// A set of kinds of prefetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchSet(u8);

impl PrefetchKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Directory, Self::RestOfBlock, Self::DropBehind];

    /// The name of the kind in option values.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Directory => "directory",
            Self::RestOfBlock => "rest-of-block",
            Self::DropBehind => "drop-behind",
        }
    }
}

impl PrefetchSet {
    /// All kinds.
    pub const ALL: Self = Self((1 << PrefetchKind::ALL.len()) - 1);

    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Whether the set contains `kind`.
    pub const fn has(self, kind: PrefetchKind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }

    /// The kinds in the set that fetch no additional bytes from the source.
    pub(crate) const fn without_reading(self) -> Self {
        Self(self.0 & (1 << PrefetchKind::RestOfBlock as u8 | 1 << PrefetchKind::DropBehind as u8))
    }

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }
}

impl FromStr for PrefetchSet {
    type Err = BadValue;

    /// `all`, `none`, or names with `+` between them.
    fn from_str(value: &str) -> Result<Self, BadValue> {
        let expected = "all, none, or some of sequential+directory+rest-of-block+drop-behind";
        let bad = || BadValue { value: value.to_owned(), expected };
        match value {
            "all" => Ok(Self::ALL),
            "none" => Ok(Self::NONE),
            _ => value.split('+').try_fold(Self::NONE, |set, name| {
                let kind = PrefetchKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(bad)?;
                Ok(Self(set.0 | 1 << kind as u8))
            }),
        }
    }
}

impl fmt::Display for PrefetchSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => formatter.write_str("all"),
            Self::NONE => formatter.write_str("none"),
            set => {
                let names: Vec<_> =
                    PrefetchKind::ALL.into_iter().filter(|kind| set.has(*kind)).map(PrefetchKind::name).collect();
                formatter.write_str(&names.join("+"))
            }
        }
    }
}

/// The design and the size of the cache of decoded metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataCacheDesign {
    /// Many shards with a lock each, and a budget of blocks of 8 KiB. For production.
    Sharded {
        /// The budget in blocks.
        block_count: usize,
    },
    /// One lock and a fixed number of entries, the design of the kernel's SquashFS. For comparison.
    SingleLock {
        /// The number of entries.
        entry_count: usize,
    },
}

/// Which threads decompress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WorkerMode {
    /// One thread for each CPU, bound to it, with a queue of its own.
    PerCpu,
    /// As many threads as CPUs, unbound, with one shared queue: the model of a kernel workqueue.
    Shared,
    /// No threads: the calling thread decodes, and also waits for the source.
    Inline,
}

/// The scheduling of the threads that decompress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// The best that is permitted: real-time at the lowest level, else nice −20, else a short slice. Session threads,
    /// threads that wait for a source or prefetch, and the one that reads ahead in a front are real-time only while more
    /// threads are runnable than there are CPUs.
    Auto,
    /// Real-time, first in first out, at this level (1 to 99).
    Fifo(u8),
    /// Time-shared at this nice level (−20 to 19).
    Nice(i8),
    /// Time-shared in slices of 100 µs, so that the thread's turns come sooner and are shorter. Needs no privilege, but
    /// Linux 6.12.
    Slice,
    /// The scheduling with which the process was started.
    Normal,
}

/// Where blocks are decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncDecompress {
    /// On the thread that has the stored bytes if decoding is cheap, otherwise on the workers.
    Auto,
    /// On the thread that has the stored bytes.
    Always,
    /// On the workers.
    Never,
}

/// The effort with which readahead allocates pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadaheadAlloc {
    /// Gives up at once if memory is short, and leaves the block to a later demand read.
    BestEffort,
    /// Waits for memory like a demand read.
    Wait,
}

/// A value that an option does not accept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadValue {
    /// The given value.
    pub value: String,
    /// The accepted values.
    pub expected: &'static str,
}

impl fmt::Display for BadValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "'{}' is not {}", self.value, self.expected)
    }
}

impl std::error::Error for BadValue {}

impl FromStr for MetadataCacheDesign {
    type Err = BadValue;

    fn from_str(value: &str) -> Result<Self, BadValue> {
        let parsed = match value.split_once(':') {
            None => value.parse().ok().map(|block_count| Self::Sharded { block_count }),
            Some(("single-lock", count)) => count.parse().ok().map(|entry_count| Self::SingleLock { entry_count }),
            Some(_) => None,
        };
        let parsed = parsed.filter(|design| match design {
            Self::Sharded { block_count: count } | Self::SingleLock { entry_count: count } => {
                (1..=METADATA_BLOCKS_MAX).contains(count)
            }
        });
        let expected = "a number of 8 KiB blocks from 1 to 1048576, or single-lock:ENTRIES";
        parsed.ok_or_else(|| BadValue { value: value.to_owned(), expected })
    }
}

impl fmt::Display for MetadataCacheDesign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sharded { block_count } => write!(formatter, "{block_count}"),
            Self::SingleLock { entry_count } => write!(formatter, "single-lock:{entry_count}"),
        }
    }
}

impl FromStr for WorkerMode {
    type Err = BadValue;

    fn from_str(value: &str) -> Result<Self, BadValue> {
        Ok(match value {
            "per-cpu" => Self::PerCpu,
            "shared" => Self::Shared,
            "inline" => Self::Inline,
            _ => return Err(BadValue { value: value.to_owned(), expected: "per-cpu, shared or inline" }),
        })
    }
}

impl fmt::Display for WorkerMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::PerCpu => "per-cpu",
            Self::Shared => "shared",
            Self::Inline => "inline",
        })
    }
}

impl FromStr for Priority {
    type Err = BadValue;

    fn from_str(value: &str) -> Result<Self, BadValue> {
        let (name, level) = value.split_once(':').map_or((value, None), |(name, level)| (name, Some(level)));
        let parsed = match (name, level) {
            ("auto", None) => Some(Self::Auto),
            ("slice", None) => Some(Self::Slice),
            ("normal", None) => Some(Self::Normal),
            ("fifo", level) => {
                level.map_or(Ok(1), str::parse).ok().filter(|level| (1..=99).contains(level)).map(Self::Fifo)
            }
            ("nice", level) => {
                level.map_or(Ok(-20), str::parse).ok().filter(|level| (-20..=19).contains(level)).map(Self::Nice)
            }
            _ => None,
        };
        let expected = "auto, fifo, fifo:1 to fifo:99, nice, nice:-20 to nice:19, slice or normal";
        parsed.ok_or_else(|| BadValue { value: value.to_owned(), expected })
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => formatter.write_str("auto"),
            Self::Fifo(level) => write!(formatter, "fifo:{level}"),
            Self::Nice(level) => write!(formatter, "nice:{level}"),
            Self::Slice => formatter.write_str("slice"),
            Self::Normal => formatter.write_str("normal"),
        }
    }
}

impl FromStr for SyncDecompress {
    type Err = BadValue;

    fn from_str(value: &str) -> Result<Self, BadValue> {
        Ok(match value {
            "auto" => Self::Auto,
            "always" => Self::Always,
            "never" => Self::Never,
            _ => return Err(BadValue { value: value.to_owned(), expected: "auto, always or never" }),
        })
    }
}

impl fmt::Display for SyncDecompress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl FromStr for ReadaheadAlloc {
    type Err = BadValue;

    fn from_str(value: &str) -> Result<Self, BadValue> {
        Ok(match value {
            "best-effort" => Self::BestEffort,
            "wait" => Self::Wait,
            _ => return Err(BadValue { value: value.to_owned(), expected: "best-effort or wait" }),
        })
    }
}

impl fmt::Display for ReadaheadAlloc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::BestEffort => "best-effort",
            Self::Wait => "wait",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_follow_the_available_memory() {
        for (memory_bytes, cache_bytes, reserved_pages, block_count) in [
            (u64::MAX, 64 << 20, 1024, 1024),
            (512 << 20, 64 << 20, 1024, 1024),
            (128 << 20, 16 << 20, 512, 256),
            (40 << 20, 5 << 20, 160, 80),
            (1 << 20, 1 << 17, 64, 2),
            (0, 0, 64, 1),
        ] {
            let options = EngineOptions::for_memory(memory_bytes);
            assert!(options.decoder_bytes <= memory_bytes / 32 && options.read_bytes <= memory_bytes / 32);
            let expected = EngineOptions {
                cache_bytes,
                cache_growth_bytes: (memory_bytes / 8).min(2 << 30).saturating_sub(64 << 20),
                reserved_pages,
                metadata_cache: MetadataCacheDesign::Sharded { block_count },
                decoder_bytes: options.decoder_bytes,
                read_bytes: options.read_bytes,
                ..EngineOptions::default()
            };
            assert_eq!(options, expected, "{memory_bytes}");
        }
    }

    #[test]
    fn option_values_round_trip() {
        for value in ["auto", "fifo:1", "fifo:99", "nice:-20", "nice:19", "slice", "normal"] {
            assert_eq!(value.parse::<Priority>().expect("a priority").to_string(), value);
        }
        assert_eq!("fifo".parse(), Ok(Priority::Fifo(1)));
        assert_eq!("nice".parse(), Ok(Priority::Nice(-20)));
        for value in ["fifo:0", "fifo:100", "nice:20", "nice:-21", "normal:1", "", "rr"] {
            assert!(value.parse::<Priority>().is_err(), "{value}");
        }
        for value in ["per-cpu", "shared", "inline"] {
            assert_eq!(value.parse::<WorkerMode>().expect("a mode").to_string(), value);
        }
        for value in ["1", "1024", "single-lock:8"] {
            assert_eq!(value.parse::<MetadataCacheDesign>().expect("a design").to_string(), value);
        }
        for value in ["0", "", "single-lock", "single-lock:0", "lock:8", "-1", "99999999"] {
            assert!(value.parse::<MetadataCacheDesign>().is_err(), "{value}");
        }
        for value in ["best-effort", "wait"] {
            assert_eq!(value.parse::<ReadaheadAlloc>().expect("a switch").to_string(), value);
        }
        for value in ["all", "none", "sequential", "directory+drop-behind", "directory+rest-of-block"] {
            assert_eq!(value.parse::<PrefetchSet>().expect("a set").to_string(), value);
        }
        for value in ["", "+", "some", "all+none", "sequential+"] {
            assert!(value.parse::<PrefetchSet>().is_err(), "{value}");
        }
        for value in ["auto", "always", "never"] {
            assert_eq!(value.parse::<SyncDecompress>().expect("a switch").to_string(), value);
        }
    }
}
