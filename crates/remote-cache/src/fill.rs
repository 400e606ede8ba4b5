//! Fills missing chunks: locks them against other processes, fetches, verifies and stores them.

use std::{io, sync::Arc};

use bytes::Bytes;
use floe_image::ByteRange;

use crate::{
    Cause, Digest, FetchError, FetchFault, SECTION_BYTES,
    cached_object::{CachedObject, Reach},
    entry::MapEntry,
    fetcher::hand_over,
    flights::{Lead, Outcome},
    layout::ChunkIndex,
    locks_sys::FileLock,
    prefetch::alongside,
    stored_object::StoredObject,
    verifier::Verifier,
    verity::{Attempt, VerifyError},
};

/// Consecutive chunks that one request fetches. Without a lock, they are not stored.
#[derive(Default)]
struct Run {
    leads: Vec<Lead>,
    lock: Option<FileLock>,
}

/// A fetched chunk, with the digest for its entry.
type Verified = Result<(Bytes, Option<Digest>), Arc<io::Error>>;

impl CachedObject {
    /// Fetches the chunks of these leads, which are consecutive, and ends their flights. Waits for other processes only
    /// while it holds no lock. Chunks of the hash tree are an exception: they wait only for chunks nearer to the root.
    pub(crate) fn fill(&self, leads: Vec<Lead>, cause: Cause, attempt: Attempt) {
        let (Some(first), Some(last)) = (leads.first().map(Lead::index), leads.last().map(Lead::index)) else { return };
        let Some(stored) = &self.stored else { return self.get(Run { leads, lock: None }, cause, attempt) };
        match stored.try_lock(first..last + 1) {
            Ok(Some(lock)) => self.fill_locked(stored, leads, lock, cause, attempt),
            // Another process fetches some of them.
            Ok(None) => self.fill_singly(stored, leads, cause, attempt),
            Err(error) => {
                self.store_failed(&error);
                self.get(Run { leads, lock: None }, cause, attempt);
            }
        }
    }

    fn fill_locked(&self, stored: &StoredObject, leads: Vec<Lead>, mut lock: FileLock, cause: Cause, attempt: Attempt) {
        let first = leads.first().map_or(0, Lead::index);
        let entries = stored.entries(first..first + leads.len() as u64).into_iter().chain(std::iter::repeat(None));
        let mut run = Run::default();
        for (lead, entry) in leads.into_iter().zip(entries) {
            let lock = lock.split_front(1);
            match entry.and_then(|entry| self.recover(stored, lead.index(), &entry, attempt)) {
                None => self.take(&mut run, lead, Some(lock), cause, attempt),
                Some(chunk) => {
                    drop(lock);
                    lead.end(Outcome::Bytes(chunk));
                    self.get(std::mem::take(&mut run), cause, attempt);
                }
            }
        }
        self.get(run, cause, attempt);
    }

    /// Like [`CachedObject::fill_locked`], but locks one chunk after the other.
    fn fill_singly(&self, stored: &StoredObject, leads: Vec<Lead>, cause: Cause, attempt: Attempt) {
        let mut run = Run::default();
        for lead in leads {
            let index = lead.index();
            let is_patient = run.leads.is_empty() && cause != Cause::Prefetch;
            let lock =
                if is_patient { stored.lock(index, self.flight_patience) } else { stored.try_lock(index..index + 1) };
            let lock = match lock {
                Ok(None) if cause == Cause::Prefetch => {
                    // Another process fetches the chunk. The flight ends here, so that a reader that follows it waits for
                    // that process instead.
                    self.get(std::mem::take(&mut run), cause, attempt);
                    continue;
                }
                Ok(None) if !is_patient => {
                    self.get(std::mem::take(&mut run), cause, attempt);
                    stored.lock(index, self.flight_patience)
                }
                lock => lock,
            };
            match lock {
                Ok(Some(lock)) => {
                    let entry = stored.look(index);
                    match entry.and_then(|entry| self.recover(stored, index, &entry, attempt)) {
                        None => self.take(&mut run, lead, Some(lock), cause, attempt),
                        Some(chunk) => {
                            drop(lock);
                            lead.end(Outcome::Bytes(chunk));
                            self.get(std::mem::take(&mut run), cause, attempt);
                        }
                    }
                }
                // Another process has stored the chunk, or is stuck. In the latter case this process continues without
                // a lock.
                Ok(None) => match stored.prove(index) {
                    Some(chunk) => {
                        lead.end(Outcome::Bytes(chunk));
                        self.get(std::mem::take(&mut run), cause, attempt);
                    }
                    None => self.take(&mut run, lead, None, cause, attempt),
                },
                Err(error) => {
                    self.store_failed(&error);
                    self.take(&mut run, lead, None, cause, attempt);
                }
            }
        }
        self.get(run, cause, attempt);
    }

