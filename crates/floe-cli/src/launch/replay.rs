//! Replays a recorded launch ahead of its programs.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::RecvTimeoutError,
    },
    time::Duration,
};

use floe::{ByteRange, Image, Nid, Reader};
use floe_fuse::{LaunchWalk, WalkAction, WalkBatch};
use floe_image::FileType;
use floe_mkfs::{NameUsage, Profile, ProfileStep};

use super::{
    GLANCE,
    profile_match::ProfileMatch,
    report::{LaunchState, Progress},
};

/// The maximum number of bytes that a replay puts into the page cache.
const BYTES_MAX: u64 = 1 << 30;

/// The number of bytes that are stored between two checks whether the replay continues.
const PIECE_BYTES: u64 = 4 << 20;

/// Ranges grow to whole chunks of this size in bytes. The kernel's readahead sends a request for each gap between stored
/// pages, and the blocks with the pages of the gap are decoded anyway.
const CHUNK_BYTES: u64 = 64 << 10;

/// How long after the mount a launch is expected to begin.
const LAUNCH_IMMINENT: Duration = Duration::from_secs(2);

/// How long a launch is assumed to last after its replay.
const REST_OF_LAUNCH: Duration = Duration::from_secs(1);

/// The number of steps of the first batch. Each batch has twice as many as the one before.
const FIRST_STEPS: u32 = 8;

/// A batch ends when its ranges have this many bytes.
const BATCH_BYTES: u64 = 1 << 20;

/// The number of batches whose names are looked up while the ranges of earlier ones are stored.
const BATCHES_AHEAD: usize = 2;

/// Replays a launch ahead of its programs: looks up its names in the kernel, and puts the ranges that it reads into the page
/// cache, in order.
pub(super) struct Replay {
    pub(super) image: Image,
    /// The reader that serves the mount.
    pub(super) reader: Reader,
    pub(super) walk: LaunchWalk,
    /// Whether the kernel's EROFS is in front. The replay then asks it to read ahead, because no bytes can be pushed
    /// into its page cache.
    pub(super) is_front: bool,
    pub(super) profile_match: Arc<ProfileMatch>,
    pub(super) progress: Arc<Progress>,
    /// Set until the launch is over, if only its own metadata is to be read until then.
    pub(super) holds_metadata: Option<Arc<AtomicBool>>,
}

/// Names that are looked up together, and the ranges to store after them.
#[derive(Default)]
struct Batch {
    walk: WalkBatch,
    ranges: Vec<(Nid, ByteRange)>,
    range_bytes: u64,
    /// The number of files of the profile up to the end of the batch.
    files_end: u64,
}

/// The reason why a replay ends early.
enum Ending {
    Left,
    Stopped(&'static str),
}

impl Replay {
    /// Waits for the launch, and replays it.
    pub(super) fn run(self, profile: &Profile) {
        let files = self.files_of(profile);
        let hold = |is_held| self.holds_metadata.iter().for_each(|holds| holds.store(is_held, Relaxed));
        if !self.profile_match.begins_within(LAUNCH_IMMINENT) {
            // The mount may have other uses before the launch.
            hold(false);
        }
        if !self.profile_match.wait_for_beginning() {
            return;
        }
        hold(true);
        self.progress.set(LaunchState::Replaying, "");
        match self.replay(profile, &files) {
            Ok(()) => self.progress.set(LaunchState::Replayed, ""),
            Err(Ending::Left) => {
                self.progress.set(LaunchState::Left, "the launch touched too many files that are not in the profile");
            }
            Err(Ending::Stopped(reason)) => self.progress.set(LaunchState::Stopped, reason),
        }
        if self.holds_metadata.is_some() {
            self.profile_match.wait_for_end(REST_OF_LAUNCH);
        }
    }

