//! Reads the chunks of an open object.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_sync::Mutex;

use crate::{
    AheadReason, Cache, Cause, FetchError, FetchFault, ObjectKey, RangeFetcher,
    ahead_chunks::AheadChunks,
    counters::Counters,
    flights::{Flight, Flights, Lead, Outcome, Role, copy_of},
    layout::{ChunkIndex, ChunkLayout},
    stored_object::StoredObject,
    verifier::Verifier,
    verity::{Attempt, TreeBlocks},
};

/// The maximum number of attempts of a read for a chunk whose flights are abandoned.
const ATTEMPTS_MAX: usize = 64;

/// The number of bytes of chunks that could not be stored and are kept in memory.
const RECENT_BYTES_MAX: usize = 8 << 20;

/// How many chunks are looked up with one read of the map.
const LOOK_CHUNKS: u64 = 256;

/// An open object: the state that its readers and its prefetch share.
pub(crate) struct CachedObject {
    pub(crate) key: ObjectKey,
    pub(crate) layout: ChunkLayout,
    pub(crate) fetcher: Arc<dyn RangeFetcher>,
    pub(crate) cache: Option<Arc<Cache>>,
    pub(crate) stored: Option<StoredObject>,
    pub(crate) flights: Arc<Flights>,
    pub(crate) recent: RecentChunks,
    pub(crate) counters: Counters,
    pub(crate) ahead: AheadChunks,
    /// Set once the object is open. Before that, only chunks of the hash tree are read.
    pub(crate) verifier: OnceLock<Verifier>,
    /// How long a read waits for another process that fetches a chunk.
    pub(crate) flight_patience: Duration,
}

/// The chunks that the current read has fetched itself: it need not read them back from the disk.
type Led = VecDeque<(ChunkIndex, Arc<Flight>)>;

/// The chunks to request for a reader, which contain those that it waits for, and why the others are among them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    pub(crate) chunks: Range<ChunkIndex>,
    pub(crate) reason: AheadReason,
}

/// Chooses what to request for a reader that waits for the given chunks.
pub(crate) type ReachOf<'reader> = &'reader dyn Fn(Range<ChunkIndex>) -> Reach;

impl Reach {
    /// Only the chunks that a reader waits for.
    pub(crate) const fn only(chunks: Range<ChunkIndex>) -> Self {
        Self { chunks, reason: AheadReason::Rounding }
    }
}

/// A read of consecutive chunks in progress.
struct Reading<'reader> {
    /// The end of its chunks.
    end: ChunkIndex,
    cause: Cause,
    attempt: Attempt,
    reach: ReachOf<'reader>,
    led: Led,
}

impl CachedObject {
    /// Fills `output` with the bytes of `range`, which are all data or all tree, for a reader that waits.
    pub(crate) fn read(&self, range: ByteRange, output: &mut [u8], cause: Cause, reach: ReachOf<'_>) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let chunks = self.chunks_of(range);
        let count = chunks.end - chunks.start;
        if count > 1 && self.read_stored(chunks.clone(), range.offset(), output) {
            self.counters.hits.add(count);
            self.ahead.note_read(chunks);
            return Ok(());
        }
        let mut reading = Reading { end: chunks.end, cause, attempt: Attempt::First, reach, led: Led::new() };
        let mut rest = output;
        for index in chunks {
            let part = self.layout.range(index).intersection(range);
            let (output, after) = rest.split_at_mut(usize::try_from(part.len()).unwrap_or(rest.len()));
            rest = after;
            self.read_part(index, part, output, &mut reading)?;
        }
        Ok(())
    }

    /// Fills `output` if all of it is in memory and was proven by this process.
    pub(crate) fn try_read_at(&self, range: ByteRange, output: &mut [u8]) -> bool {
        if range.is_empty() {
            return true;
        }
        let Some(stored) = &self.stored else { return false };
        let chunks = self.chunks_of(range);
        if !stored.try_read_at(chunks.clone(), range.offset(), output) {
            return false;
        }
        self.counters.hits.add(chunks.end - chunks.start);
        stored.mark_used(chunks.clone());
        self.ahead.note_read(chunks);
        true
    }