    /// Adds a chunk to a run. Fetches the chunks of the run first if they differ in having a lock.
    fn take(&self, run: &mut Run, lead: Lead, lock: Option<FileLock>, cause: Cause, attempt: Attempt) {
        if !run.leads.is_empty() && run.lock.is_some() != lock.is_some() {
            self.get(std::mem::take(run), cause, attempt);
        }
        run.leads.push(lead);
        match (&mut run.lock, lock) {
            (Some(held), Some(lock)) => held.join(lock),
            (_, lock) => run.lock = lock,
        }
    }

    /// Returns the bytes of a locked chunk if another process has stored them correctly meanwhile. Removes the chunk if
    /// its bytes are wrong.
    fn recover(&self, stored: &StoredObject, index: ChunkIndex, entry: &MapEntry, attempt: Attempt) -> Option<Bytes> {
        if attempt == Attempt::First {
            if let Some(chunk) = stored.prove(index) {
                return Some(chunk);
            }
            let chunk = stored.read_whole(index, entry).filter(|chunk| entry.fits(chunk));
            let chunk = chunk.filter(|_| !stored.is_of_this_boot(entry));
            if let Some(chunk) = chunk {
                match self.verify_again(index, &chunk, entry) {
                    Ok(()) => {
                        let stamped = stored.stamp(index, &chunk, &[Some(entry.digest)]);
                        let _ = stamped.inspect_err(|error| self.store_failed(error));
                        return Some(chunk);
                    }
                    // The data to verify the chunk cannot be read now. That does not make the chunk wrong.
                    Err(VerifyError::Io(_)) => return None,
                    Err(VerifyError::Wrong { .. }) => {}
                }
            }
        }
        self.counters.corrupt_chunks.add(1);
        let _ = stored.clear(index..index + 1).inspect_err(|error| self.store_failed(error));
        None
    }

    /// Fetches the chunks of a run and ends their flights.
    fn get(&self, run: Run, cause: Cause, attempt: Attempt) {
        let (Some(first), Some(last)) = (run.leads.first(), run.leads.last()) else { return };
        let range = self.layout.run(first.index()..last.index() + 1);
        let is_in_parts = attempt == Attempt::First && self.may_end_early(&run);
        let Run { leads, mut lock } = run;
        let may_store = lock.is_some() && self.reserve(range.len());
        let mut unused = if may_store { range.len() } else { 0 };
        let mut rest = leads.into_iter();
        // Ends the flights of the next chunks, which are in these bytes.
        let mut end = |leads: Vec<Lead>, bytes: Result<&Bytes, &Arc<io::Error>>| {
            let part = lock.as_mut().map(|lock| lock.split_front(leads.len() as u64));
            let outcomes = match bytes {
                Ok(bytes) => self.admit(&leads, bytes, cause, part.as_ref().filter(|_| may_store), &mut unused),
                Err(error) => leads.iter().map(|_| Err(Arc::clone(error))).collect(),
            };
            // The lock must be free before the flights end: see `Lead::end`.
            drop(part);
            for (lead, outcome) in leads.into_iter().zip(outcomes) {
                lead.end(outcome.map_or_else(Outcome::Failed, Outcome::Bytes));
            }
        };
        let fetched = self.with_hashes(range, cause, || {
            if is_in_parts {
                let per_part = usize::try_from(SECTION_BYTES / self.layout.chunk_bytes()).unwrap_or(1);
                return self.fetch_in_sections(range, cause, &mut |part| {
                    end(rest.by_ref().take(per_part).collect(), Ok(&part));
                });
            }
            let bytes = self.fetch_whole(range, cause, attempt)?;
            end(rest.by_ref().collect(), Ok(&bytes));
            Ok(())
        });
        if let Err(error) = fetched {
            end(rest.collect(), Err(&error));
        }
        if may_store && let Some(cache) = &self.cache {
            cache.budget().settle(range.len(), unused);
        }
    }

    /// Whether chunks of a run may be used before the whole run has arrived: data with a root, because a chunk with the right
    /// digest is right whatever follows it.
    fn may_end_early(&self, run: &Run) -> bool {
        let has_root = matches!(self.verifier.get(), Some(Verifier::Verity(_) | Verifier::Table(_)));
        has_root && run.leads.len() > 1 && run.leads.last().is_some_and(|last| !self.layout.is_tree(last.index()))
    }

