//! The size limit of the cache, which all processes share.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use floe_sync::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    BootId, DIGEST_BYTES, Digest,
    counters::Counter,
    locks_sys::{Exclusion, FileLock},
    sweep::{Hand, allocated_bytes, sweep},
    trusted_directory::TrustedDirectory,
    trusted_path::Missing,
};

/// The bytes of the state file that serve as locks: one for its content, one for evicting, and one to try whether locks work.
const CONTENT_BYTE: u64 = 0;
const EVICTION_BYTE: u64 = 1;
const PROBE_BYTE: u64 = 1 << 41;

/// How long a process waits for the state, or for another process's eviction.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pause after an eviction that freed too little, in milliseconds.
const FRUITLESS_PAUSE_MS: u64 = 1000;

/// An eviction frees this part of the limit beyond what is needed, as a negative power of two: a sixteenth.
const SLACK_LOG2: u32 = 4;

/// The size of the state in bytes: the bytes in use, the hand of the clock (section and object), and a checksum of them.
const STATE_BYTES: usize = 8 + 8 + DIGEST_BYTES + 8;

/// The size limit of the cache. A process reserves bytes before it fetches them. At the limit, it evicts first. An eviction
/// measures the disk, which does not show the bytes that are reserved but not yet written. It adds those of its own process;
/// other processes can exceed the limit by theirs.
#[derive(Debug)]
pub(crate) struct Budget {
    root: Arc<TrustedDirectory>,
    size_bytes_max: u64,
    boot: BootId,
    state: Arc<File>,
    /// File locks do not exclude threads of one process, so these need a mutex.
    content: Mutex<()>,
    eviction: Mutex<()>,
    opened: Instant,
    fruitless_until_ms: AtomicU64,
    /// The bytes that this process has reserved and not yet written.
    pending_bytes: AtomicU64,
    pub(crate) evicted_chunks: Counter,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    used_bytes: u64,
    hand: Hand,
}

impl Budget {
    pub(crate) fn open(root: Arc<TrustedDirectory>, size_bytes_max: u64, boot: BootId) -> io::Result<Self> {
        let state = root.change_file("state", Missing::Created)?;
        Ok(Self {
            root,
            size_bytes_max,
            boot,
            state: Arc::new(state),
            content: Mutex::default(),
            eviction: Mutex::default(),
            opened: Instant::now(),
            fruitless_until_ms: AtomicU64::new(0),
            pending_bytes: AtomicU64::new(0),
            evicted_chunks: Counter::default(),
        })
    }

    /// Checks that the file system supports locks.
    pub(crate) fn check_locks(&self) -> io::Result<()> {
        FileLock::try_new(&self.state, PROBE_BYTE..PROBE_BYTE + 1, Exclusion::Shared).map(drop)
    }

