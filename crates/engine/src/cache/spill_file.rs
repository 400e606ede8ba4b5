//! The spill file: decoded blocks for which the block cache has no room.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, IoSliceMut},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use floe_image::{DecodedLen, Error, Place, StoredBlock, metrics};
use floe_sync::{Mutex, MutexGuard};
use rustix::{
    fs::{Mode, OFlags, fstatfs, open},
    io::{Errno, ReadWriteFlags, preadv2},
};

use crate::{
    Blocking,
    cache::{
        cached_block::{CachedBlock, serves},
        key::Key,
    },
};

/// The `statfs` magic numbers of file systems in memory: tmpfs and ramfs.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The spill file takes at most one part in `FREE_PART` of the free bytes of its file system.
const FREE_PART: u64 = 4;

/// A cache on disk for decoded blocks for which the block cache has no room, that many files share, and that are costly
/// to decode. Example: the packed tails of small files, compressed with LZMA, come in blocks of 4 MiB that a thousand
/// files share.
///
/// The blocks are in unnamed files (`O_TMPFILE`), so the kernel's page cache holds them while memory allows, and the
/// disk otherwise. The files contain plain text of an image that other users may not be allowed to read, and they take
/// disk space. Nothing is spilled unless the user asks for it.
///
/// Two files have half of the budget each. When the newer one is full, the older one is dropped. Data is never
/// overwritten, so reads of a block that was found need no lock.
#[derive(Debug)]
pub(crate) struct SpillFile {
    budget_bytes: u64,
    refusal: Option<&'static str>,
    state: Mutex<State>,
    /// Whether nothing was ever stored. Checked before the lock is taken.
    is_empty: AtomicBool,
    stored_blocks: AtomicU64,
    stored_bytes: AtomicU64,
    hits: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// `None` if the directory is not usable or after a write failed.
    directory: Option<File>,
    newer: Option<Half>,
    older: Option<Half>,
}

#[derive(Debug)]
struct Half {
    file: Arc<File>,
    /// The end of the ranges that are reserved.
    end: u64,
    /// The end of the last range that is written.
    written_end: u64,
    blocks: HashMap<Key, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    offset: u64,
    len: usize,
    is_complete: bool,
}

/// A block in the spill file.
#[derive(Clone, Debug)]
pub(crate) struct SpilledBlock {
    file: Arc<File>,
    offset: u64,
    len: usize,
}

metrics! {
    /// Counters of the spill file.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SpillFileCounters {
        /// Blocks written.
        pub stored_blocks: u64 = Counter as blocks,
        /// Decoded bytes of those blocks.
        pub stored_bytes: u64 = Counter as bytes,
        /// Reads that found their block in the file instead of decoding it.
        pub hits: u64 = Counter,
    }
}

