//! Replays a recorded launch ahead of its programs.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe::{ByteRange, Image, Nid, Reader};
use floe_engine::AdoptedThread;
use floe_front::VirtualImage;
use floe_image::{DeviceId, FileType};
use floe_keeper::{LaunchWalk, WalkAction, WalkBatch};
use floe_mkfs::{NameUsage, Profile, ProfileStep};

use super::{
    GLANCE,
    footprint::{Footprint, PAGE_BYTES},
    profile_match::ProfileMatch,
    report::{LaunchState, Progress},
    store_queue::{FileRange, StoreQueue},
};

/// The maximum number of bytes that a replay puts into the page cache.
const BYTES_MAX: u64 = 1 << 30;

/// Ranges of images without a launch bundle grow to whole chunks of this size in bytes. A program may be ahead of the replay.
/// The kernel's readahead then sends a request for each gap between stored pages, and the blocks with the pages of the gap
/// are decoded anyway.
const CHUNK_BYTES: u64 = 64 << 10;

/// A file of at most this size in bytes is stored whole if at least half of it was read.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

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

/// The maximum number of threads that look for the files of a launch in a remote image.
const RESOLVING_THREADS_MAX: usize = 8;

/// The number of threads that store ranges besides that of the replay, for each CPU, and their maximum. Where a replay may not
/// have a higher priority than other programs, its share of the CPUs grows with its threads.
const THREADS_PER_CPU: usize = 2;
const THREADS_MAX: usize = 8;

/// Replays a launch ahead of its programs: looks up its names in the kernel, and puts the ranges that it reads into the page
/// cache, in order.
pub(super) struct Replay {
    pub(super) image: Image,
    /// The reader that serves the mount.
    pub(super) reader: Reader,
    /// `None` if the names need not be looked up.
    pub(super) walk: Option<LaunchWalk>,
    /// The image behind the kernel's EROFS, if that is in front.
    pub(super) front: Option<Arc<VirtualImage>>,
    /// Whether the image has a launch bundle. The replay then begins at once, and takes only what is in the bundle.
    pub(super) has_bundle: bool,
    pub(super) profile_match: Arc<ProfileMatch>,
    pub(super) progress: Arc<Progress>,
    /// Set until the launch is over, if only its own metadata is to be read until then.
    pub(super) holds_metadata: Option<Arc<AtomicBool>>,
}

