//! What Floe says that it has done for a launch.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Doing;
use crate::{Error, Result};

/// The account of one mount, from its beginning to its end: what the lab needs of that which Floe writes with
/// `-o account=FILE`, and which is what `floe status --json` says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// How long the stages of its reads took.
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

/// How long one stage took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAccount {
    /// Its name.
    pub stage: String,
    /// How often it ran.
    pub count: u64,
    /// All times together, in nanoseconds.
    pub total_ns: u64,
    /// Half of the times are no longer, in nanoseconds.
    pub p50_ns: u64,
    /// 99 of 100 are no longer, in nanoseconds.
    pub p99_ns: u64,
    /// The longest, in nanoseconds.
    pub max_ns: u64,
}

/// What the page pool did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAccount {
    /// Pages held in reserve.
    pub reserved_pages: u64,
    /// Whether they are locked in memory.
    pub is_locked: bool,
    /// Runs of pages taken from the reserve.
    pub taken: u64,
    /// Runs for which it had no room, so that the system gave them.
    pub missed: u64,
    /// Runs for which the system, short of memory, let a thread wait.
    pub waited: u64,
    /// Runs that read-around went without.
    pub given_up: u64,
    /// The most reserved pages in use at one time.
    pub high_water_pages: u64,
    /// Pages that the system gave for the block cache before a read wanted them.
    pub ahead_pages: u64,
    /// How long it took for those, in nanoseconds; no read waited for it.
    pub ahead_ns: u64,
}

/// What the cache of decoded metadata did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataAccount {
    /// Blocks that were there.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Times that a thread slept, for another's block or for room.
    pub joins: u64,
    /// Threads woken by releases.
    pub wakes: u64,
    /// Times that a thread let go of a block that it made, waited for or found.
    pub releases: u64,
}

/// What read-around did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAroundAccount {
    /// Blocks decoded before anybody asked for them.
    pub ahead_blocks: u64,
    /// Of them, those that somebody asked for later.
    pub used_blocks: u64,
    /// Of them, those that left the cache without having been asked for.
    pub wasted_blocks: u64,
    /// Blocks left to a later demand read, because their pages would have cost waiting.
    pub given_up_blocks: u64,
    /// Bytes given to the kernel's page cache that nobody had asked for.
    pub stored_bytes: u64,
}

/// What LZ4 blocks needed beside their output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lz4Account {
    /// Blocks decoded.
    pub decodes: u64,
    /// Pages that they needed, one after the other.
    pub temporary_pages: u64,
    /// The most pages that one of them needed.
    pub temporary_pages_max: u64,
}

/// What was fetched and decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkAccount {
    /// Blocks decoded.
    pub decodes: u64,
    /// Bytes that they gave.
    pub decoded_bytes: u64,
    /// Reads from the image.
    pub fetches: u64,
    /// Bytes that they brought.
    pub fetched_bytes: u64,
}

impl Account {
    /// Reads what a mount that has ended has written.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).doing(|| "Floe has written no account of what it did".to_owned())?;
        serde_json::from_slice(&text).map_err(|error| Error::new(format!("Floe's account of what it did: {error}")))
    }

    /// One stage.
    pub fn stage(&self, name: &str) -> Option<&StageAccount> {
        self.latency.iter().find(|stage| stage.stage == name)
    }
}