    /// Notes which chunks are fetched for a reader that waits for `wanted`, and which are fetched with them.
    fn note_led(&self, led: impl Iterator<Item = ChunkIndex>, wanted: Range<ChunkIndex>, reason: AheadReason) {
        for index in led {
            match wanted.contains(&index) {
                true => self.ahead.note_waited(index),
                false => self.ahead.note_fetched(index, reason),
            }
        }
    }

    /// The chunks with bytes of a range, which is not empty.
    pub(crate) fn chunks_of(&self, range: ByteRange) -> Range<ChunkIndex> {
        self.layout.index_of(range.offset())..self.layout.index_of(range.end() - 1) + 1
    }

    /// Fills `output` with the bytes of `part`, which are in one chunk. Fetches the chunk if it is missing, together
    /// with missing chunks within reach.
    fn read_part(
        &self,
        index: ChunkIndex,
        part: ByteRange,
        output: &mut [u8],
        reading: &mut Reading<'_>,
    ) -> io::Result<()> {
        let Reading { end, cause, attempt, reach, ref mut led } = *reading;
        let within = |chunk: &Bytes, output: &mut [u8]| {
            let start = usize::try_from(part.offset() - self.layout.range(index).offset()).unwrap_or(usize::MAX);
            output.copy_from_slice(&chunk[start..start + output.len()]);
        };
        for _ in 0..ATTEMPTS_MAX {
            let (flight, is_own) = if let Some(flight) = led_flight(led, index) {
                (flight, true)
            } else if attempt == Attempt::First && self.read_present(index, part, output, &within) {
                self.counters.hits.add(1);
                self.ahead.note_read(index..index + 1);
                return Ok(());
            } else {
                let Reach { chunks, reason } = reach(index..end);
                let request = self.request_for(index, chunks, cause);
                match self.flights.enter(index, request, cause) {
                    Role::Follower(flight) => {
                        self.counters.joined.add(1);
                        if flight.cause() == Cause::Prefetch {
                            self.fetcher.promote(part);
                        }
                        (flight, false)
                    }
                    Role::Leader(leads) => {
                        self.counters.misses.add(leads.len() as u64);
                        self.note_led(leads.iter().map(Lead::index), index..end, reason);
                        *led = leads.iter().map(|lead| (lead.index(), Arc::clone(lead.flight()))).collect();
                        self.fill(leads, cause, attempt);
                        let Some(flight) = led_flight(led, index) else { continue };
                        (flight, true)
                    }
                }
            };
            match flight.wait() {
                Outcome::Bytes(chunk) => {
                    within(&chunk, output);
                    self.ahead.note_read(index..index + 1);
                    return Ok(());
                }
                // A reader that waits retries longer than a prefetch.
                Outcome::Failed(_) if !is_own && flight.cause() == Cause::Prefetch => {}
                Outcome::Failed(error) => return Err(copy_of(&error)),
                Outcome::Abandoned => {}
            }
        }
        let message = format!("{}, byte {}: gave up after {ATTEMPTS_MAX} attempts", self.fetcher.name(), part.offset());
        Err(FetchError::new(FetchFault::Outage, message).into())
    }

    /// Reads from a present chunk; returns `false` if the chunk must be fetched.
    fn read_present(
        &self,
        index: ChunkIndex,
        part: ByteRange,
        output: &mut [u8],
        within: &impl Fn(&Bytes, &mut [u8]),
    ) -> bool {
        if self.read_stored(index..index + 1, part.offset(), output) {
            return true;
        }
        if let Some(stored) = &self.stored
            && let Some(chunk) = stored.prove(index)
        {
            within(&chunk, output);
            stored.mark_used(index..index + 1);
            return true;
        }
        self.recent.find(index).inspect(|chunk| within(chunk, output)).is_some()
    }

    /// Reads from stored chunks that this process has proven.
    fn read_stored(&self, chunks: Range<ChunkIndex>, offset: u64, output: &mut [u8]) -> bool {
        let Some(stored) = &self.stored else { return false };
        let is_read = stored.read_proven(chunks.clone(), offset, output);
        if is_read {
            stored.mark_used(chunks);
        }
        is_read
    }

