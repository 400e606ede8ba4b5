//! Fills missing chunks: locks them against other processes, fetches, verifies and stores them.

use std::{io, sync::Arc};

use bytes::Bytes;
use floe_image::ByteRange;

use crate::{
    Cause, Digest, FetchError, FetchFault,
    cached_object::CachedObject,
    entry::MapEntry,
    fetcher::hand_over,
    flights::{Lead, Outcome},
    layout::{CHUNK_BYTES, ChunkIndex},
    locks_sys::FileLock,
    prefetch::alongside,
    stored_object::StoredObject,
    verifier::Verifier,
    verity::{Attempt, VerifyError},
};

/// Consecutive chunks that one request fetches. A chunk without a lock is not stored.
type Run = Vec<(Lead, Option<FileLock>)>;

impl CachedObject {
    /// Fetches the chunks of these leads, which are consecutive, and ends their flights. Waits for other processes only
    /// while it holds no lock. Chunks of the hash tree are an exception: they wait only for chunks nearer to the root.
    pub(crate) fn fill(&self, leads: Vec<Lead>, cause: Cause, attempt: Attempt) {
        let mut run = Run::new();
        for lead in leads {
            let index = lead.index();
            let Some(stored) = &self.stored else {
                run.push((lead, None));
                continue;
            };
            let is_patient = run.is_empty() && cause != Cause::Prefetch;
            let lock = if is_patient { stored.lock(index, self.flight_patience) } else { stored.try_lock(index) };
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
                Ok(Some(lock)) => match self.recover(stored, index, attempt) {
                    None => run.push((lead, Some(lock))),
                    Some(chunk) => {
                        drop(lock);
                        lead.end(Outcome::Bytes(chunk));
                        self.get(std::mem::take(&mut run), cause, attempt);
                    }
                },
                // Another process has stored the chunk, or is stuck. In the latter case this process continues without
                // a lock.
                Ok(None) => match stored.prove(index) {
                    Some(chunk) => lead.end(Outcome::Bytes(chunk)),
                    None => run.push((lead, None)),
                },
                Err(error) => {
                    self.store_failed(&error);
                    run.push((lead, None));
                }
            }
        }
        self.get(run, cause, attempt);
    }

    /// Returns the bytes of a locked chunk if another process has stored them correctly meanwhile. Removes the chunk if
    /// its bytes are wrong.
    fn recover(&self, stored: &StoredObject, index: ChunkIndex, attempt: Attempt) -> Option<Bytes> {
        let entry = stored.look(index)?;
        if attempt == Attempt::First {
            if let Some(chunk) = stored.prove(index) {
                return Some(chunk);
            }
            let chunk = stored.read_whole(index, &entry).filter(|chunk| entry.fits(chunk));
            let chunk = chunk.filter(|_| !stored.is_of_this_boot(&entry));
            if let Some(chunk) = chunk {
                match self.verify_again(index, &chunk, &entry) {
                    Ok(()) => {
                        let stamped = stored.stamp(index, &chunk, Some(entry.digest));
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
        let _ = stored.clear(index).inspect_err(|error| self.store_failed(error));
        None
    }

    /// Fetches the chunks of a run and ends their flights.
    fn get(&self, run: Run, cause: Cause, attempt: Attempt) {
        let Some((first, _)) = run.first() else { return };
        let range = self.layout.run(first.index(), run.len() as u64);
        let may_store = run.iter().any(|(_, lock)| lock.is_some()) && self.reserve(range.len());
        let mut unused = if may_store { range.len() } else { 0 };
        let is_in_parts = attempt == Attempt::First && self.may_end_early(&run);
        let mut rest = run.into_iter();
        let mut end = |(lead, lock): (Lead, Option<FileLock>), chunk: Result<Bytes, Arc<io::Error>>| {
            let index = lead.index();
            let admitted = chunk.and_then(|chunk| self.admit(index, chunk, cause, lock.as_ref().filter(|_| may_store)));
            // The lock must be free before the flight ends: see `Lead::end`.
            drop(lock);
            match admitted {
                Ok((chunk, is_stored)) => {
                    if is_stored {
                        unused -= self.layout.range(index).len();
                    }
                    lead.end(Outcome::Bytes(chunk));
                }
                Err(error) => lead.end(Outcome::Failed(error)),
            }
        };
        let fetched = self.with_hashes(range, cause, || {
            if is_in_parts {
                return self.fetch_in_chunks(range, cause, &mut |chunk| {
                    if let Some(led) = rest.next() {
                        end(led, Ok(chunk));
                    }
                });
            }
            let bytes = self.fetch_whole(range, cause, attempt)?;
            for led in rest.by_ref() {
                let chunk = self.layout.range(led.0.index());
                let start = usize::try_from(chunk.offset() - range.offset()).unwrap_or(usize::MAX);
                end(led, Ok(bytes.slice(start..start + usize::try_from(chunk.len()).unwrap_or(0))));
            }
            Ok(())
        });
        if let Err(error) = fetched {
            rest.for_each(|led| end(led, Err(Arc::clone(&error))));
        }
        if may_store && let Some(cache) = &self.cache {
            cache.budget().settle(range.len(), unused);
        }
    }

    /// Whether chunks of a run may be used before the whole run has arrived: data with a root, because a chunk with the right
    /// digest is right whatever follows it.
    fn may_end_early(&self, run: &Run) -> bool {
        let has_root = matches!(self.verifier.get(), Some(Verifier::Verity(_) | Verifier::Table(_)));
        has_root && run.len() > 1 && run.last().is_some_and(|(last, _)| !self.layout.is_tree(last.index()))
    }

    /// Verifies a fetched chunk, and stores it if its lock is held. Returns whether it was stored.
    fn admit(
        &self,
        index: ChunkIndex,
        chunk: Bytes,
        cause: Cause,
        lock: Option<&FileLock>,
    ) -> Result<(Bytes, bool), Arc<io::Error>> {
        let range = self.layout.range(index);
        let (chunk, digest) = match self.verify(index, &chunk) {
            Ok(digest) => (chunk, digest),
            Err(VerifyError::Io(error)) => return Err(Arc::new(error)),
            Err(VerifyError::Wrong { .. }) => {
                self.counters.verification_failures.add(1);
                let chunk = self.fetch_whole(range, cause, Attempt::Again)?;
                match self.verify(index, &chunk) {
                    Ok(digest) => (chunk, digest),
                    Err(VerifyError::Io(error)) => return Err(Arc::new(error)),
                    Err(VerifyError::Wrong { rule, offset }) => {
                        self.counters.verification_failures.add(1);
                        let message = format!("{}, byte {offset}: {rule} ({})", self.fetcher.name(), self.key);
                        return Err(Arc::new(FetchError::new(FetchFault::WrongBytes, message).into()));
                    }
                }
            }
        };
        let stored = self.stored.as_ref().filter(|_| lock.is_some()).map(|stored| stored.store(index, &chunk, digest));
        let is_stored = match stored {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                self.store_failed(&error);
                false
            }
            None => false,
        };
        if is_stored {
            self.recent.forget(index);
        } else {
            self.counters.uncached_chunks.add(1);
            self.recent.keep(index, &chunk);
        }
        Ok((chunk, is_stored))
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
        let is_at_hand = leaves.is_empty()
            || tree.is_warm(range)
            || (self.layout.index_of(leaves.offset())..=self.layout.index_of(leaves.end() - 1))
                .all(|index| self.is_present(index));
        if is_at_hand {
            return fetch();
        }
        // Errors are ignored here: verification reads the tree again and reports them.
        let fetch_hashes = || {
            let mut hashes = vec![0; usize::try_from(leaves.len()).unwrap_or(0)];
            let _ = self.read(leaves, &mut hashes, Cause::Tree);
        };
        alongside(fetch_hashes, fetch)
    }

    /// Fetches the data chunks of `range`, and hands over each as it arrives. After an answer of a wrong length, tries another
    /// mirror once for the rest.
    fn fetch_in_chunks(
        &self,
        range: ByteRange,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> Result<(), Arc<io::Error>> {
        let (mut bytes, mut start) = (0, range.offset());
        let fetched = self.fetcher.fetch_in_parts(range, CHUNK_BYTES, cause, &mut |chunk| {
            bytes += chunk.len() as u64;
            start = start.saturating_add(CHUNK_BYTES);
            arrived(chunk);
        });
        self.counters.fetched(cause, bytes);
        match fetched {
            // A chunk of a wrong length does not have the right digest.
            Ok(()) if start >= range.end() => return Ok(()),
            Err(error) if FetchError::fault_of(&error) != FetchFault::WrongBytes => return Err(Arc::new(error)),
            _ => self.counters.verification_failures.add(1),
        }
        let rest = ByteRange::between(start.min(range.end()), range.end());
        hand_over(self.fetch_whole(rest, cause, Attempt::Again)?, CHUNK_BYTES, arrived);
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

    /// Verifies a chunk. Chunks of a hash tree are stored unverified: a hash block is verified when it is loaded into memory.
    fn verify(&self, index: ChunkIndex, chunk: &[u8]) -> Result<Option<Digest>, VerifyError> {
        if self.layout.is_tree(index) {
            return Ok(None);
        }
        self.verifier()?.verify((index, self.layout.range(index)), chunk, self, &self.counters)
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