/// Names that are looked up together, and the ranges to store after them.
#[derive(Default)]
struct Batch {
    walk: WalkBatch,
    ranges: Vec<FileRange>,
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
        if self.is_remote() && !self.has_bundle {
            self.request(profile, &files);
        }
        let hold = |is_held| self.holds_metadata.iter().for_each(|holds| holds.store(is_held, Relaxed));
        if !self.has_bundle {
            if !self.profile_match.begins_within(LAUNCH_IMMINENT) {
                // The mount may have other uses before the launch.
                hold(false);
            }
            if !self.profile_match.wait_for_beginning() {
                return;
            }
            hold(true);
        }
        self.progress.set(LaunchState::Replaying, "");
        match self.replay(profile, &files) {
            Ok(()) => self.progress.set(LaunchState::Replayed, ""),
            Err(Ending::Left) => {
                self.progress.set(LaunchState::Left, "the launch used too many files that are not in the profile");
            }
            Err(Ending::Stopped(reason)) => self.progress.set(LaunchState::Stopped, reason),
        }
        if self.holds_metadata.is_some() {
            self.profile_match.wait_for_end(REST_OF_LAUNCH);
        }
    }

    /// The inodes and sizes of the files of the profile that the image has.
    fn files_of<'a>(&self, profile: &'a Profile) -> HashMap<&'a [u8], (Nid, u64)> {
        let mut seen = HashSet::new();
        let paths = profile.steps().filter_map(|step| match step {
            ProfileStep::Range(range) => Some(range.path.as_slice()),
            ProfileStep::Name(name) if [NameUsage::Found, NameUsage::Link].contains(&name.usage) => Some(&name.path),
            ProfileStep::Name(_) => None,
        });
        let paths: Vec<&[u8]> = paths.filter(|path| seen.insert(*path)).collect();
        let next = AtomicUsize::new(0);
        let resolve = || {
            let mut files = Vec::new();
            while let Some(path) = paths.get(next.fetch_add(1, Relaxed)).filter(|_| !self.profile_match.is_over()) {
                let nid = self.image.resolve_link(path).ok();
                let attr = nid.and_then(|nid| self.image.file_system().attr(nid).ok());
                if let Some(attr) = attr.filter(|attr| attr.file_type != FileType::Directory) {
                    files.push((*path, (attr.nid, attr.size)));
                    self.profile_match.add(attr.nid);
                }
            }
            files
        };
        // Each path waits for a remote source, one directory after the other.
        let helper_count = if self.is_remote() { RESOLVING_THREADS_MAX.min(paths.len()).saturating_sub(1) } else { 0 };
        thread::scope(|scope| {
            let spawn = |_| thread::Builder::new().name("floe-resolve".to_owned()).spawn_scoped(scope, resolve).ok();
            let helpers: Vec<_> = (0..helper_count).map_while(spawn).collect();
            let found = resolve();
            found.into_iter().chain(helpers.into_iter().flat_map(|helper| helper.join().unwrap_or_default())).collect()
        })
    }

    /// Requests the stored bytes of the launch from a remote source, which transfers them while the names are looked up.
    fn request(&self, profile: &Profile, files: &HashMap<&[u8], (Nid, u64)>) {
        let Ok(source) = self.reader.volume().source(DeviceId(0)) else { return };
        let mut known: HashMap<Nid, HashSet<u64>> = HashMap::new();
        let ranges = profile.ranges().iter().filter_map(|range| {
            let (nid, size) = *files.get(range.path.as_slice())?;
            let range = range.range.intersection(ByteRange::new(0, size));
            let units = new_units(range, size, CHUNK_BYTES, known.entry(nid).or_default());
            Some(units.into_iter().map(move |unit| (nid, unit)))
        });
        let ranges: Vec<FileRange> = ranges.flatten().collect();
        for run in self.image.stored_runs(&ranges, 0) {
            source.will_need(run.offset(), run.len());
        }
    }

    fn is_remote(&self) -> bool {
        self.holds_metadata.is_some()
    }

    fn replay(&self, profile: &Profile, files: &HashMap<&[u8], (Nid, u64)>) -> Result<(), Ending> {
        let queue = self.store_queue();
        self.queue_steps(&queue, profile, files)?;
        while queue.store_next() || !queue.wait(GLANCE) {
            self.check()?;
        }
        Ok(())
    }

    /// A queue with threads that store ranges.
    fn store_queue(&self) -> StoreQueue {
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        // The bytes of a bundle arrive in order, and no program competes with the replay.
        let thread_count = if self.has_bundle { 0 } else { (cpus * THREADS_PER_CPU).min(THREADS_MAX) };
        let (reader, profile_match, progress) =
            (self.reader.clone(), Arc::clone(&self.profile_match), Arc::clone(&self.progress));
        let is_front = self.front.is_some();
        StoreQueue::new(thread_count, move || {
            let thread = AdoptedThread::new(reader.engine());
            let (reader, profile_match, progress) = (reader.clone(), Arc::clone(&profile_match), Arc::clone(&progress));
            Box::new(move |(nid, range)| {
                // The program may have read more since the range was added. Behind a front, the range is one of a hidden file.
                let range = if is_front { range } else { profile_match.unread(nid, range) };
                if !range.is_empty() {
                    progress.note_range(reader.push_for_launch(&thread, nid, range));
                }
            })
        })
    }

    /// Sends the names of the profile to the walker, and adds its ranges to the queue.
    fn queue_steps(
        &self,
        queue: &StoreQueue,
        profile: &Profile,
        files: &HashMap<&[u8], (Nid, u64)>,
    ) -> Result<(), Ending> {
        let mut under_way: VecDeque<Batch> = VecDeque::new();
        let mut batch = Batch::default();
        let mut steps_max = FIRST_STEPS;
        let mut seen = HashSet::new();
        let footprint = self.has_bundle.then(|| Footprint::of(profile));
        let mut known: HashMap<Nid, HashSet<u64>> = HashMap::new();
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
                    // With a bundle, every additional byte takes time to arrive, and no program is ahead of the replay.
                    let (range, unit_bytes) = match &footprint {
                        Some(footprint) => (footprint.grown(path, range.range), PAGE_BYTES),
                        None => (range.range, CHUNK_BYTES),
                    };
                    let range = range.intersection(ByteRange::new(0, *size));
                    // Bytes can be stored only for inodes that the kernel has looked up.
                    let is_first = !seen.contains(path.as_slice());
                    actions.extend(is_first.then_some(WalkAction::Look));
                    for range in new_units(range, *size, unit_bytes, known.entry(*nid).or_default()) {
                        let range = ByteRange::new(range.offset(), range.len().min(left_bytes));
                        left_bytes -= range.len();
                        batch.range_bytes += range.len();
                        batch.ranges.push((*nid, range));
                    }
                }
            }
            seen.extend(file.is_some().then_some(path.as_slice()));
            batch.files_end = seen.len() as u64;
            for action in actions {
                if !batch.walk.push(path, action) {
                    let full = std::mem::take(&mut batch);
                    batch.files_end = full.files_end;
                    self.begin(queue, full, &mut under_way)?;
                    batch.walk.push(path, action);
                }
            }
            if left_bytes == 0 {
                self.begin(queue, batch, &mut under_way)?;
                under_way.into_iter().try_for_each(|batch| self.finish(queue, batch))?;
                return Err(Ending::Stopped("it put 1 GiB into the page cache"));
            }
            let ranges = u32::try_from(batch.ranges.len()).unwrap_or(u32::MAX);
            if batch.walk.len().max(ranges) >= steps_max || batch.range_bytes >= BATCH_BYTES {
                steps_max = steps_max.saturating_mul(2);
                let files_end = batch.files_end;
                self.begin(queue, std::mem::take(&mut batch), &mut under_way)?;
                batch.files_end = files_end;
            }
        }
        self.begin(queue, batch, &mut under_way)?;
        under_way.into_iter().try_for_each(|batch| self.finish(queue, batch))
    }

    /// Sends the names of a batch, and finishes the oldest batch if enough are in progress.
    fn begin(&self, queue: &StoreQueue, batch: Batch, under_way: &mut VecDeque<Batch>) -> Result<(), Ending> {
        self.check()?;
        if let Some(walk) = self.walk.as_ref().filter(|_| !batch.walk.is_empty()) {
            walk.send(&batch.walk).map_err(|_| Ending::Stopped(NO_WALKER))?;
        }
        under_way.push_back(batch);
        match under_way.len() {
            BATCHES_AHEAD.. => under_way.pop_front().map_or(Ok(()), |oldest| self.finish(queue, oldest)),
            _ => Ok(()),
        }
    }

    /// Waits until the names of a batch are looked up, and has its ranges stored.
    fn finish(&self, queue: &StoreQueue, batch: Batch) -> Result<(), Ending> {
        while let Some(walk) = self.walk.as_ref().filter(|_| !batch.walk.is_empty()) {
            self.check()?;
            if let Some(walked) = walk.wait(GLANCE).map_err(|_| Ending::Stopped(NO_WALKER))? {
                self.progress.note_walked(walked);
                break;
            }
        }
        let unread = batch.ranges.into_iter().map(|(nid, range)| (nid, self.profile_match.unread(nid, range)));
        let mut ranges = self.places(unread.filter(|(_, range)| !range.is_empty()).collect());
        if self.has_bundle {
            // Programs start after the replay, so the order within a batch does not matter.
            ranges.sort_unstable_by_key(|(nid, range)| (*nid, range.offset()));
        }
        queue.add(merged(ranges));
        while queue.is_full() {
            self.check()?;
            queue.store_next();
        }
        self.profile_match.note_replayed(batch.files_end);
        Ok(())
    }

    /// Where the bytes of these ranges are in the files of the mount.
    fn places(&self, ranges: Vec<FileRange>) -> Vec<FileRange> {
        let Some(front) = &self.front else { return ranges };
        // Programs that read a range that cannot be found receive the error.
        ranges.into_iter().flat_map(|(nid, range)| front.places(nid, range).unwrap_or_default()).collect()
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

/// The ranges, in which each range that continues the one before it is merged with it.
fn merged(ranges: Vec<FileRange>) -> Vec<FileRange> {
    let mut merged: Vec<FileRange> = Vec::new();
    for (nid, range) in ranges {
        match merged.last_mut() {
            // Small files begin at page boundaries of the virtual image.
            Some((last_nid, last))
                if *last_nid == nid && last.end().checked_next_multiple_of(PAGE_BYTES) == Some(range.offset()) =>
            {
                *last = ByteRange::between(last.offset(), range.end());
            }
            _ => merged.push((nid, range)),
        }
    }
    merged
}

/// The bytes of a file of `size` bytes that a replay out of a launch bundle reads for a range that [`Footprint::grown`]
/// returned.
pub fn replayed_range(range: ByteRange, size: u64) -> ByteRange {
    new_units(range.intersection(ByteRange::new(0, size)), size, PAGE_BYTES, &mut HashSet::new())
        .first()
        .copied()
        .unwrap_or(ByteRange::new(0, 0))
}

/// The units of a range that are not in `known`, as ranges of a file of `size` bytes. Adds them to `known`.
fn new_units(range: ByteRange, size: u64, unit_bytes: u64, known: &mut HashSet<u64>) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    if range.is_empty() {
        return ranges;
    }
    let mut units = range.offset() / unit_bytes..range.end().div_ceil(unit_bytes);
    if size <= WHOLE_BYTES_MAX && (units.end - units.start) * unit_bytes >= size / 2 {
        units = 0..size.div_ceil(unit_bytes);
    }
    // The limit of the replay ends longer ranges anyway.
    for unit in units.take((BYTES_MAX / unit_bytes) as usize) {
        if !known.insert(unit) {
            continue;
        }
        let next = ByteRange::between(unit * unit_bytes, (unit + 1).saturating_mul(unit_bytes).min(size));
        match ranges.last_mut() {
            Some(last) if last.end() == next.offset() => *last = ByteRange::between(last.offset(), next.end()),
            _ => ranges.push(next),
        }
    }
    ranges
}

