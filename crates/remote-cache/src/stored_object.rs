//! One object in the cache directory: data, map, and usage notes.

use std::{
    fs::File,
    io::{self, IoSliceMut},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use floe_image::ByteRange;
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::{Errno, ReadWriteFlags, preadv2},
    time::{ClockId, clock_gettime},
};

use crate::{
    BootId, Digest,
    entry::{ENTRY_BYTES, MapEntry},
    key::About,
    layout::{ChunkIndex, ChunkLayout, SectionIndex},
    locks_sys::{Exclusion, FileLock},
    proven::ProvenChunks,
    trusted_directory::TrustedDirectory,
    trusted_path::Missing,
};

/// The byte of the map that every process with the object open has locked. Lower bytes are the locks of chunks.
const OPEN_BYTE: u64 = 1 << 40;

/// How long opening waits for a process that removes the object.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// How often opening retries if the object is removed meanwhile.
const OPEN_ATTEMPTS_MAX: usize = 16;

/// The number of chunks of usual reads, whose entries are read into memory on the stack: 256 KiB.
const USUAL_CHUNKS: usize = 16;

/// How long a mark of use stays valid before it is set again, in nanoseconds.
const MARK_INTERVAL_NS: u64 = 16_000_000_000;

/// The number of bytes of use notes per section: whether it was used since the clock's hand passed, and whether it is
/// pinned.
const USE_BYTES: u64 = 2;

/// One object in the cache directory.
///
/// **Invariant of chunks.** A map entry is written after all bytes of its chunk, and cleared before any of them is
/// removed, both only under the chunk's exclusive lock. A reader reads the entry, then the bytes, then the entry again.
/// If both times the entry was the same (no two entries of a chunk have the same stamp), all bytes were present during
/// the read. A process that dies between two steps leaves an absent chunk, never a wrong one.
#[derive(Debug)]
pub(crate) struct StoredObject {
    id: Digest,
    layout: ChunkLayout,
    boot: BootId,
    data: File,
    map: Arc<File>,
    usage: File,
    proven: ProvenChunks,
    /// Protects the object from removal.
    _open: Option<FileLock>,
}

