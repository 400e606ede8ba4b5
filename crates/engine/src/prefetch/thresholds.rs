//! The thresholds and budgets of prefetch. The controller decides by them.

use std::time::Duration;

use crate::metrics::moving_share::MovingShare;

/// Prefetched bytes that were not used yet may take one part in this many of the block cache.
pub(crate) const BUDGET_PART: u64 = 4;

/// The maximum number of waiting work items; further ones are dropped.
pub(crate) const WAITING_MAX: usize = 64;

/// The share of used bytes of a kind is a moving average over this many bytes that were used or wasted.
pub(crate) const JUDGED_BYTES: u64 = 1 << 20;

/// The smallest windows of sequential and of directory readahead in bytes, and the largest of either over a near source.
pub(crate) const FILE_WINDOW_MIN: u64 = 128 << 10;
pub(crate) const DIRECTORY_WINDOW_MIN: u64 = 256 << 10;
pub(crate) const WINDOW_MAX: u64 = 2 << 20;

/// While CPUs are short, the largest window of directory readahead over a near source is divided by this. While memory is short,
/// all windows have their smallest size.
pub(crate) const SHORT_CPU_PART: u64 = 4;

/// A source with at least this latency is far. Its windows grow to the bytes that it transfers during the latency, up to this
/// maximum.
pub(crate) const FAR_LATENCY: Duration = Duration::from_millis(2);
pub(crate) const FAR_WINDOW_MAX: u64 = 8 << 20;

/// A read of the source that took less time did not wait.
pub(crate) const WAITED_MIN: Duration = Duration::from_micros(50);

/// Reads of at least this size measure the transfer rate of the source. In picoseconds per byte: the initial estimate (100
/// MB/s) and the smallest (2 GB/s).
pub(crate) const TRANSFER_BYTES_MIN: usize = 64 << 10;
pub(crate) const TRANSFER_PS_INITIAL: u64 = 10_000;
pub(crate) const TRANSFER_PS_MIN: u64 = 500;

/// Sequential: the number of consecutive reads that makes a reader sequential, and how far reads may be out of order, in
/// bytes.
pub(crate) const RUN_MIN: u32 = 2;
pub(crate) const FILE_DISORDER_BYTES: u64 = 1 << 20;

/// Sequential: over a far source, the first read of a file makes a reader sequential if it has at least this many bytes, because
/// only the kernel's readahead reads as much.
pub(crate) const FAR_BEGUN_BYTES_MIN: u64 = 128 << 10;

/// Sequential: the number of bytes that are decoded ahead before the position of the reader is checked again.
pub(crate) const AHEAD_STEP_BYTES: usize = 256 << 10;

/// Directory: files are prefetched if at least this share of the signs indicates a walk. The share is a moving average over
/// this many signs.
pub(crate) const WALK_SHARE_MIN: u32 = MovingShare::WHOLE / 8 * 5;
pub(crate) const WALK_SIGNS: u32 = 16;

/// Directory: how far reads may be out of the order of the directory, in files, because several threads may share a walk.
pub(crate) const WALK_DISORDER: usize = 4;

/// Directory: a file that was read counts as a sign for a walk only if it is among the last this many files read.
pub(crate) const WALK_RECENT_READS: u32 = 32;

/// Directory: the maximum number of files in a window, and the maximum size of a file in bytes. In larger files, the kernel
/// reads ahead.
pub(crate) const FILES_MAX: usize = 256;
pub(crate) const FILE_BYTES_MAX: u64 = 512 << 10;

/// Directory: every batch of at least this many files has a marker; of the smaller batches, one in this many has one.
pub(crate) const MARKER_FILES: usize = 4;
pub(crate) const MARKER_BATCHES: u32 = 4;

/// Directory: the maximum number of batches that are remembered until they are known to be used.
pub(crate) const BATCHES_MAX: usize = 64;

/// Fault-around: reads of a window are near each other if at most about this many other reads lie between them in time.
pub(crate) const NEAR_READS: u64 = 1 << 12;

/// Fault-around: the share of reads near others is a moving average over about this many reads.
pub(crate) const DENSITY_READS: u32 = 64;

/// Fault-around: windows are requested if at least this share of the reads is near others. The transfer of a window takes
/// as long as one and a half waits for the device, so it pays if a window is read from at least two and a half times.
pub(crate) const DENSE_SHARE_MIN: u32 = MovingShare::WHOLE / 5 * 3;

/// Fault-around: the size in bytes of the windows for which density is measured while fault-around is off.
pub(crate) const WATCHED_BYTES: u64 = 128 << 10;

/// Rest of block: the minimum decode time for pushing the rest soon, because copying takes a fraction of it, and for pushing it
/// even while reads are scattered.
pub(crate) const PUSHED_SOON_DECODE: Duration = Duration::from_micros(25);
pub(crate) const PUSHED_ALWAYS_DECODE: Duration = Duration::from_micros(100);

/// Rest of block: nothing is pushed after the first small read of a file while less than this share of small reads were in files
/// that had been read from before. The second number is the number of further reads after which a read is forgotten.
pub(crate) const READ_AGAIN_SHARE_MIN: u32 = MovingShare::WHOLE / 4;
pub(crate) const FILE_MEMORY_READS: u64 = 1 << 14;

/// Rest of block: the maximum size in bytes of reads that have it pushed even if the block was decoded before. Larger reads
/// come from readahead, which continues anyway.
pub(crate) const SMALL_READ_BYTES_MAX: u64 = 32 << 10;

/// Rest of block: plain bytes have no block, and the rest of a small block is small. An aligned cluster of this many bytes of
/// a file is therefore pushed after this many small reads in it. The third number is the maximum number of other small reads
/// between them; random reads of a few gigabytes reach a cluster again within that many reads.
pub(crate) const CLUSTER_BYTES: u64 = 128 << 10;
pub(crate) const CLUSTER_READS: u64 = 2;
pub(crate) const CLUSTER_MEMORY_READS: u64 = 1 << 15;

/// Rest of block: the maximum decoded size in bytes of the blocks in a cluster, and the maximum time to decode all of it.
pub(crate) const CLUSTER_BLOCK_BYTES_MAX: u64 = 32 << 10;
pub(crate) const CLUSTER_DECODE_MAX: Duration = Duration::from_micros(200);

/// Rest of block: where reads have clusters, the rest of a block is pushed by itself only if the file has at least this many
/// bytes in the block. A few pages are not worth a work item.
pub(crate) const RESTED_BYTES_MIN: u64 = 16 << 10;

/// Drop-behind: a region counts as decoded if at most one part in this many of its bytes was not read. Bytes between the
/// blocks of files are never read.
pub(crate) const DECODED_GAP_PART: u64 = 8;

/// Drop-behind: the number of decoded regions that stay in the page cache, for readers that come a little later, and because
/// the kernel does not drop pages that a CPU has just touched.
pub(crate) const DECODED_REGIONS_KEPT: usize = 4;

/// Launch: the number of bytes of a recorded launch that are read and pushed at a time.
pub(crate) const LAUNCH_STEP_BYTES: u64 = 256 << 10;

/// Launch: the same for whole files. A sink may refuse the last page of a file unless all of the file is pushed with one call.
pub(crate) const LAUNCH_FILE_STEP_BYTES: u64 = 1 << 20;