    /// Verifies fetched chunks, and stores them if their lock is held. Reduces `unused` by the number of stored bytes.
    fn admit(
        &self,
        leads: &[Lead],
        bytes: &Bytes,
        cause: Cause,
        lock: Option<&FileLock>,
        unused: &mut u64,
    ) -> Vec<Result<Bytes, Arc<io::Error>>> {
        let (Some(first), Some(last)) = (leads.first().map(Lead::index), leads.last().map(Lead::index)) else {
            return Vec::new();
        };
        let chunks = first..last + 1;
        let run = self.layout.run(chunks.clone());
        // Parts of a wrong length have no right chunk.
        let is_whole = bytes.len() as u64 == run.len();
        let slices: Vec<Bytes> = chunks
            .clone()
            .map(|index| {
                let range = self.layout.range(index);
                let start = usize::try_from(range.offset() - run.offset()).unwrap_or(usize::MAX);
                let end = start.saturating_add(usize::try_from(range.len()).unwrap_or(usize::MAX));
                if is_whole { bytes.slice(start..end) } else { Bytes::new() }
            })
            .collect();
        let verified = self.verify(first, &slices);
        let digests: Vec<Option<Digest>> =
            verified.iter().map_while(|outcome| outcome.as_ref().ok().copied()).collect();
        if digests.len() == slices.len() {
            *unused -= if self.keep(first, bytes, &slices, &digests, lock) { run.len() } else { 0 };
            return slices.into_iter().map(Ok).collect();
        }
        let right = chunks.zip(slices.into_iter().zip(verified)).map(|(index, (chunk, outcome))| {
            let (chunk, digest) = self.right(index, chunk, outcome, cause)?;
            let is_stored = self.keep(index, &chunk, std::slice::from_ref(&chunk), &[digest], lock);
            *unused -= if is_stored { chunk.len() as u64 } else { 0 };
            Ok(chunk)
        });
        right.collect()
    }

