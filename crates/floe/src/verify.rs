//! Reads a newly built image back and compares it with its sources.

use std::{
    num::NonZeroUsize,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use floe_engine::{EngineOptions, VolumeOptions, WorkerMode};
use floe_image::{ByteRange, ExtentData, Nid, Shown, start_error};
use floe_mkfs::{Expected, Phase, PieceDigest, Progress, Verified, Verifier, VerifyError};
use floe_sync::Mutex;
use xxhash_rust::xxh64::xxh64;

use crate::{Image, Offset, OpenError, OpenOptions, memory_limit::memory_limit_bytes};

/// The number of bytes of two duplicate files that one step compares.
const DUPLICATE_STEP_LEN: u64 = 8 << 20;

/// The size of a sample in bytes of data.
const SAMPLE_BYTES: u64 = 64 << 20;
/// The number of places in the image from which the sample is taken.
const SAMPLE_PLACES: u64 = 32;
/// The number of pieces or inodes that a thread takes at a time. Adjacent ones are often in the same block.
const BATCH_COUNT: usize = 32;
/// The minimum weight of a piece in a sample, in bytes.
const PIECE_WEIGHT_MIN: u64 = 1024;
/// The weight of a hole in a sample, in bytes; also the number of bytes read at either end of it.
const HOLE_WEIGHT: u64 = 4096;
const HOLE_SAMPLE_LEN: usize = 1 << 20;
/// The number of bytes of a hole that one read covers.
const HOLE_STEP_LEN: u64 = 64 << 20;
/// The interval of progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);
/// The number of inodes compared between two checks for cancellation.
const INODE_INTERVAL: usize = 4096;

/// The amount of data that is read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Thoroughness {
    /// All metadata, and up to 64 MiB of the data, from places all over the image.
    #[default]
    Sample,
    /// All metadata and all data.
    Full,
}

/// Reads an image back through [`Image`] and compares it with its sources.
#[derive(Clone, Copy, Debug)]
pub struct ImageVerifier {
    /// The amount of data that is read back.
    pub thoroughness: Thoroughness,
    /// The number of reading threads.
    pub jobs: NonZeroUsize,
}

impl Verifier for ImageVerifier {
    fn verify(
        &mut self,
        path: &Path,
        devices: &[PathBuf],
        expected: &Expected<'_>,
        progress: &mut dyn Progress,
    ) -> Result<Verified, VerifyError> {
        let engine = EngineOptions {
            cache_bytes: EngineOptions::for_memory(memory_limit_bytes()).cache_bytes,
            workers: WorkerMode::Inline,
            reserved_pages: 0,
            ..Default::default()
        };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let offset = match expected.image_offset() {
            0 => Offset::None,
            offset => Offset::At(offset),
        };
        let options = OpenOptions { devices: devices.to_vec(), engine, volume, offset, ..OpenOptions::default() };
        let image = Image::open(path, &options).map_err(|error| match error {
            OpenError::Image { error, .. } if error.is_transient() => VerifyError::Unread(error.to_string()),
            OpenError::File { .. } => VerifyError::Unread(error.to_string()),
            error => VerifyError::Fault(error.to_string()),
        })?;
        let nids = Metadata { image: &image, expected }.compare(self.jobs, progress)?;
        let (sample_bytes, hole_part_len) = match self.thoroughness {
            Thoroughness::Full => (u64::MAX, usize::MAX),
            Thoroughness::Sample => (SAMPLE_BYTES, HOLE_SAMPLE_LEN),
        };
        let content = Content { image: &image, expected, nids: &nids, hole_part_len };
        let content_bytes = content.compare(sample(expected.pieces(), sample_bytes), self.jobs, progress)?;
        let compare = |pair, buffer: &mut Vec<u8>| content.compare_duplicate(pair, buffer);
        on_threads(self.jobs, expected.duplicates(), (0, |_| 0), compare, progress)?;
        Ok(Verified { inodes: expected.inode_count() as u64, content_bytes })
    }
}

/// Selects pieces with about `sample_bytes` from all over the image, some megabytes at each place.
fn sample(
    pieces: impl Iterator<Item = PieceDigest> + Clone,
    sample_bytes: u64,
) -> impl Iterator<Item = PieceDigest> + Clone {
    // The cost of a hole does not depend on its length, nor does that of a short piece.
    let len = |piece: &PieceDigest| {
        if piece.hash.is_some() { (piece.len as u64).max(PIECE_WEIGHT_MIN) } else { HOLE_WEIGHT }
    };
    let total: u64 = pieces.clone().map(|piece| len(&piece)).sum();
    let (period, window) = (total / SAMPLE_PLACES, sample_bytes / SAMPLE_PLACES);
    let (mut before, mut wanted_from, mut left) = (0, 0, window);
    pieces.filter(move |piece| {
        let is_chosen = total <= sample_bytes || before + len(piece) > wanted_from;
        if is_chosen {
            left = left.saturating_sub(len(piece));
            if left == 0 {
                (wanted_from, left) = (wanted_from + period, window);
            }
        }
        before += len(piece);
        is_chosen
    })
}