    /// The chunks around `index`, which is missing, that are missing too, within `reach` and within one request.
    pub(crate) fn request_for(&self, index: ChunkIndex, reach: Range<ChunkIndex>, cause: Cause) -> Range<ChunkIndex> {
        let wish = self.fetcher.request_bytes(cause).min(crate::REQUEST_BYTES_MAX);
        let count_max = (wish / self.layout.range(index).len().max(1)).max(1);
        let end = reach.end.min(index + count_max);
        let start = reach.start.max(end.saturating_sub(count_max)).min(index);
        let Some(stored) = self.stored.as_ref().filter(|_| end - start > 1) else { return start..end };
        let present = stored.presence(start..end);
        let (before, after) = present.split_at(usize::try_from(index - start).unwrap_or(0));
        let missing = |is_present: &&bool| !**is_present;
        let before = before.iter().rev().take_while(missing).count() as u64;
        let after = after.iter().skip(1).take_while(missing).count() as u64;
        index - before..index + 1 + after
    }

    /// The first of these chunks that is neither present nor in flight.
    pub(crate) fn first_missing(&self, chunks: Range<ChunkIndex>) -> Option<ChunkIndex> {
        self.first_absent(chunks, |index| !self.flights.has(index))
    }

    /// Whether none of these chunks need be fetched.
    pub(crate) fn has(&self, chunks: Range<ChunkIndex>) -> bool {
        self.first_absent(chunks, |_| true).is_none()
    }

    fn first_absent(&self, chunks: Range<ChunkIndex>, counts: impl Fn(ChunkIndex) -> bool) -> Option<ChunkIndex> {
        let is_absent = |index: ChunkIndex| self.recent.find(index).is_none() && counts(index);
        let Some(stored) = &self.stored else { return { chunks }.find(|index| is_absent(*index)) };
        let mut start = chunks.start;
        while start < chunks.end {
            let end = chunks.end.min(start + LOOK_CHUNKS);
            let mut entries = (start..end).zip(stored.presence(start..end));
            if let Some((index, _)) = entries.find(|(index, is_present)| !is_present && is_absent(*index)) {
                return Some(index);
            }
            start = end;
        }
        None
    }
}

impl TreeBlocks for CachedObject {
    fn tree_block(&self, range: ByteRange, attempt: Attempt) -> io::Result<Bytes> {
        let mut block = vec![0; usize::try_from(range.len()).unwrap_or(0)];
        let index = self.layout.index_of(range.offset());
        let reach: ReachOf<'_> = &Reach::only;
        let mut reading = Reading { end: index + 1, cause: Cause::Tree, attempt, reach, led: Led::new() };
        self.read_part(index, range, &mut block, &mut reading)?;
        Ok(block.into())
    }
}

/// The last chunks that could not be stored, because readers often return for the rest of a chunk.
#[derive(Debug, Default)]
pub(crate) struct RecentChunks {
    chunks: Mutex<VecDeque<(ChunkIndex, Bytes)>>,
}

impl RecentChunks {
    pub(crate) fn find(&self, index: ChunkIndex) -> Option<Bytes> {
        let chunks = self.chunks.lock();
        chunks.iter().find(|(kept, _)| *kept == index).map(|(_, bytes)| bytes.clone())
    }

    /// Stores a copy, so that one chunk does not keep a whole request in memory.
    pub(crate) fn keep(&self, index: ChunkIndex, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        let mut chunks = self.chunks.lock();
        chunks.retain(|(kept, _)| *kept != index);
        chunks.push_back((index, bytes));
        let mut excess = chunks.iter().map(|(_, bytes)| bytes.len()).sum::<usize>().saturating_sub(RECENT_BYTES_MAX);
        while excess > 0 {
            let oldest = chunks.pop_front().map_or(excess, |(_, bytes)| bytes.len());
            excess = excess.saturating_sub(oldest);
        }
    }

    pub(crate) fn forget(&self, gone: &Range<ChunkIndex>) {
        self.chunks.lock().retain(|(kept, _)| !gone.contains(kept));
    }
}

/// The flight of a chunk that the current read has fetched itself, once. Those of earlier chunks are no longer needed.
fn led_flight(led: &mut Led, index: ChunkIndex) -> Option<Arc<Flight>> {
    while led.front().is_some_and(|(led, _)| *led < index) {
        led.pop_front();
    }
    led.front().is_some_and(|(led, _)| *led == index).then(|| led.pop_front()).flatten().map(|(_, flight)| flight)
}
