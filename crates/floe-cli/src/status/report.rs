//! What is told of a mount.
//!
//! This is also the JSON of `floe status --json`: fields may be added, but those that are there keep their names and
//! their meaning as long as [`SCHEMA`] is the same.

use std::collections::BTreeMap;

use floe::remote::ImageCounts;
use serde::{Deserialize, Serialize};

use crate::{front::FrontReport, mount_options::ShownOption};

/// The version of the fields.
pub(crate) const SCHEMA: u32 = 2;

/// What is told of a mount. Counts are since it was mounted.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    pub(crate) version: String,
    pub(crate) process: u32,
    pub(crate) uptime_seconds: f64,
    pub(crate) mountpoint: String,
    /// The device number of the mount's files: "0:57".
    pub(crate) device: String,
    pub(crate) image: ImageReport,
    /// What stands between the image and its readers.
    #[serde(default)]
    pub(crate) front: FrontReport,
    pub(crate) options: Vec<ShownOption>,
    /// Where the image is, if it is somewhere else, and what was fetched.
    #[serde(default)]
    pub(crate) remote: Option<RemoteReport>,
    /// What the kernel enforces on the process.
    #[serde(default)]
    pub(crate) sandbox: SandboxReport,
    pub(crate) threads: Vec<ThreadReport>,
    /// How often real-time throttling kept any thread from running.
    pub(crate) real_time_throttled: u64,
    pub(crate) page_pool: PagePoolReport,
    pub(crate) block_cache: BlockCacheReport,
    /// The dictionaries and windows of decoders.
    pub(crate) decoders: BudgetReport,
    /// What reads give that left the thread that took them; those that wait for room are counted as waits.
    pub(crate) read_results: BudgetReport,
    /// Stored bytes of such reads, and the blocks that are decoded for them.
    pub(crate) read_blocks: BudgetReport,
    /// Decoded metadata blocks.
    pub(crate) metadata_cache: MetadataCacheReport,
    /// Metadata as it stands in the image.
    pub(crate) stored_metadata_cache: MetadataCacheReport,
    pub(crate) read_around: ReadAroundReport,
    pub(crate) lz4: Lz4Report,
    pub(crate) work: WorkReport,
    /// Requests of the kernel by kind.
    pub(crate) requests: BTreeMap<String, u64>,
    /// Requests that failed because of the image, its source or memory, by reason.
    pub(crate) faults: BTreeMap<String, u64>,
    /// How long the stages of a read took, in the order of a read.
    pub(crate) latency: Vec<LatencyReport>,
}

/// What the kernel enforces on the process that serves the mount: each is `enforced`, `unavailable` or `off`.
#[derive(Clone, Serialize, Deserialize, Debug, Default)]
pub(crate) struct SandboxReport {
    pub(crate) landlock: String,
    /// The version of the kernel's Landlock; 0 where it has none.
    pub(crate) landlock_abi: u32,
    pub(crate) seccomp: String,
    pub(crate) no_new_privs: String,
    /// The capabilities that the process has.
    pub(crate) capabilities: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ImageReport {
    pub(crate) path: String,
    pub(crate) format: String,
    pub(crate) offset_bytes: u64,
    pub(crate) devices: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct RemoteReport {
    /// The URL, with digests in the place of tags and without credentials.
    pub(crate) name: String,
    pub(crate) len_bytes: u64,
    /// The root that bytes are verified against; none: they are not verified.
    pub(crate) verified_by: Option<String>,
    /// None: the process that fetches has ended.
    pub(crate) counts: Option<ImageCounts>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ThreadReport {
    pub(crate) name: String,
    /// The CPU that the thread is bound to.
    pub(crate) cpu: Option<usize>,
    pub(crate) priority_asked: String,
    pub(crate) priority_got: String,
    pub(crate) tasks: u64,
    /// How often it gave its real-time priority up because it had worked too long.
    pub(crate) yielded: u64,
    pub(crate) throttled: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct PagePoolReport {
    pub(crate) reserved_pages: u64,
    pub(crate) is_locked: bool,
    pub(crate) used_pages: u64,
    pub(crate) high_water_pages: u64,
    pub(crate) taken: u64,
    pub(crate) missed: u64,
    pub(crate) waited: u64,
    pub(crate) given_up: u64,
    /// Pages that the block cache was given before a read wanted them.
    pub(crate) ahead_pages: u64,
    /// How long the operating system took for those.
    pub(crate) ahead_ns: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct BlockCacheReport {
    pub(crate) budget_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) joins: u64,
    pub(crate) evictions: u64,
    /// Blocks that went into the spill file.
    pub(crate) spill_file_blocks: u64,
    pub(crate) spill_file_bytes: u64,
    /// Reads that found their block there.
    pub(crate) spill_file_hits: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct BudgetReport {
    pub(crate) budget_bytes: u64,
    pub(crate) used_bytes: u64,
    /// The most that was in use at one time.
    pub(crate) used_bytes_max: u64,
    pub(crate) waits: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct MetadataCacheReport {
    /// None where the number of the values is bounded, not their size.
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) used_bytes: u64,
    pub(crate) hits: u64,
    /// Look-ups that had to decode or to fetch.
    pub(crate) misses: u64,
    /// Look-ups that slept until another had the value.
    pub(crate) joins: u64,
    pub(crate) evictions: u64,
    /// Times that a thread let go of a value that it made, waited for or found.
    pub(crate) releases: u64,
    /// Threads woken by that.
    pub(crate) wakes: u64,
    pub(crate) wakes_per_release: f64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct ReadAroundReport {
    /// Blocks decoded before anybody asked for them.
    pub(crate) ahead_blocks: u64,
    pub(crate) used_blocks: u64,
    pub(crate) wasted_blocks: u64,
    pub(crate) given_up_blocks: u64,
    pub(crate) cancelled_blocks: u64,
    pub(crate) dropped: u64,
    /// Bytes given to the kernel's page cache.
    pub(crate) stored_bytes: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct Lz4Report {
    pub(crate) decodes: u64,
    pub(crate) window_bytes_max: u64,
    pub(crate) temporary_pages: u64,
    /// The most that one decode needed.
    pub(crate) temporary_pages_max: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct WorkReport {
    pub(crate) outstanding: u64,
    pub(crate) outstanding_max: u64,
    pub(crate) fetches: u64,
    pub(crate) fetched_bytes: u64,
    pub(crate) decodes: u64,
    pub(crate) decoded_bytes: u64,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct LatencyReport {
    /// queue_wait, pages, fetch, decode, reply, or read for all of it.
    pub(crate) stage: String,
    pub(crate) count: u64,
    pub(crate) total_ns: u64,
    pub(crate) mean_ns: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p999_ns: u64,
    pub(crate) max_ns: u64,
    /// How many were no longer than each bound.
    pub(crate) buckets: Vec<BucketReport>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
pub(crate) struct BucketReport {
    pub(crate) up_to_ns: u64,
    pub(crate) count: u64,
}