/// The nid of an inode that no directory has listed yet.
const UNKNOWN: Nid = Nid(u64::MAX);

/// The metadata of an image.
struct Metadata<'a> {
    image: &'a Image,
    expected: &'a Expected<'a>,
}

impl Metadata<'_> {
    /// Compares the metadata and returns the nid of each inode. Directories are compared one after the other, because
    /// they determine the nids of the others; other inodes are compared on several threads.
    fn compare(&self, jobs: NonZeroUsize, progress: &mut dyn Progress) -> Result<Vec<Nid>, VerifyError> {
        let is_directory = |number: usize| self.expected.inode(number).size.is_none();
        let mut nids = vec![UNKNOWN; self.expected.inode_count()];
        nids[0] = self.image.root();
        for number in 0..nids.len() {
            if number.is_multiple_of(INODE_INTERVAL) {
                report(progress, 0, 0)?;
            }
            let nid = nids[number];
            if nid == UNKNOWN {
                return Err(self.fault(number, "no earlier directory has an entry for it"));
            }
            if is_directory(number) {
                self.compare_inode(number, nid)?;
                self.compare_directory(number, nid, &mut nids)?;
            }
        }
        let others = nids.iter().enumerate().filter(|(number, _)| !is_directory(*number));
        on_threads(jobs, others, (0, |_| 0), |(number, nid), _| self.compare_inode(number, *nid), progress)?;
        Ok(nids)
    }

    fn compare_inode(&self, number: usize, nid: Nid) -> Result<(), VerifyError> {
        let failed = |error: floe_image::Error| self.failed(number, &error);
        let expected = self.expected.inode(number);
        let attr = self.image.attr(nid).map_err(failed)?;
        let differs = |what: &str| Err(self.fault(number, &format!("its {what} differs")));
        if attr.file_type != expected.file_type {
            return differs("type");
        }
        if attr.permissions != expected.permissions {
            return differs("mode");
        }
        if (attr.uid, attr.gid) != (expected.uid, expected.gid) {
            return differs("owner");
        }
        if attr.link_count != expected.link_count {
            return differs("number of links");
        }
        if attr.modified != expected.modified {
            return differs("time");
        }
        if expected.size.is_some_and(|size| size != attr.size) {
            return differs("size");
        }
        if attr.device != expected.device {
            return differs("device number");
        }
        let file_system = self.image.file_system();
        if let Some(target) = expected.target
            && file_system.read_link(nid).map_err(failed)? != target
        {
            return differs("target");
        }
        let mut names = file_system.xattr_names(nid).map_err(failed)?;
        names.sort();
        let xattrs: Vec<(&[u8], &[u8])> = self.expected.xattrs(number).collect();
        if !names.iter().map(Vec::as_slice).eq(xattrs.iter().map(|(name, _)| *name)) {
            return differs("list of attributes");
        }
        for (name, value) in xattrs {
            if file_system.xattr(nid, name).map_err(failed)?.as_deref() != Some(value) {
                return differs("attribute");
            }
        }
        Ok(())
    }

    fn compare_directory(&self, number: usize, nid: Nid, nids: &mut [Nid]) -> Result<(), VerifyError> {
        let mut found = self.image.read_dir(nid);
        for (name, inode) in self.expected.entries(number) {
            let entry = found.next().ok_or_else(|| self.fault(inode, "its directory has no entry for it"))?;
            let entry = entry.map_err(|error| self.failed(number, &error))?;
            let is_same = entry.name == name && entry.file_type == self.expected.inode(inode).file_type;
            if nids[inode] == UNKNOWN {
                nids[inode] = entry.nid;
            }
            if !is_same || nids[inode] != entry.nid {
                return Err(self.fault(inode, "its directory has another entry at its position"));
            }
        }
        match found.next() {
            None => Ok(()),
            Some(_) => Err(self.fault(number, "it has too many entries")),
        }
    }

    fn failed(&self, number: usize, error: &floe_image::Error) -> VerifyError {
        unread_or(error, |what| self.fault(number, what))
    }

    fn fault(&self, number: usize, what: &str) -> VerifyError {
        fault(self.expected, number, what)
    }
}