impl StoredObject {
    /// Opens the object of the cache at `root`, which is created if it is missing, and protects it from removal.
    pub(crate) fn open(root: &TrustedDirectory, about: &About, id: Digest, boot: BootId) -> io::Result<Self> {
        for _ in 0..OPEN_ATTEMPTS_MAX {
            let Some(directory) = found(Self::directory(root, &id, Missing::Created))? else { continue };
            let opened = Self::open_files(&directory, about.layout, id, boot, Missing::Created);
            let Some(mut object) = found(opened)? else { continue };
            let lock =
                FileLock::wait(&object.map, OPEN_BYTE..OPEN_BYTE + 1, Exclusion::Shared, REMOVAL_PATIENCE, || false)?;
            let Some(lock) = lock else { continue };
            let opened = object.map.metadata()?;
            // The directory may have been moved away since it was opened.
            let named = Self::directory(root, &id, Missing::Refused).and_then(|directory| directory.stat("map"));
            let Some(named) = found(named)? else { continue };
            if (opened.dev(), opened.ino()) == (named.st_dev, named.st_ino) {
                object._open = Some(lock);
                about.write(&directory, &id)?;
                return Ok(object);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes keep removing the object from the cache"))
    }

    /// The directory of an object in the cache at `root`.
    pub(crate) fn directory(root: &TrustedDirectory, id: &Digest, missing: Missing) -> io::Result<TrustedDirectory> {
        let name = id.to_string();
        if missing == Missing::Created {
            return root.create_below("objects")?.create_below(&name[..2])?.create_below(&name);
        }
        root.open_below("objects")?.open_below(&name[..2])?.open_below(&name)
    }

    /// Opens the object in `directory` without protecting it from removal.
    pub(crate) fn open_files(
        directory: &TrustedDirectory,
        layout: ChunkLayout,
        id: Digest,
        boot: BootId,
        missing: Missing,
    ) -> io::Result<Self> {
        let open = |name| directory.change_file(name, missing);
        let (map, data, usage) = (Arc::new(open("map")?), open("data")?, open("usage")?);
        Ok(Self { id, layout, boot, data, map, usage, proven: ProvenChunks::new(layout), _open: None })
    }

    pub(crate) const fn layout(&self) -> ChunkLayout {
        self.layout
    }

    /// The entry of a chunk, if the chunk is present. If the map cannot be read, the chunk counts as absent.
    pub(crate) fn look(&self, index: ChunkIndex) -> Option<MapEntry> {
        self.entries(index..index + 1).pop().flatten()
    }

    /// When a use of the chunks was last noted.
    pub(crate) fn used(&self) -> Option<SystemTime> {
        self.usage.metadata().and_then(|metadata| metadata.modified()).ok()
    }

    /// The entries of consecutive chunks; `None` for absent ones.
    pub(crate) fn entries(&self, chunks: Range<ChunkIndex>) -> Vec<Option<MapEntry>> {
        let mut bytes = vec![0; map_bytes(&chunks)];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.map.read_at(&mut bytes[filled..], chunks.start * ENTRY_BYTES as u64 + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0;
        chunks.zip(entries).map(|(index, entry)| MapEntry::decode(entry, &self.id, index)).collect()
    }

    /// Whether each of these chunks is present.
    pub(crate) fn presence(&self, chunks: Range<ChunkIndex>) -> Vec<bool> {
        self.entries(chunks).iter().map(Option::is_some).collect()
    }

    /// Whether the chunk is present and was verified during the current boot.
    pub(crate) fn is_current(&self, index: ChunkIndex) -> bool {
        self.look(index).is_some_and(|entry| self.is_of_this_boot(&entry))
    }

    pub(crate) fn is_of_this_boot(&self, entry: &MapEntry) -> bool {
        entry.boot == self.boot.to_bits()
    }

    /// Reads bytes of consecutive chunks that this process has proven. Returns `false` if one of them is absent, not proven, or
    /// evicted during the read.
    pub(crate) fn read_proven(&self, chunks: Range<ChunkIndex>, offset: u64, output: &mut [u8]) -> bool {
        self.read_how(chunks, offset, output, Wait::Allowed)
    }

    /// Like [`StoredObject::read_proven`], but only from memory.
    pub(crate) fn try_read_at(&self, chunks: Range<ChunkIndex>, offset: u64, output: &mut [u8]) -> bool {
        self.read_how(chunks, offset, output, Wait::Never)
    }

    fn read_how(&self, chunks: Range<ChunkIndex>, offset: u64, output: &mut [u8], wait: Wait) -> bool {
        let (place, len) = (chunks.start * ENTRY_BYTES as u64, map_bytes(&chunks));
        let mut on_stack = [0; 2 * USUAL_CHUNKS * ENTRY_BYTES];
        let mut on_heap;
        let entries = if 2 * len <= on_stack.len() {
            &mut on_stack[..2 * len]
        } else {
            on_heap = vec![0; 2 * len];
            &mut on_heap[..]
        };
        let (before, after) = entries.split_at_mut(len);
        let is_proven = |(index, bytes): (ChunkIndex, &[u8; ENTRY_BYTES])| {
            let entry = MapEntry::decode(bytes, &self.id, index);
            entry.is_some_and(|entry| self.proven.is_proven(index, entry.stamp_ns))
        };
        read_all(&self.map, place, before, wait)
            && chunks.zip(before.as_chunks().0).all(is_proven)
            && read_all(&self.data, offset, output, wait)
            && read_all(&self.map, place, after, wait)
            && before == after
    }

    /// Reads the whole chunk that is present under `entry`; `None` if it is evicted during the read. Does not verify
    /// the bytes.
    pub(crate) fn read_whole(&self, index: ChunkIndex, entry: &MapEntry) -> Option<Bytes> {
        let range = self.layout.range(index);
        let mut bytes = vec![0; usize::try_from(range.len()).ok()?];
        let is_read = read_all(&self.data, range.offset(), &mut bytes, Wait::Allowed);
        (is_read && self.look(index).as_ref() == Some(entry)).then(|| bytes.into())
    }

    /// Proves a chunk that was verified during the current boot, by its checksum, and returns its bytes. Proves its neighbours in
    /// the section with it, so that later readers find them proven and need not wait.
    pub(crate) fn prove(&self, index: ChunkIndex) -> Option<Bytes> {
        let section = self.layout.chunks_of(self.layout.section_of(index));
        let before = self.entries(section.clone());
        let entry_in = |entries: &[Option<MapEntry>], chunk: ChunkIndex| {
            let entry = (*entries.get(usize::try_from(chunk - section.start).ok()?)?)?;
            self.is_of_this_boot(&entry).then_some(entry)
        };
        entry_in(&before, index)?;
        let is_open = |chunk: &ChunkIndex| {
            entry_in(&before, *chunk).is_some_and(|entry| !self.proven.is_proven(*chunk, entry.stamp_ns))
        };
        let start = (section.start..index).rev().take_while(is_open).last().unwrap_or(index);
        let end = (index + 1..section.end).take_while(is_open).last().unwrap_or(index) + 1;
        let run = self.layout.run(start..end);
        let mut bytes = vec![0; usize::try_from(run.len()).ok()?];
        if !read_all(&self.data, run.offset(), &mut bytes, Wait::Allowed) {
            return None;
        }
        let (bytes, after) = (Bytes::from(bytes), self.entries(section.clone()));
        let mut proven = None;
        for chunk in start..end {
            let range = self.layout.range(chunk);
            let from = usize::try_from(range.offset() - run.offset()).ok()?;
            let part = bytes.slice(from..from + usize::try_from(range.len()).ok()?);
            let entry = entry_in(&before, chunk).filter(|entry| entry_in(&after, chunk) == Some(*entry));
            if let Some(entry) = entry.filter(|entry| entry.fits(&part)) {
                self.proven.prove(chunk, entry.stamp_ns);
                if chunk == index {
                    proven = Some(part);
                }
            }
        }
        proven
    }

    /// Locks consecutive chunks if the locks of all of them are free.
    pub(crate) fn try_lock(&self, chunks: Range<ChunkIndex>) -> io::Result<Option<FileLock>> {
        FileLock::try_new(&self.map, chunks, Exclusion::Exclusive)
    }

    /// Locks a chunk; `None` after `patience`, or once another process has stored it during this boot.
    pub(crate) fn lock(&self, index: ChunkIndex, patience: Duration) -> io::Result<Option<FileLock>> {
        FileLock::wait(&self.map, index..index + 1, Exclusion::Exclusive, patience, || self.is_current(index))
    }

    /// Locks the chunks of a section; `None` after `patience`.
    pub(crate) fn lock_section(&self, section: SectionIndex, patience: Duration) -> io::Result<Option<FileLock>> {
        FileLock::wait(&self.map, self.layout.chunks_of(section), Exclusion::Exclusive, patience, || false)
    }

    /// Stores consecutive verified chunks with these bytes and these digests. The caller holds their locks. If storing fails, the
    /// chunks are absent.
    pub(crate) fn store(&self, first: ChunkIndex, bytes: &[u8], digests: &[Option<Digest>]) -> io::Result<()> {
        let chunks = first..first + digests.len() as u64;
        let stored = self.data.write_all_at(bytes, self.layout.range(first).offset());
        stored.and_then(|()| self.stamp(first, bytes, digests)).inspect_err(|_| {
            // The chunks are already absent; this frees their space.
            let _ = self.clear(chunks);
        })
    }

    /// Writes the entries of consecutive chunks whose verified bytes are stored. The caller holds their locks.
    pub(crate) fn stamp(&self, first: ChunkIndex, mut bytes: &[u8], digests: &[Option<Digest>]) -> io::Result<()> {
        let stamp_ns = now_ns();
        let mut entries = Vec::with_capacity(digests.len() * ENTRY_BYTES);
        for (index, digest) in (first..).zip(digests) {
            let len = usize::try_from(self.layout.range(index).len()).map_or(bytes.len(), |len| len.min(bytes.len()));
            let (chunk, rest) = bytes.split_at(len);
            bytes = rest;
            entries.extend_from_slice(&MapEntry::new(self.boot, stamp_ns, chunk, *digest).encode(&self.id, index));
        }
        self.map.write_all_at(&entries, first * ENTRY_BYTES as u64)?;
        let chunks = first..first + digests.len() as u64;
        chunks.clone().for_each(|index| self.proven.prove(index, stamp_ns));
        self.mark_used(chunks);
        Ok(())
    }

    /// Makes consecutive chunks absent, which are all data or all tree, and frees their space. The caller holds their locks.
    pub(crate) fn clear(&self, chunks: Range<ChunkIndex>) -> io::Result<()> {
        let place = chunks.start * ENTRY_BYTES as u64;
        let map_len = self.map.metadata()?.len().saturating_sub(place);
        let len = map_bytes(&chunks).min(usize::try_from(map_len).unwrap_or(usize::MAX));
        self.map.write_all_at(&vec![0; len], place)?;
        self.punch(self.layout.run(chunks))
    }

    fn punch(&self, range: ByteRange) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.data, flags, range.offset(), range.len())?)
    }