const NO_WALKER: &str = "the thread that looks names up has ended";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_units_that_are_taken_once() {
        for (unit, first) in [(CHUNK_BYTES, (65_536, 131_072)), (PAGE_BYTES, (69_632, 73_728))] {
            let mut known = HashSet::new();
            let mut units = |offset, len| new_units(ByteRange::new(offset, len), 400_000, unit, &mut known);
            assert_eq!(units(70_000, 1), [ByteRange::between(first.0, first.1)]);
            assert_eq!(units(0, 400_000), [ByteRange::between(0, first.0), ByteRange::between(first.1, 400_000)]);
            assert_eq!(units(0, 400_000), []);
            assert_eq!(units(10, 0), []);
            let huge = new_units(ByteRange::new(0, u64::MAX / 2), u64::MAX / 2, unit, &mut HashSet::new());
            assert_eq!(huge, [ByteRange::new(0, BYTES_MAX)]);
        }
    }

    #[test]
    fn ranges_that_continue_each_other_are_merged() {
        let range = |nid, start, end| (Nid(nid), ByteRange::between(start, end));
        let ranges = vec![range(1, 0, 5000), range(1, 8192, 9000), range(1, 16_384, 20_000), range(2, 20_480, 9 << 20)];
        let merged = merged(ranges);
        assert_eq!(merged, [range(1, 0, 9000), range(1, 16_384, 20_000), range(2, 20_480, 9 << 20)]);
    }

    #[test]
    fn a_small_file_of_which_half_was_read_is_taken_whole() {
        for (len, size, replayed) in
            [(4097, 16_384, (0, 16_384)), (4096, 16_384, (4096, 8192)), (1 << 20, 2 << 20, (4096, 4096 + (1 << 20)))]
        {
            assert_eq!(replayed_range(ByteRange::new(4096, len), size), ByteRange::between(replayed.0, replayed.1));
        }
    }
}