/// The data of files.
struct Content<'a> {
    image: &'a Image,
    expected: &'a Expected<'a>,
    nids: &'a [Nid],
    /// The number of bytes of a hole that are read at its start and at its end.
    hole_part_len: usize,
}

impl Content<'_> {
    /// Compares pieces on several threads. Returns their total length in bytes.
    fn compare(
        &self,
        pieces: impl Iterator<Item = PieceDigest> + Clone + Send,
        jobs: NonZeroUsize,
        progress: &mut dyn Progress,
    ) -> Result<u64, VerifyError> {
        let len = |piece: &PieceDigest| piece.len as u64;
        let total = pieces.clone().map(|piece| len(&piece)).sum();
        on_threads(jobs, pieces, (total, len), |piece, buffer| self.compare_piece(&piece, buffer), progress)?;
        Ok(total)
    }

    fn compare_piece(&self, piece: &PieceDigest, buffer: &mut Vec<u8>) -> Result<(), VerifyError> {
        let failed = |what: &str| {
            let place = format!("bytes {} to {}: {what}", piece.offset, piece.offset + piece.len as u64);
            fault(self.expected, piece.inode, &place)
        };
        let Some(hash) = piece.hash else { return self.compare_hole(piece, &failed) };
        let missing_len = piece.len.saturating_sub(buffer.len());
        let no_memory = |_| VerifyError::Unread(format!("not enough memory for {} bytes", piece.len));
        buffer.try_reserve_exact(missing_len).map_err(no_memory)?;
        buffer.resize(piece.len, 0);
        let read = self.image.read_at(self.nids[piece.inode], piece.offset, buffer);
        let len = read.map_err(|error| unread_or(&error, failed))?;
        if len != piece.len || xxh64(buffer, 0) != hash {
            return Err(failed("the data differs from the source"));
        }
        Ok(())
    }
}

impl Content<'_> {
    /// Compares a file with the earlier file whose content it shares: first where their bytes are stored, then the
    /// bytes themselves if they are stored in different places.
    fn compare_duplicate(&self, pair: (usize, usize), buffer: &mut Vec<u8>) -> Result<(), VerifyError> {
        let (number, earlier) = pair;
        let failed = |what: &str| fault(self.expected, number, what);
        let size = self.expected.inode(number).size.unwrap_or(0);
        if self.expected.inode(earlier).size != Some(size) {
            return Err(failed("it shares the content of a file of another size"));
        }
        let (mut extents, mut earlier_extents) = (Vec::new(), Vec::new());
        let mut at = 0;
        while at < size {
            let range = ByteRange::new(at, DUPLICATE_STEP_LEN.min(size - at));
            for (number, extents) in [(number, &mut extents), (earlier, &mut earlier_extents)] {
                extents.clear();
                let mapped = self.image.file_system().map(self.nids[number], range, extents);
                mapped.map_err(|error| unread_or(&error, failed))?;
            }
            if extents != earlier_extents {
                self.compare_bytes(pair, range, buffer)?;
            }
            at = range.end();
        }
        Ok(())
    }

    fn compare_bytes(
        &self,
        (number, earlier): (usize, usize),
        range: ByteRange,
        buffer: &mut Vec<u8>,
    ) -> Result<(), VerifyError> {
        let failed = |what: &str| fault(self.expected, number, what);
        let len = range.len() as usize;
        let no_memory = |_| VerifyError::Unread(format!("not enough memory for {} bytes", 2 * len));
        buffer.try_reserve_exact((2 * len).saturating_sub(buffer.len())).map_err(no_memory)?;
        buffer.resize(2 * len, 0);
        let (own, other) = buffer.split_at_mut(len);
        for (number, part) in [(number, &mut *own), (earlier, &mut *other)] {
            let read = self.image.read_at(self.nids[number], range.offset(), part);
            if read.map_err(|error| unread_or(&error, failed))? != len {
                return Err(failed("it is too short"));
            }
        }
        if own == other { Ok(()) } else { Err(failed("it differs from the file whose content it shares")) }
    }

    /// Checks that the image has no data where the source has a hole.
    fn compare_hole(&self, piece: &PieceDigest, failed: &dyn Fn(&str) -> VerifyError) -> Result<(), VerifyError> {
        let end = piece.offset + piece.len as u64;
        let part_len = self.hole_part_len.min(piece.len) as u64;
        let mut extents = Vec::new();
        for (mut at, part_end) in [(piece.offset, piece.offset + part_len), (end - part_len, end)] {
            while at < part_end {
                let len = HOLE_STEP_LEN.min(part_end - at);
                extents.clear();
                let mapped =
                    self.image.file_system().map(self.nids[piece.inode], ByteRange::new(at, len), &mut extents);
                mapped.map_err(|error| unread_or(&error, failed))?;
                if extents.iter().any(|extent| extent.data != ExtentData::Hole) {
                    return Err(failed("there is data where the source has a hole"));
                }
                at += len;
            }
        }
        Ok(())
    }
}

