//! What Floe says that it has done for a launch.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Doing;
use crate::{Error, Result};

/// The account of one mount, from its beginning to its end: what Floe writes with `-o account=FILE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// How long the stages of its reads took, by name.
    pub stages: BTreeMap<String, StageAccount>,
    /// The page pool.
    pub pages: PageAccount,
    /// The cache of decoded metadata.
    pub metadata: MetadataAccount,
    /// Blocks decoded.
    pub decodes: u64,
    /// Bytes that they gave.
    pub decoded_bytes: u64,
    /// Reads from the image.
    pub fetches: u64,
    /// Bytes that they brought.
    pub fetched_bytes: u64,
}

/// How long one stage took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAccount {
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
    pub reserved: u64,
    /// Whether they are locked in memory.
    pub locked: bool,
    /// Runs of pages taken from the reserve.
    pub taken: u64,
    /// Runs for which it had no room, so that the system gave them.
    pub missed: u64,
    /// Runs that read-around went without.
    pub given_up: u64,
    /// The most reserved pages in use at one time.
    pub high_water: u64,
}

/// What the cache of decoded metadata did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataAccount {
    /// Blocks that were there.
    pub hits: u64,
    /// Blocks that were not.
    pub misses: u64,
    /// Times that a thread slept, for another's block or for room.
    pub waits: u64,
    /// Threads woken by releases.
    pub wakes: u64,
    /// Times that a thread let go of a block that it made, waited for or found.
    pub releases: u64,
}

impl Account {
    /// Reads what a mount that has ended has written.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).doing(|| "Floe has written no account of what it did".to_owned())?;
        serde_json::from_slice(&text).map_err(|error| Error::new(format!("Floe's account of what it did: {error}")))
    }

    /// One stage; nothing if it never ran.
    pub fn stage(&self, name: &str) -> StageAccount {
        self.stages.get(name).copied().unwrap_or_default()
    }
}