    /// The inodes and sizes of the files of the profile that the image has.
    fn files_of<'a>(&self, profile: &'a Profile) -> HashMap<&'a [u8], (Nid, u64)> {
        let mut files = HashMap::new();
        let mut missing = HashSet::new();
        for step in profile.steps() {
            let path = match step {
                ProfileStep::Range(range) => range.path.as_slice(),
                ProfileStep::Name(name) if [NameUsage::Found, NameUsage::Link].contains(&name.usage) => &name.path,
                ProfileStep::Name(_) => continue,
            };
            if self.profile_match.is_over() || files.contains_key(path) || !missing.insert(path) {
                continue;
            }
            let Ok(attr) = self.image.resolve_link(path).map(|nid| self.image.file_system().attr(nid)) else {
                continue;
            };
            let Ok(attr) = attr else { continue };
            if attr.file_type != FileType::Directory {
                files.insert(path, (attr.nid, attr.size));
                self.profile_match.add(attr.nid);
            }
        }
        files
    }

    fn replay(&self, profile: &Profile, files: &HashMap<&[u8], (Nid, u64)>) -> Result<(), Ending> {
        let mut under_way: VecDeque<Batch> = VecDeque::new();
        let mut batch = Batch::default();
        let mut steps_max = FIRST_STEPS;
        let mut seen = HashSet::new();
        let mut chunks: HashMap<Nid, HashSet<u64>> = HashMap::new();
        let mut left_bytes = BYTES_MAX;
        for step in profile.steps() {
            let (path, file) = match step {
                ProfileStep::Range(range) => (&range.path, files.get(range.path.as_slice())),
                ProfileStep::Name(name) => (&name.path, files.get(name.path.as_slice())),
            };
            let mut actions = Vec::new();
            match (step, file) {
                (ProfileStep::Name(name), _) => actions.push(match name.usage {
                    NameUsage::Found | NameUsage::Missing => WalkAction::Look,
                    NameUsage::Link => WalkAction::ReadLink,
                    NameUsage::List => WalkAction::List,
                }),
                (ProfileStep::Range(_), None) => self.progress.note_skipped(),
                (ProfileStep::Range(range), Some((nid, size))) => {
                    let range = range.range.intersection(ByteRange::new(0, *size));
                    // The page cache takes bytes only for inodes that the kernel has looked up.
                    let is_first = !seen.contains(path.as_slice());
                    actions.extend((is_first && !self.is_front).then_some(WalkAction::Look));
                    for range in new_chunks(range, *size, chunks.entry(*nid).or_default()) {
                        let range = ByteRange::new(range.offset(), range.len().min(left_bytes));
                        left_bytes -= range.len();
                        batch.range_bytes += range.len();
                        if self.is_front {
                            self.progress.note_range(range.len());
                            actions.push(WalkAction::ReadAhead(range));
                        } else {
                            batch.ranges.push((*nid, range));
                        }
                    }
                }
            }
            seen.extend(file.is_some().then_some(path.as_slice()));
            batch.files_end = seen.len() as u64;
            for action in actions {
                if !batch.walk.push(path, action) {
                    let full = std::mem::take(&mut batch);
                    batch.files_end = full.files_end;
                    self.begin(full, &mut under_way)?;
                    batch.walk.push(path, action);
                }
            }
            if left_bytes == 0 {
                self.begin(batch, &mut under_way)?;
                under_way.into_iter().try_for_each(|batch| self.finish(batch))?;
                return Err(Ending::Stopped("it put 1 GiB into the page cache"));
            }
            let ranges = u32::try_from(batch.ranges.len()).unwrap_or(u32::MAX);
            if batch.walk.len().max(ranges) >= steps_max || batch.range_bytes >= BATCH_BYTES {
                steps_max = steps_max.saturating_mul(2);
                let files_end = batch.files_end;
                self.begin(std::mem::take(&mut batch), &mut under_way)?;
                batch.files_end = files_end;
            }
        }
        self.begin(batch, &mut under_way)?;
        under_way.into_iter().try_for_each(|batch| self.finish(batch))
    }

    /// Sends the names of a batch, and finishes the oldest batch if enough are in progress.
    fn begin(&self, batch: Batch, under_way: &mut VecDeque<Batch>) -> Result<(), Ending> {
        self.check()?;
        if !batch.walk.is_empty() {
            self.walk.send(&batch.walk).map_err(|_| Ending::Stopped(NO_WALKER))?;
        }
        under_way.push_back(batch);
        match under_way.len() {
            BATCHES_AHEAD.. => under_way.pop_front().map_or(Ok(()), |oldest| self.finish(oldest)),
            _ => Ok(()),
        }
    }

    /// Waits until the names of a batch are looked up, and stores its ranges.
    fn finish(&self, batch: Batch) -> Result<(), Ending> {
        while !batch.walk.is_empty() {
            self.check()?;
            if let Some(walked) = self.walk.wait(GLANCE).map_err(|_| Ending::Stopped(NO_WALKER))? {
                self.progress.note_walked(walked);
                break;
            }
        }
        for (nid, range) in batch.ranges {
            let mut offset = range.offset();
            let mut stored = 0;
            while offset < range.end() {
                let piece = ByteRange::new(offset, (range.end() - offset).min(PIECE_BYTES));
                offset = piece.end();
                stored += self.store(nid, piece)?;
            }
            self.progress.note_range(stored);
        }
        self.profile_match.note_replayed(batch.files_end);
        Ok(())
    }

    fn store(&self, nid: Nid, range: ByteRange) -> Result<u64, Ending> {
        let receiver = self.reader.store_for_launch(nid, range);
        loop {
            self.check()?;
            match receiver.recv_timeout(GLANCE) {
                Err(RecvTimeoutError::Timeout) => {}
                // Programs that read the range receive the error.
                Ok(Err(_)) => return Ok(0),
                Ok(Ok(stored)) => return Ok(stored),
                Err(RecvTimeoutError::Disconnected) => return Err(Ending::Stopped("no thread can store bytes")),
            }
        }
    }

    /// Checks whether the replay continues.
    fn check(&self) -> Result<(), Ending> {
        if self.profile_match.is_over() {
            Err(Ending::Stopped("the mount has ended"))
        } else if self.profile_match.is_left() {
            Err(Ending::Left)
        } else if self.reader.is_memory_scarce() {
            Err(Ending::Stopped("memory is short"))
        } else {
            Ok(())
        }
    }
}