    /// Reserves `bytes` and evicts if necessary. Returns `false` if the space is not available now. If it is,
    /// [`Budget::settle`] must follow.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<bool> {
        if self.try_reserve(bytes)? {
            return Ok(true);
        }
        if self.pending_bytes.load(Ordering::Relaxed).saturating_add(bytes) > self.size_bytes_max {
            // No eviction makes room for it.
            return Ok(false);
        }
        let now_ms = self.opened.elapsed().as_millis() as u64;
        if now_ms < self.fruitless_until_ms.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.evict_for(bytes)?;
        let is_reserved = self.try_reserve(bytes)?;
        if !is_reserved {
            self.fruitless_until_ms.store(now_ms + FRUITLESS_PAUSE_MS, Ordering::Relaxed);
        }
        Ok(is_reserved)
    }

    /// Ends a reservation of `reserved` bytes, of which `unused` were not written.
    pub(crate) fn settle(&self, reserved: u64, unused: u64) {
        self.pending_bytes.fetch_sub(reserved, Ordering::Relaxed);
        if unused > 0 {
            let _ = self.change(|state| state.used_bytes = state.used_bytes.saturating_sub(unused));
        }
    }

    /// Evicts until at most `goal_bytes` are in use, or nothing more can be evicted. Returns the bytes in use.
    pub(crate) fn shrink_to(&self, goal_bytes: u64) -> io::Result<u64> {
        let _alone = self.eviction.lock();
        let _lock =
            FileLock::wait(&self.state, EVICTION_BYTE..EVICTION_BYTE + 1, Exclusion::Exclusive, PATIENCE, || false)?;
        self.shrink(goal_bytes)
    }

    fn try_reserve(&self, bytes: u64) -> io::Result<bool> {
        let mut is_reserved = false;
        self.change(|state| {
            let used_bytes = state.used_bytes.saturating_add(bytes);
            is_reserved = used_bytes <= self.size_bytes_max;
            if is_reserved {
                state.used_bytes = used_bytes;
                self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        })?;
        Ok(is_reserved)
    }

    fn evict_for(&self, bytes: u64) -> io::Result<()> {
        let _alone = self.eviction.lock();
        let lock =
            FileLock::wait(&self.state, EVICTION_BYTE..EVICTION_BYTE + 1, Exclusion::Exclusive, PATIENCE, || false)?;
        let is_needed = self.read().is_none_or(|state| state.used_bytes.saturating_add(bytes) > self.size_bytes_max);
        if lock.is_some() && is_needed {
            let slack = (self.size_bytes_max >> SLACK_LOG2).max(bytes);
            self.shrink(self.size_bytes_max.saturating_sub(slack))?;
        }
        Ok(())
    }

    /// Like [`Budget::shrink_to`], for a caller that holds the eviction lock.
    fn shrink(&self, goal_bytes: u64) -> io::Result<u64> {
        let mut pending_bytes = 0;
        let before = self.change(|_| pending_bytes = self.pending_bytes.load(Ordering::Relaxed))?;
        // Bytes that are written meanwhile count twice until the next eviction.
        let used_bytes = allocated_bytes(&self.root).saturating_add(pending_bytes);
        let excess = used_bytes.saturating_sub(goal_bytes);
        let hand = before.map_or(Hand::START, |state| state.hand);
        let swept = if excess > 0 { sweep(&self.root, self.boot, hand, excess) } else { Default::default() };
        self.evicted_chunks.add(swept.chunks);
        let left = used_bytes.saturating_sub(swept.bytes);
        self.change(|state| {
            // Bytes that were reserved during the eviction stay reserved.
            let reserved = before.map_or(0, |before| state.used_bytes.saturating_sub(before.used_bytes));
            *state = State { used_bytes: left.saturating_add(reserved), hand: swept.hand.unwrap_or(hand) };
        })?;
        Ok(left)
    }

    /// Changes the state and returns its previous value. An invalid state is created anew. Returns `None` if the lock
    /// is not available, for example because its holder was stopped.
    fn change(&self, change: impl FnOnce(&mut State)) -> io::Result<Option<State>> {
        let _alone = self.content.lock();
        let lock =
            FileLock::wait(&self.state, CONTENT_BYTE..CONTENT_BYTE + 1, Exclusion::Exclusive, PATIENCE, || false)?;
        if lock.is_none() {
            return Ok(None);
        }
        let before =
            self.read().unwrap_or_else(|| State { used_bytes: allocated_bytes(&self.root), hand: Hand::START });
        let mut after = before;
        change(&mut after);
        self.state.write_all_at(&self.encode(&after), 0)?;
        Ok(Some(before))
    }

    fn read(&self) -> Option<State> {
        let mut bytes = [0; STATE_BYTES];
        self.state.read_exact_at(&mut bytes, 0).ok()?;
        let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let object = Digest(bytes[16..16 + DIGEST_BYTES].try_into().ok()?);
        let state = State { used_bytes: word(0), hand: Hand { object, section: word(8) } };
        (self.encode(&state) == bytes).then_some(state)
    }

    /// The checksum includes the boot, so the state is created anew after a power loss.
    fn encode(&self, state: &State) -> [u8; STATE_BYTES] {
        let mut bytes = [0; STATE_BYTES];
        bytes[..8].copy_from_slice(&state.used_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&state.hand.section.to_le_bytes());
        bytes[16..16 + DIGEST_BYTES].copy_from_slice(&state.hand.object.0);
        let sum = xxh3_64_with_seed(&bytes[..16 + DIGEST_BYTES], self.boot.to_bits());
        bytes[16 + DIGEST_BYTES..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_count_through_evictions_until_they_are_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = TrustedDirectory::create(folder.path(), "v2").expect("a directory");
        let budget = Budget::open(root.into(), 1000, BootId::of("a boot")).expect("it opens");
        let reserve = |bytes| budget.reserve(bytes).expect("the state can be written");
        assert!(!reserve(1001), "more than the limit");
        assert!(reserve(600));
        budget.shrink_to(0).expect("evicted");
        assert!(!reserve(600), "the first reservation is not written yet");
        assert!(reserve(400));
        budget.settle(600, 600);
        assert!(reserve(600), "the first reservation was released");
    }
}
