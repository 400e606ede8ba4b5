//! Every threshold and budget of prefetch. The controller decides by them; detectors only report what they see.

use std::time::Duration;

/// The part of the block cache that prefetched bytes may take which nobody has used yet.
pub(crate) const BUDGET_PART: u64 = 4;

/// The most pieces of work that wait at one time; more are dropped.
pub(crate) const WAITING_MAX: usize = 64;

/// Shares are counted in parts of this.
pub(crate) const WHOLE: u32 = 1 << 16;

/// The share of used bytes of a kind is a moving average over so many bytes that were used or wasted.
pub(crate) const JUDGED_BYTES: u64 = 1 << 20;

/// The initial window of sequential and of directory readahead, in bytes. Windows over a near source grow to `WINDOW_MAX` at
/// most.
pub(crate) const FILE_WINDOW_MIN: u64 = 128 << 10;
pub(crate) const DIRECTORY_WINDOW_MIN: u64 = 256 << 10;
pub(crate) const WINDOW_MAX: u64 = 2 << 20;

/// While CPUs are short, windows of a near source have this part of that; while memory is, all have the smallest size.
pub(crate) const SHORT_CPU_PART: u64 = 4;

/// A source is far from this latency on: then a miss costs so much that windows grow beyond those of a disk, up to what the
/// source transfers in that time, and no further than this.
pub(crate) const FAR_LATENCY: Duration = Duration::from_millis(2);
pub(crate) const FAR_WINDOW_MAX: u64 = 8 << 20;

/// A read of the source that took less did not wait.
pub(crate) const WAITED_MIN: Duration = Duration::from_micros(50);

/// Reads from this size on tell the transfer rate of the source, which is taken to be 100 MB/s until then, in picoseconds for
/// each byte, and never to be more than 2 GB/s.
pub(crate) const TRANSFER_BYTES_MIN: usize = 64 << 10;
pub(crate) const TRANSFER_PS_INITIAL: u64 = 10_000;
pub(crate) const TRANSFER_PS_MIN: u64 = 500;

/// Sequential: so many reads must follow one another, in an order that differs so much, in bytes, from that of the file.
pub(crate) const RUN_MIN: u32 = 2;
pub(crate) const FILE_DISORDER_BYTES: u64 = 1 << 20;

/// Sequential: so many bytes are decoded ahead before it is looked where the reader is.
pub(crate) const AHEAD_STEP_BYTES: usize = 256 << 10;

/// Directory: the share of signs for a walk from which on files are prefetched, over so many signs.
pub(crate) const WALK_SHARE_MIN: u32 = WHOLE / 8 * 5;
pub(crate) const WALK_SIGNS: u32 = 16;

/// Directory: several threads that share a walk read files in an order that differs so much from that of the directory.
pub(crate) const WALK_DISORDER: usize = 4;

/// Directory: only files that were among the last so many whose beginnings were read tell of a walk.
pub(crate) const WALK_RECENT_READS: u32 = 32;

/// Directory: the most files that are prefetched at one time, and the largest; the kernel reads ahead in larger ones.
pub(crate) const FILES_MAX: usize = 128;
pub(crate) const FILE_BYTES_MAX: u64 = 512 << 10;

/// Directory: a batch of at least so many files has a milestone; of the others, every so many have one.
pub(crate) const MILESTONE_FILES: usize = 4;
pub(crate) const MILESTONE_BATCHES: u32 = 4;

/// Directory: how many batches are remembered that nobody is known to have used.
pub(crate) const BATCHES_MAX: usize = 64;

/// Fault-around: reads are near each other if no more than about so many others lie between them.
pub(crate) const NEAR_READS: u64 = 1 << 12;

/// Fault-around: the share of reads near others is a moving average over about so many.
pub(crate) const DENSITY_READS: u32 = 64;

/// Fault-around: from this share on a window is worth its transfer. That takes as long as one and a half waits for the
/// device, so a window must be read from two and a half times.
pub(crate) const DENSE_SHARE_MIN: u32 = WHOLE / 5 * 3;

/// Fault-around: density is watched by windows of so many bytes where none are brought.
pub(crate) const WATCHED_BYTES: u64 = 128 << 10;

/// Rest of block: from so much decoding on it is stored soon, since copying takes a fraction of that; and from so much on
/// even while reads are scattered.
pub(crate) const STORED_SOON_DECODE: Duration = Duration::from_micros(25);
pub(crate) const STORED_ALWAYS_DECODE: Duration = Duration::from_micros(100);

/// Rest of block: reads of so many bytes have it stored also where the block was decoded before. Larger ones read on anyway.
pub(crate) const SMALL_READ_BYTES_MAX: u64 = 32 << 10;

/// Rest of block: plain bytes have no block. The rest of so many bytes of a file is stored after so many small reads there.
pub(crate) const CLUSTER_BYTES: u64 = 64 << 10;
pub(crate) const CLUSTER_READS: u64 = 2;

/// Drop-behind: the part of a region of a source that may be missing when it counts as decoded. What lies between the blocks
/// of a file is never read.
pub(crate) const DECODED_GAP_PART: u64 = 8;

/// Drop-behind: how many decoded regions stay, for readers that come a little later, and because the kernel drops only
/// pages that no CPU has just touched.
pub(crate) const DECODED_REGIONS_KEPT: usize = 4;
