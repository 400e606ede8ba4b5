//! Reads the chunks of an open object.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use floe_image::ByteRange;
use floe_sync::Mutex;

use crate::{
    Cache, Cause, FetchError, FetchFault, ObjectKey, RangeFetcher,
    counters::Counters,
    flights::{Flight, Flights, Outcome, Role, copy_of},
    layout::{ChunkIndex, ChunkLayout},
    stored_object::StoredObject,
    verifier::Verifier,
    verity::{Attempt, TreeBlocks},
};

/// The maximum number of attempts of a read for a chunk whose flights are abandoned.
const ATTEMPTS_MAX: usize = 64;

/// The number of chunks that could not be stored and are kept in memory: 8 MiB.
const RECENT_CHUNKS_MAX: usize = 32;

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
    /// Set once the object is open. Before that, only chunks of the hash tree are read.
    pub(crate) verifier: OnceLock<Verifier>,
    /// How long a read waits for another process that fetches a chunk.
    pub(crate) flight_patience: Duration,
}

/// The chunks that the current read has fetched itself: it need not read them back from the disk.
type Led = VecDeque<(ChunkIndex, Arc<Flight>)>;

impl CachedObject {
    /// Fills `output` with the bytes of `range`, which are all data or all tree, for a reader that waits.
    pub(crate) fn read(&self, range: ByteRange, output: &mut [u8], cause: Cause) -> io::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (first, last) = (self.layout.index_of(range.offset()), self.layout.index_of(range.end() - 1));
        let mut led = Led::new();
        let mut rest = output;
        for index in first..=last {
            let part = self.layout.range(index).intersection(range);
            let (output, after) = rest.split_at_mut(usize::try_from(part.len()).unwrap_or(rest.len()));
            rest = after;
            self.read_part(index, part, last, output, (cause, Attempt::First), &mut led)?;
        }
        Ok(())
    }

    /// Fills `output` if all of it is in memory and was proven by this process.
    pub(crate) fn try_read_at(&self, range: ByteRange, output: &mut [u8]) -> bool {
        if range.is_empty() {
            return true;
        }
        let Some(stored) = &self.stored else { return false };
        let (first, last) = (self.layout.index_of(range.offset()), self.layout.index_of(range.end() - 1));
        let mut rest = output;
        for index in first..=last {
            let part = self.layout.range(index).intersection(range);
            let (output, after) = rest.split_at_mut(usize::try_from(part.len()).unwrap_or(rest.len()));
            rest = after;
            if !stored.try_read_at(index, part.offset(), output) {
                return false;
            }
            stored.mark_used(index);
        }
        self.counters.hits.add(last - first + 1);
        true
    }

    /// Fills `output` with the bytes of `part`, which are in one chunk. Fetches the chunk if it is missing, together
    /// with missing chunks up to `last`.
    fn read_part(
        &self,
        index: ChunkIndex,
        part: ByteRange,
        last: ChunkIndex,
        output: &mut [u8],
        (cause, attempt): (Cause, Attempt),
        led: &mut Led,
    ) -> io::Result<()> {
        let within = |chunk: &Bytes, output: &mut [u8]| {
            let start = usize::try_from(part.offset() - self.layout.range(index).offset()).unwrap_or(usize::MAX);
            output.copy_from_slice(&chunk[start..start + output.len()]);
        };
        for _ in 0..ATTEMPTS_MAX {
            while led.front().is_some_and(|(led, _)| *led < index) {
                led.pop_front();
            }
            let (flight, is_own) = if led.front().is_some_and(|(led, _)| *led == index) {
                (led.pop_front().map(|(_, flight)| flight), true)
            } else if attempt == Attempt::First && self.read_present(index, part, output, &within) {
                self.counters.hits.add(1);
                return Ok(());
            } else {
                match self.flights.enter(index, self.missing(index, last, cause), cause) {
                    Role::Follower(flight) => {
                        self.counters.joined.add(1);
                        if flight.cause() == Cause::Prefetch {
                            self.fetcher.promote(part);
                        }
                        (Some(flight), false)
                    }
                    Role::Leader(leads) => {
                        self.counters.misses.add(leads.len() as u64);
                        *led = leads.iter().map(|lead| (lead.index(), Arc::clone(lead.flight()))).collect();
                        self.fill(leads, cause, attempt);
                        (led.pop_front().map(|(_, flight)| flight), true)
                    }
                }
            };
            let Some(flight) = flight else { continue };
            match flight.wait() {
                Outcome::Bytes(chunk) => {
                    within(&chunk, output);
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
        if let Some(stored) = &self.stored {
            if stored.read_proven(index, part.offset(), output) {
                stored.mark_used(index);
                return true;
            }
            if let Some(chunk) = stored.prove(index) {
                within(&chunk, output);
                stored.mark_used(index);
                return true;
            }
        }
        self.recent.find(index).inspect(|chunk| within(chunk, output)).is_some()
    }

    /// How many consecutive chunks from `first` to `last` are missing and fit into one request. `first` is known to be
    /// missing.
    pub(crate) fn missing(&self, first: ChunkIndex, last: ChunkIndex, cause: Cause) -> u64 {
        let chunk_bytes = self.layout.range(first).len().max(1);
        let wish = self.fetcher.request_bytes(cause).min(crate::REQUEST_BYTES_MAX);
        let count = (wish / chunk_bytes).clamp(1, last - first + 1);
        let Some(stored) = self.stored.as_ref().filter(|_| count > 1) else { return count };
        let present = stored.presence(first + 1, count - 1);
        1 + present.iter().take_while(|is_present| !**is_present).count() as u64
    }

    /// Whether the chunk need not be fetched.
    pub(crate) fn is_present(&self, index: ChunkIndex) -> bool {
        let is_stored = self.stored.as_ref().is_some_and(|stored| stored.look(index).is_some());
        is_stored || self.recent.find(index).is_some()
    }
}

impl TreeBlocks for CachedObject {
    fn tree_block(&self, range: ByteRange, attempt: Attempt) -> io::Result<Bytes> {
        let mut block = vec![0; usize::try_from(range.len()).unwrap_or(0)];
        let index = self.layout.index_of(range.offset());
        self.read_part(index, range, index, &mut block, (Cause::Tree, attempt), &mut Led::new())?;
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
        if chunks.len() >= RECENT_CHUNKS_MAX {
            chunks.pop_front();
        }
        chunks.push_back((index, bytes));
    }

    pub(crate) fn forget(&self, index: ChunkIndex) {
        self.chunks.lock().retain(|(kept, _)| *kept != index);
    }
}