    /// Notes a use of consecutive chunks. The note may be lost.
    pub(crate) fn mark_used(&self, chunks: Range<ChunkIndex>) {
        let now_ns = now_ns();
        for section in self.layout.section_of(chunks.start)..=self.layout.section_of(chunks.end.saturating_sub(1)) {
            if self.proven.wants_mark(section, now_ns, MARK_INTERVAL_NS) {
                let _ = self.usage.write_all_at(&[1], section * USE_BYTES);
            }
        }
    }

    /// Pins the section, so that it is evicted last. The note may be lost.
    pub(crate) fn pin(&self, section: SectionIndex) {
        let _ = self.usage.write_all_at(&[1], section * USE_BYTES + 1);
    }

    /// Returns whether the section was used since the last call, and whether it is pinned.
    pub(crate) fn take_use(&self, section: SectionIndex) -> (bool, bool) {
        let mut notes = [0; USE_BYTES as usize];
        let _ = self.usage.read_at(&mut notes, section * USE_BYTES);
        if notes[0] != 0 {
            let _ = self.usage.write_all_at(&[0], section * USE_BYTES);
        }
        (notes[0] != 0, notes[1] != 0)
    }

    /// Whether the section is pinned.
    pub(crate) fn is_pinned(&self, section: SectionIndex) -> bool {
        let mut note = [0];
        let _ = self.usage.read_at(&mut note, section * USE_BYTES + 1);
        note[0] != 0
    }