/// The bytes of a file of `size` bytes that a replay puts into the page cache for a recorded range.
pub(crate) fn replayed_range(range: ByteRange, size: u64) -> ByteRange {
    let start = range.offset() / CHUNK_BYTES * CHUNK_BYTES;
    ByteRange::between(start, range.end().checked_next_multiple_of(CHUNK_BYTES).unwrap_or(u64::MAX).min(size))
}

/// The chunks of a range that are not in `known`, as ranges of a file of `size` bytes. Adds them to `known`.
fn new_chunks(range: ByteRange, size: u64, known: &mut HashSet<u64>) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    if range.is_empty() {
        return ranges;
    }
    // The limit of the replay ends longer ranges anyway.
    for chunk in (range.offset() / CHUNK_BYTES..range.end().div_ceil(CHUNK_BYTES)).take(CHUNKS_MAX) {
        if !known.insert(chunk) {
            continue;
        }
        let next = ByteRange::between(chunk * CHUNK_BYTES, ((chunk + 1) * CHUNK_BYTES).min(size));
        match ranges.last_mut() {
            Some(last) if last.end() == next.offset() => *last = ByteRange::between(last.offset(), next.end()),
            _ => ranges.push(next),
        }
    }
    ranges
}

/// The maximum number of chunks of one range: as many as a replay may store.
const CHUNKS_MAX: usize = (BYTES_MAX / CHUNK_BYTES) as usize;

const NO_WALKER: &str = "the thread that looks names up has ended";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_chunks_that_are_taken_once() {
        let mut known = HashSet::new();
        let mut chunks = |offset, len| new_chunks(ByteRange::new(offset, len), 200_000, &mut known);
        assert_eq!(chunks(70_000, 1), [ByteRange::new(65_536, 65_536)]);
        assert_eq!(chunks(0, 200_000), [ByteRange::new(0, 65_536), ByteRange::between(131_072, 200_000)]);
        assert_eq!(chunks(0, 200_000), []);
        assert_eq!(chunks(10, 0), []);
        let huge = new_chunks(ByteRange::new(0, u64::MAX / 2), u64::MAX / 2, &mut HashSet::new());
        assert_eq!(huge, [ByteRange::new(0, BYTES_MAX)]);
    }
}