    /// Returns a verified chunk; fetches it once more if its bytes were wrong.
    fn right(
        &self,
        index: ChunkIndex,
        chunk: Bytes,
        outcome: Result<Option<Digest>, VerifyError>,
        cause: Cause,
    ) -> Verified {
        match outcome {
            Ok(digest) => return Ok((chunk, digest)),
            Err(VerifyError::Io(error)) => return Err(Arc::new(error)),
            Err(VerifyError::Wrong { .. }) => self.counters.verification_failures.add(1),
        }
        let chunk = self.fetch_whole(self.layout.range(index), cause, Attempt::Again)?;
        match self.verify(index, std::slice::from_ref(&chunk)).pop() {
            Some(Ok(digest)) => Ok((chunk, digest)),
            Some(Err(VerifyError::Wrong { rule, offset })) => {
                self.counters.verification_failures.add(1);
                let message = format!("{}, byte {offset}: {rule} ({})", self.fetcher.name(), self.key);
                Err(Arc::new(FetchError::new(FetchFault::WrongBytes, message).into()))
            }
            Some(Err(VerifyError::Io(error))) => Err(Arc::new(error)),
            None => Err(Arc::new(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Stores consecutive verified chunks with these bytes if their lock is held. Returns whether they were stored.
    fn keep(
        &self,
        first: ChunkIndex,
        bytes: &[u8],
        chunks: &[Bytes],
        digests: &[Option<Digest>],
        lock: Option<&FileLock>,
    ) -> bool {
        let stored = self.stored.as_ref().filter(|_| lock.is_some()).map(|stored| stored.store(first, bytes, digests));
        match stored {
            Some(Ok(())) => {
                self.recent.forget(&(first..first + chunks.len() as u64));
                return true;
            }
            Some(Err(error)) => self.store_failed(&error),
            None => {}
        }
        self.counters.uncached_chunks.add(chunks.len() as u64);
        (first..).zip(chunks).for_each(|(index, chunk)| self.recent.keep(index, chunk));
        false
    }

    /// Calls `fetch`, which fetches `range`, and in parallel fetches the part of the hash tree that verifies it.
    fn with_hashes<T>(&self, range: ByteRange, cause: Cause, fetch: impl FnOnce() -> T) -> T {
        let tree = match self.verifier.get().filter(|_| cause != Cause::Tree) {
            Some(Verifier::Verity(tree)) => tree,
            // As below: verification asks for the table again.
            Some(Verifier::Table(root)) if root.known().is_none() => return alongside(|| drop(root.table()), fetch),
            _ => return fetch(),
        };
        let leaves = tree.leaves_of(range);
        if leaves.is_empty() || tree.is_warm(range) {
            return fetch();
        }
        // Errors are ignored here: verification reads the tree again and reports them.
        let read = |part: ByteRange| {
            let mut hashes = vec![0; usize::try_from(part.len()).unwrap_or(0)];
            let _ = self.read(part, &mut hashes, Cause::Tree, &Reach::only);
        };
        let top = tree.top();
        match [leaves, top].map(|part| self.has(self.chunks_of(part))) {
            [true, true] => fetch(),
            [false, true] => alongside(|| read(leaves), fetch),
            [true, false] => alongside(|| read(top), fetch),
            [false, false] => alongside(|| alongside(|| read(top), || read(leaves)), fetch),
        }
    }

    /// Fetches the data of `range`, and hands over each [`SECTION_BYTES`] as they arrive. After an answer of a wrong length, tries
    /// another mirror once for the rest.
    fn fetch_in_sections(
        &self,
        range: ByteRange,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> Result<(), Arc<io::Error>> {
        let (mut bytes, mut start) = (0, range.offset());
        let fetched = self.fetcher.fetch_in_parts(range, SECTION_BYTES, cause, &mut |part| {
            bytes += part.len() as u64;
            start = start.saturating_add(SECTION_BYTES);
            arrived(part);
        });
        self.counters.fetched(cause, bytes);
        match fetched {
            // A part of a wrong length does not have the right digests.
            Ok(()) if start >= range.end() => return Ok(()),
            Err(error) if FetchError::fault_of(&error) != FetchFault::WrongBytes => return Err(Arc::new(error)),
            _ => self.counters.verification_failures.add(1),
        }
        let rest = ByteRange::between(start.min(range.end()), range.end());
        hand_over(self.fetch_whole(rest, cause, Attempt::Again)?, SECTION_BYTES, arrived);
        Ok(())
    }

    /// Fetches exactly `range`. After an answer of a wrong length, tries another mirror once.
    fn fetch_whole(&self, range: ByteRange, cause: Cause, attempt: Attempt) -> Result<Bytes, Arc<io::Error>> {
        let fetch = |attempt| {
            let bytes = match attempt {
                Attempt::First => self.fetcher.fetch(range, cause),
                Attempt::Again => self.fetcher.fetch_elsewhere(range, cause),
            }?;
            self.counters.fetched(cause, bytes.len() as u64);
            if bytes.len() as u64 == range.len() {
                return Ok(bytes);
            }
            let (name, len) = (self.fetcher.name(), bytes.len());
            let message = format!("{name}, bytes {range}: {len} bytes came instead of {}", range.len());
            Err(io::Error::from(FetchError::new(FetchFault::WrongBytes, message)))
        };
        let fetched = fetch(attempt);
        let fetched = match fetched {
            Err(error) if attempt == Attempt::First && FetchError::fault_of(&error) == FetchFault::WrongBytes => {
                self.counters.verification_failures.add(1);
                fetch(Attempt::Again)
            }
            fetched => fetched,
        };
        fetched.map_err(Arc::new)
    }

    /// Verifies consecutive chunks. Chunks of a hash tree are stored unverified: a hash block is verified when it is loaded into
    /// memory.
    fn verify(&self, first: ChunkIndex, chunks: &[Bytes]) -> Vec<Result<Option<Digest>, VerifyError>> {
        if self.layout.is_tree(first) {
            return chunks.iter().map(|_| Ok(None)).collect();
        }
        let placed = (first..).zip(chunks).map(|(index, chunk)| (index, self.layout.range(index), &**chunk));
        match self.verifier() {
            Ok(verifier) => verifier.verify(&placed.collect::<Vec<_>>(), self, &self.counters),
            Err(_) => chunks.iter().map(|_| self.verifier().map(|_| None)).collect(),
        }
    }

    fn verify_again(&self, index: ChunkIndex, chunk: &[u8], entry: &MapEntry) -> Result<(), VerifyError> {
        if self.layout.is_tree(index) {
            return Ok(());
        }
        self.verifier()?.verify_again((index, self.layout.range(index)), chunk, entry, self, &self.counters)
    }

    fn verifier(&self) -> Result<&Verifier, VerifyError> {
        self.verifier.get().ok_or_else(|| io::Error::other("the object is not open yet").into())
    }

    fn reserve(&self, bytes: u64) -> bool {
        let Some(cache) = self.cache.as_ref().filter(|cache| cache.is_storing()) else { return false };
        cache.budget().reserve(bytes).unwrap_or_else(|error| {
            cache.store_failed(&error);
            false
        })
    }

    pub(crate) fn store_failed(&self, error: &io::Error) {
        if let Some(cache) = &self.cache {
            cache.store_failed(error);
        }
    }
}
