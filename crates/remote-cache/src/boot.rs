//! Which start of the machine this is.

use std::{
    fs, process,
    time::{SystemTime, UNIX_EPOCH},
};

use xxhash_rust::xxh3::xxh3_64;

/// One start of the machine, from boot to power-off. What was written during it is in the page cache at least.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BootId(u64);

impl BootId {
    /// This one. Where the kernel does not tell, an id that no other process has.
    pub fn current() -> Self {
        fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(
            |_| {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Self::of(&format!("{} {}", process::id(), now.as_nanos()))
            },
            |text| Self::of(text.trim()),
        )
    }

    /// The one that the kernel names so.
    pub fn of(text: &str) -> Self {
        Self(xxh3_64(text.as_bytes()))
    }

    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }
}