impl SpillFile {
    /// Creates a spill file of at most `budget_bytes` in `directory`. If that is impossible, nothing is spilled and
    /// [`refusal`](Self::refusal) returns the reason.
    pub(crate) fn new(budget_bytes: u64, directory: Option<&Path>) -> Self {
        let opened = if budget_bytes == 0 { Ok((None, 0)) } else { usable(directory) };
        let (usable, refusal) = match opened {
            Ok(usable) => (usable, None),
            Err(refusal) => ((None, 0), Some(refusal)),
        };
        let (directory, free_bytes) = usable;
        Self {
            budget_bytes: budget_bytes.min(free_bytes / FREE_PART),
            refusal,
            state: Mutex::new(State { directory, ..State::default() }),
            is_empty: AtomicBool::new(true),
            stored_blocks: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    /// Why nothing is spilled although a budget was given.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        self.refusal
    }

    /// Returns the block if it was spilled.
    pub(crate) fn find(&self, key: &Key, decoded_len: DecodedLen) -> Option<SpilledBlock> {
        if self.is_empty.load(Relaxed) {
            return None;
        }
        let state = self.state();
        let found = [&state.newer, &state.older].into_iter().flatten().find_map(|half| {
            let entry = half.blocks.get(key)?;
            serves(entry.len, entry.is_complete, decoded_len).then(|| SpilledBlock {
                file: Arc::clone(&half.file),
                offset: entry.offset,
                len: entry.len,
            })
        });
        drop(state);
        self.hits.fetch_add(found.is_some().into(), Relaxed);
        found
    }

    /// Spills a block, unless it is there already or too large. A failed write (a full or broken disk) ends spilling
    /// permanently, and so does a file that was truncated: the write would turn the lost blocks into zeros.
    pub(crate) fn store(&self, key: Key, cached: &CachedBlock) {
        let len = cached.bytes().len() as u64;
        let mut state = self.state();
        let holds = |half: &Option<Half>| half.as_ref().is_some_and(|half| half.blocks.contains_key(&key));
        if len > self.budget_bytes / 2 || holds(&state.newer) || holds(&state.older) {
            return;
        }
        if state.newer.as_ref().is_none_or(|half| half.end + len > self.budget_bytes / 2) {
            let file = state.directory.as_ref().and_then(|directory| nameless(directory).ok());
            let Some(file) = file else { return state.directory = None };
            let half = Half { file: Arc::new(file), end: 0, written_end: 0, blocks: HashMap::new() };
            state.older = state.newer.replace(half);
        }
        let Some(half) = &mut state.newer else { return };
        // The range is reserved before the write, and the block becomes visible only after it.
        let (file, offset, written_end) = (Arc::clone(&half.file), half.end, half.written_end);
        half.end += len;
        drop(state);
        let is_whole = file.metadata().is_ok_and(|metadata| metadata.len() >= written_end);
        let is_written = is_whole && file.write_all_at(cached.bytes(), offset).is_ok();
        let state = &mut *self.state();
        if !is_written {
            *state = State::default();
            return;
        }
        let half =
            [&mut state.newer, &mut state.older].into_iter().flatten().find(|half| Arc::ptr_eq(&half.file, &file));
        let Some(half) = half else { return };
        half.written_end = half.written_end.max(offset + len);
        half.blocks.insert(key, Entry { offset, len: len as usize, is_complete: cached.is_complete() });
        self.is_empty.store(false, Relaxed);
        self.stored_blocks.fetch_add(1, Relaxed);
        self.stored_bytes.fetch_add(len, Relaxed);
    }

    /// Forgets a block that could not be read. It may be spilled again.
    pub(crate) fn forget(&self, key: &Key, spilled: &SpilledBlock) {
        let state = &mut *self.state();
        for half in [&mut state.newer, &mut state.older].into_iter().flatten() {
            let is_it = |entry: &Entry| Arc::ptr_eq(&half.file, &spilled.file) && entry.offset == spilled.offset;
            if half.blocks.get(key).is_some_and(is_it) {
                half.blocks.remove(key);
            }
        }
    }

    /// Forgets the blocks of a volume or content. Their bytes stay in the file until it is dropped.
    pub(crate) fn forget_all_of(&self, owner: u64) {
        if self.is_empty.load(Relaxed) {
            return;
        }
        let state = &mut *self.state();
        for half in [&mut state.newer, &mut state.older].into_iter().flatten() {
            half.blocks.retain(|key, _| key.source().owner() != owner);
        }
    }

    /// Closes the files and the directory; nothing is spilled or found from now on.
    pub(crate) fn close(&self) {
        let open = std::mem::take(&mut *self.state());
        // Deleting a file can wait, so no lock is held.
        drop(open);
    }

    pub(crate) fn counters(&self) -> SpillFileCounters {
        SpillFileCounters {
            stored_blocks: self.stored_blocks.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
            hits: self.hits.load(Relaxed),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl SpilledBlock {
    /// Fills `target` with decoded bytes from `skip` on.
    ///
    /// # Errors
    /// The block ends before `target` is full; the disk fails; `WouldBlock` if the bytes are not in the page cache and
    /// `blocking` forbids to wait.
    pub(crate) fn copy(
        &self,
        block: &StoredBlock,
        skip: usize,
        target: &mut [u8],
        blocking: Blocking,
    ) -> floe_image::Result<()> {
        let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
        if skip.checked_add(target.len()).is_none_or(|end| end > self.len) {
            return Err(Error::corrupt("block ends before the data that it should hold", place));
        }
        let failed = |error: io::Error| Error::io(block.device, block.offset, error);
        let offset = self.offset + skip as u64;
        if blocking.is_allowed() {
            return self.file.read_exact_at(target, offset).map_err(failed);
        }
        let wanted = target.len();
        match preadv2(&self.file, &mut [IoSliceMut::new(target)], offset, ReadWriteFlags::NOWAIT) {
            Ok(count) if count == wanted => Ok(()),
            Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => Err(Error::WouldBlock),
            Err(error) => Err(failed(error.into())),
        }
    }
}

/// Opens `directory` if it can hold an unnamed file. Returns it with the free bytes of its file system, or the reason
/// why it cannot be used.
fn usable(directory: Option<&Path>) -> Result<(Option<File>, u64), &'static str> {
    let directory = directory.ok_or("no directory is configured for it")?;
    let opened = open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let directory = File::from(opened.map_err(|_| "its directory cannot be opened")?);
    let statistics = fstatfs(&directory).map_err(|_| "the file system of its directory cannot be queried")?;
    if MEMORY_FILE_SYSTEMS.contains(&(statistics.f_type as u64)) {
        return Err("its directory is in memory, where a larger cache= does the same");
    }
    nameless(&directory).map_err(|_| "the file system of its directory does not support unnamed files")?;
    Ok((Some(directory), statistics.f_bavail.saturating_mul(statistics.f_bsize as u64)))
}

/// Creates an unnamed file, which the kernel deletes with its last user.
fn nameless(directory: &File) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use floe_image::{DecodedLen, DeviceId, Encoding, StoredLen};

    use super::*;
    use crate::{PAGE_BYTES, PageRun, cache::key::SourceNumbers};

    fn block(offset: u64) -> StoredBlock {
        StoredBlock {
            device: DeviceId(0),
            offset,
            stored_len: StoredLen::Known(1),
            decoded_len: DecodedLen::Exact(PAGE_BYTES as u32),
            encoding: Encoding::Stored,
        }
    }

    fn key(offset: u64) -> Key {
        Key::of(SourceNumbers::new(1, 2).id(DeviceId(0)), &block(offset))
    }

    fn find(spill_file: &SpillFile, offset: u64) -> Option<SpilledBlock> {
        spill_file.find(&key(offset), block(offset).decoded_len)
    }

    fn cached(fill: u8) -> CachedBlock {
        let mut pages = PageRun::from_system(1).expect("a page");
        pages.fill(fill);
        CachedBlock::new(pages, PAGE_BYTES, true)
    }

    #[test]
    fn blocks_are_found_until_their_half_is_dropped() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let spill_file = SpillFile::new(4 * PAGE_BYTES as u64, Some(directory));
        if spill_file.refusal().is_some() {
            return floe_testkit::skip::skipped(
                "the file system of the build is in memory, or does not support unnamed files",
            );
        }
        assert!(find(&spill_file, 0).is_none());
        let mut byte = [0];
        for number in 0..20 {
            spill_file.store(key(number), &cached(number as u8));
            let found = find(&spill_file, number).expect("it was stored");
            found.copy(&block(number), 17, &mut byte, Blocking::Allowed).expect("it is there");
            assert_eq!(byte, [number as u8]);
            assert_eq!(find(&spill_file, 0).is_some(), number < 4, "{number}");
        }
        assert_eq!(spill_file.counters().stored_blocks, 20);
        let last = find(&spill_file, 19).expect("it was stored");
        spill_file.forget(&key(18), &last);
        assert!(find(&spill_file, 18).is_some(), "another block could not be read");
        let error = last.copy(&block(19), PAGE_BYTES, &mut byte, Blocking::Allowed).expect_err("it ends there");
        assert!(error.to_string().contains("ends before"), "{error}");
        last.file.set_len(0).expect("ours");
        let error = last.copy(&block(19), 0, &mut byte, Blocking::Allowed).expect_err("the disk lost it");
        assert!(matches!(error, Error::Io { .. }), "{error}");
        spill_file.forget(&key(19), &last);
        assert!(find(&spill_file, 19).is_none());
        spill_file.store(key(19), &cached(19));
        spill_file.forget_all_of(2);
        let again = find(&spill_file, 19).expect("it may be stored again");
        again.copy(&block(19), 0, &mut byte, Blocking::Allowed).expect("in another file");
        spill_file.forget_all_of(1);
        assert!(find(&spill_file, 19).is_none());
        again.file.set_len(0).expect("ours");
        spill_file.store(key(20), &cached(20));
        assert!(find(&spill_file, 19).is_none() && find(&spill_file, 20).is_none(), "that is the end");
    }

    #[test]
    fn unusable_directories_are_refused() {
        for (budget_bytes, directory, is_refused) in [
            (0, Some("/"), false),
            (1 << 30, None, true),
            (1 << 30, Some("/nowhere/at/all"), true),
            (1 << 30, Some("/proc"), true),
        ] {
            let spill_file = SpillFile::new(budget_bytes, directory.map(Path::new));
            spill_file.store(key(0), &cached(1));
            assert!(find(&spill_file, 0).is_none(), "{directory:?}");
            assert_eq!(spill_file.counters(), SpillFileCounters::default());
            assert_eq!(spill_file.refusal().is_some(), is_refused, "{directory:?}");
        }
    }
}
