//! Floe's report about its work for a launch.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::error::ErrorContext;
use crate::{Error, Result};

/// The statistics of one mount over its lifetime: the part of `floe status --json` that the lab needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The latency of each stage of its reads.
    pub latency: Vec<StageAccount>,
    /// The page pool.
    pub page_pool: PageAccount,
    /// The cache of decoded metadata.
    pub metadata_cache: MetadataAccount,
    /// Read-around.
    pub read_around: ReadAroundAccount,
    /// LZ4 blocks.
    pub lz4: Lz4Account,
    /// Fetches and decodes.
    pub work: WorkAccount,
}

/// The latency of one stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAccount {
    /// The name of the stage.
    pub stage: String,
    /// The number of runs.
    pub count: u64,
    /// The sum of all times, in nanoseconds.
    pub total_ns: u64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
    /// The maximum, in nanoseconds.
    pub max_ns: u64,
}

/// The counts of the page pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAccount {
    /// Pages held in reserve.
    pub reserved_pages: u64,
    /// Whether they are locked in memory.
    pub is_locked: bool,
    /// Runs of pages taken from the reserve.
    pub taken: u64,
    /// Runs that the system provided, because the reserve had no room for them.
    pub missed: u64,
    /// Runs for which a thread had to wait for the system because memory was short.
    pub waited: u64,
    /// Runs that read-around requested and did not get.
    pub given_up: u64,
    /// The largest number of reserved pages in use at a time.
    pub high_water_pages: u64,
    /// Pages that the system provided for the block cache before a read needed them.
    pub ahead_pages: u64,
    /// The time to provide these pages, in nanoseconds. No read waited for them.
    pub ahead_ns: u64,
}

/// The counts of the cache of decoded metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataAccount {
    /// Blocks found in the cache.
    pub hits: u64,
    /// Blocks not found.
    pub misses: u64,
    /// How often a thread slept, for another thread's block or for room.
    pub joins: u64,
    /// Threads woken by releases.
    pub wakes: u64,
    /// How often a thread released a block that it had made, waited for or found.
    pub releases: u64,
}

/// The counts of read-around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAroundAccount {
    /// Blocks decoded before a read requested them.
    pub ahead_blocks: u64,
    /// Those that a read requested later.
    pub used_blocks: u64,
    /// Those that left the cache unused.
    pub wasted_blocks: u64,
    /// Blocks left to a later demand read, because read-around would have had to wait for their pages.
    pub given_up_blocks: u64,
    /// Bytes stored in the kernel's page cache that no read had requested.
    pub stored_bytes: u64,
}

/// The scratch memory of LZ4 blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lz4Account {
    /// Blocks decoded.
    pub decodes: u64,
    /// Scratch pages that they needed in total.
    pub temporary_pages: u64,
    /// The largest number of scratch pages of one block.
    pub temporary_pages_max: u64,
}

/// Fetches and decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkAccount {
    /// Blocks decoded.
    pub decodes: u64,
    /// Decoded bytes.
    pub decoded_bytes: u64,
    /// Reads from the image.
    pub fetches: u64,
    /// Bytes fetched.
    pub fetched_bytes: u64,
}

impl Account {
    /// Asks for the statistics of a mount.
    pub(crate) fn ask(floe: &Path, directory: &Path) -> Result<Self> {
        let output = Command::new(floe).args(["status", "--json"]).arg(directory).output();
        let output = output.context(|| "cannot run floe status".to_owned())?;
        if !output.status.success() {
            return Err(Error::new(format!("no statistics: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Error::new(format!("cannot parse Floe's statistics: {error}")))
    }

    /// The statistics of one stage.
    pub fn stage(&self, name: &str) -> Option<&StageAccount> {
        self.latency.iter().find(|stage| stage.stage == name)
    }
}