    /// The space of the data on disk, in bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.data.metadata().map_or(0, |metadata| metadata.blocks() * 512)
    }

    /// The sections with space on disk, some of which may have no chunk.
    pub(crate) fn allocated_sections(&self) -> Vec<SectionIndex> {
        use rustix::fs::{SeekFrom, seek};
        let object_end = self.layout.end();
        let mut sections = Vec::new();
        let mut offset = 0;
        let section_of = |offset| self.layout.section_of(self.layout.index_of(offset));
        while offset < object_end {
            let Ok(data) = seek(&self.data, SeekFrom::Data(offset)) else { break };
            let hole = seek(&self.data, SeekFrom::Hole(data)).unwrap_or(object_end).min(object_end);
            if data >= hole {
                break;
            }
            let after_last = sections.last().map_or(0, |last| last + 1);
            sections.extend(section_of(data).max(after_last)..=section_of(hole - 1));
            offset = hole;
        }
        sections
    }

    /// Prevents other processes from opening the object, if no process has it open.
    pub(crate) fn try_exclude_all(&self) -> io::Result<Option<FileLock>> {
        FileLock::try_new(&self.map, OPEN_BYTE..OPEN_BYTE + 1, Exclusion::Exclusive)
    }
}

/// The size of the entries of these chunks in bytes.
fn map_bytes(chunks: &Range<ChunkIndex>) -> usize {
    usize::try_from(chunks.end.saturating_sub(chunks.start)).unwrap_or(0).saturating_mul(ENTRY_BYTES)
}

/// Whether a read may wait for the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    Allowed,
    Never,
}

/// Fills `output`; returns `false` after a failure, or if the read would block and must not.
fn read_all(file: &File, mut offset: u64, output: &mut [u8], wait: Wait) -> bool {
    if wait == Wait::Allowed {
        return file.read_exact_at(output, offset).is_ok();
    }
    let mut rest = output;
    while !rest.is_empty() {
        match preadv2(file, &mut [IoSliceMut::new(rest)], offset, ReadWriteFlags::NOWAIT) {
            Ok(0) => return false,
            Ok(count) => {
                offset += count as u64;
                rest = &mut rest[count..];
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

/// Converts the error for a missing file to `None`.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Nanoseconds since the machine started. Entries of one chunk always differ, because they are written under its lock
/// with a write of data between them.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, ObjectKey, Trust};

    #[test]
    fn bytes_go_only_after_their_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let location = Location { url: "memory".to_owned(), etag: "1".to_owned() };
        let key = ObjectKey { trust: Trust::Location(location), len: 300_000 };
        let about = About::of(&key, "memory").expect("it parses");
        let (id, boot) = (key.id(), BootId::of("first"));
        let root = TrustedDirectory::create(folder.path(), "v2").expect("a directory");
        let mut object = StoredObject::open(&root, &about, id, boot).expect("it opens");
        let directory = StoredObject::directory(&root, &id, Missing::Refused).expect("it is there");
        let chunk = vec![7; 16_384];
        object.store(0, &chunk, &[None]).expect("stored");
        let writable = std::mem::replace(&mut object.map, Arc::new(directory.read_file("map").expect("the map")));
        object.clear(0..1).expect_err("the entry cannot be written");
        assert_eq!(object.prove(0).as_deref(), Some(&*chunk), "so the bytes stay");
        object.map = writable;
        object.clear(0..1).expect("it goes");
        assert_eq!((object.look(0), object.prove(0)), (None, None));
        assert!(object.allocated_sections().is_empty());
    }
}