/// Compares items on several threads, each with its own buffer. For progress, `total` is their total length in bytes, and
/// `len` that of each.
fn on_threads<Item: Send>(
    jobs: NonZeroUsize,
    items: impl Iterator<Item = Item> + Send,
    (total, len): (u64, impl Fn(&Item) -> u64 + Sync),
    compare: impl Fn(Item, &mut Vec<u8>) -> Result<(), VerifyError> + Sync,
    progress: &mut dyn Progress,
) -> Result<(), VerifyError> {
    let (items, done, stop) = (Mutex::new(items), AtomicU64::new(0), AtomicBool::new(false));
    let first_fault = Mutex::new(None);
    let work = &|| {
        let (mut buffer, mut batch) = (Vec::new(), Vec::with_capacity(BATCH_COUNT));
        loop {
            batch.extend(items.lock().by_ref().take(BATCH_COUNT));
            if batch.is_empty() {
                return;
            }
            for item in batch.drain(..) {
                if stop.load(Relaxed) {
                    return;
                }
                let len = len(&item);
                if let Err(error) = compare(item, &mut buffer) {
                    stop.store(true, Relaxed);
                    first_fault.lock().get_or_insert(error);
                    return;
                }
                done.fetch_add(len, Relaxed);
            }
        }
    };
    let told = thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..jobs.get() {
            match thread::Builder::new().spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => {
                    return Err(VerifyError::Unread(format!("cannot start a thread: {}", start_error(error))));
                }
                // The other threads do the work of one that cannot start.
                Err(_) => break,
            }
        }
        loop {
            let told = report(progress, done.load(Relaxed), total);
            if told.is_err() {
                stop.store(true, Relaxed);
                return told;
            }
            if threads.iter().all(|thread| thread.is_finished()) {
                return told;
            }
            thread::sleep(REPORT_INTERVAL.min(Duration::from_millis(1 + total / (32 << 20))));
        }
    });
    match first_fault.into_inner() {
        Some(fault) => Err(fault),
        None => told,
    }
}

/// Classifies a failed read: a fault of the image, built by `failed` from the error's text, or `Unread` if memory, threads or
/// the storage failed.
fn unread_or(error: &floe_image::Error, failed: impl Fn(&str) -> VerifyError) -> VerifyError {
    let text = error.to_string();
    if error.is_transient() { VerifyError::Unread(text) } else { failed(&text) }
}

fn fault(expected: &Expected<'_>, number: usize, what: &str) -> VerifyError {
    let path = expected.path(number);
    VerifyError::Fault(format!("{}: {what}", Shown(&path)))
}

fn report(progress: &mut dyn Progress, done: u64, total: u64) -> Result<(), VerifyError> {
    match progress.advance(Phase::Verify, done, total) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(VerifyError::Cancelled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_comes_from_all_over_the_image() {
        for (count, len) in [(10, 1000), (100_000, 4000), (3000, 1 << 20), (100, 8 << 20)] {
            let piece = |inode| PieceDigest { inode, offset: 0, len, hash: Some(0) };
            let pieces: Vec<PieceDigest> = (0..count).map(piece).collect();
            let chosen = sample(pieces.iter().copied(), SAMPLE_BYTES);
            let chosen: Vec<usize> = chosen.map(|piece| piece.inode).collect();
            let bytes = (chosen.len() * len) as u64;
            let total = (count * len) as u64;
            assert!(bytes >= total.min(SAMPLE_BYTES) && bytes <= total.min(SAMPLE_BYTES * 4), "{count} {len}: {bytes}");
            assert!(chosen.is_sorted() && chosen.first() == Some(&0) && chosen.last() >= Some(&(count * 15 / 16)));
        }
    }

    #[test]
    fn refused_memory_is_no_fault_of_the_image() {
        let told = |error: &floe_image::Error| unread_or(error, |what| VerifyError::Fault(format!("/file: {what}")));
        assert!(matches!(told(&floe_image::Error::NoMemory), VerifyError::Unread(_)));
        let corrupt = floe_image::Error::corrupt("dirent name past block", floe_image::Place::default());
        assert!(matches!(told(&corrupt), VerifyError::Fault(what) if what.starts_with("/file: corrupt image")));
    }
}
