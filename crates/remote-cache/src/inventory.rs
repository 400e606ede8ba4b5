//! Lists, checks and removes objects of the cache for users.

use std::{
    io,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use floe_image::ByteRange;

use crate::{
    Cache, Digest, DigestTable, VerityRoot,
    counters::Counters,
    key::{About, AboutRoot},
    layout::ChunkIndex,
    stored_object::StoredObject,
    sweep::{allocated_bytes, for_each_name, objects, open, remove_if_empty, tidy},
    trusted_directory::TrustedDirectory,
    trusted_path::Missing,
    verifier::Verifier,
    verity::{Attempt, Geometry, TreeBlocks, VerifyError, VerityTree},
};

/// How long unused blobs and names are kept.
const UNUSED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long a check or a removal waits for chunks that are in use.
const PATIENCE: Duration = Duration::from_secs(2);

/// A report about one object of the cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectReport {
    /// The name of the object's directory.
    pub id: Digest,
    /// The kind of verification, and the length of the object.
    pub key: String,
    /// The URL that it was last opened with, without credentials.
    pub name: String,
    /// Whether its bytes are verified against a root of trust.
    pub is_verified: bool,
    /// The length in bytes.
    pub len: u64,
    /// The space of the data on disk, in bytes.
    pub allocated_bytes: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The number of cached chunks.
    pub present_chunks: u64,
    /// The number of pinned chunks among them.
    pub pinned_chunks: u64,
    /// Whether a process has the object open.
    pub is_open: bool,
    /// The time of the last use, accurate to some seconds.
    pub used: Option<SystemTime>,
}

/// The results of checking an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Chunks that are correct.
    pub sound_chunks: u64,
    /// Chunks that were corrupt and have been removed.
    pub removed_chunks: u64,
    /// Chunks that are unchanged since they were stored, but whose hashes are not in the cache.
    pub unproven_chunks: u64,
}

impl Cache {
    /// The objects of the cache, by id.
    pub fn list(&self) -> Vec<ObjectReport> {
        let objects = objects(self.root()).into_iter();
        objects.filter_map(|id| self.report(id).ok().flatten()).collect()
    }

    /// Reads all cached chunks of an object, verifies them against its root, and removes corrupt ones. Returns `None`
    /// if the object does not exist.
    ///
    /// # Errors
    /// The object cannot be opened.
    pub fn check(&self, id: &Digest) -> io::Result<Option<CheckReport>> {
        let Some((about, object)) = self.find(*id)? else { return Ok(None) };
        let verifier = self.verifier_of(&about, &object);
        let mut report = CheckReport::default();
        for index in object.allocated_sections().into_iter().flat_map(|section| object.layout().chunks_of(section)) {
            match check_chunk(&object, index, verifier.as_ref()) {
                None => {}
                Some(Soundness::Sound) => report.sound_chunks += 1,
                Some(Soundness::Unproven) => report.unproven_chunks += 1,
                Some(Soundness::Wrong) => report.removed_chunks += 1,
            }
        }
        Ok(Some(report))
    }

    /// Evicts until the cache takes at most `goal_bytes`. Also removes leftovers of killed processes, and blobs and
    /// names that were not used for 30 days. Returns the bytes before and after.
    ///
    /// # Errors
    /// The state of the cache cannot be read or written.
    pub fn prune(&self, goal_bytes: u64) -> io::Result<(u64, u64)> {
        let before = allocated_bytes(self.root());
        for folder in ["blobs", "names"] {
            remove_unused(self.root(), folder);
        }
        tidy(self.root(), self.boot());
        self.budget().shrink_to(goal_bytes)?;
        Ok((before, allocated_bytes(self.root())))
    }

    /// Removes all chunks of an object, and the object itself unless a process has it open. Returns whether the object
    /// is gone, or `None` if it does not exist.
    ///
    /// # Errors
    /// The object cannot be opened, or a chunk cannot be removed.
    pub fn drop_object(&self, id: &Digest) -> io::Result<Option<bool>> {
        let Some((_, object)) = self.find(*id)? else { return Ok(None) };
        for section in object.allocated_sections() {
            if let Some(_lock) = object.lock_section(section, PATIENCE)? {
                object.clear(object.layout().chunks_of(section))?;
            }
        }
        let is_gone = remove_if_empty(self.root(), id, &object)?;
        self.budget().shrink_to(u64::MAX)?;
        Ok(Some(is_gone))
    }

    /// An object, if it exists and has a valid description.
    fn find(&self, id: Digest) -> io::Result<Option<(About, StoredObject)>> {
        let Ok(directory) = StoredObject::directory(self.root(), &id, Missing::Refused) else { return Ok(None) };
        let Some(about) = About::read(&directory, &id) else { return Ok(None) };
        let object = open(&directory, id, self.boot())?;
        Ok(Some((about, object)))
    }

    fn report(&self, id: Digest) -> io::Result<Option<ObjectReport>> {
        let Some((about, object)) = self.find(id)? else { return Ok(None) };
        let (mut present_chunks, mut pinned_chunks) = (0, 0);
        for section in object.allocated_sections() {
            let chunks = object.presence(object.layout().chunks_of(section));
            let present = chunks.into_iter().filter(|is_present| *is_present).count() as u64;
            present_chunks += present;
            pinned_chunks += if present > 0 && object.is_pinned(section) { present } else { 0 };
        }
        Ok(Some(ObjectReport {
            id,
            is_verified: about.root != AboutRoot::Location,
            len: about.layout.end(),
            allocated_bytes: object.allocated_bytes(),
            chunks: about.layout.chunks(),
            present_chunks,
            pinned_chunks,
            is_open: object.try_exclude_all()?.is_none(),
            used: object.used(),
            key: about.key,
            name: about.name,
        }))
    }

    /// The verifier of an object; `None` if the cache lacks its data.
    fn verifier_of(&self, about: &About, object: &StoredObject) -> Option<Verifier> {
        match about.root {
            AboutRoot::Location => Some(Verifier::FirstSeen),
            AboutRoot::Table(digest) => {
                let bytes = self.blob(&digest, DigestTable::bytes_for(about.layout.end()))?;
                Some(Verifier::Table(DigestTable::parse(&bytes, &digest).ok()?.into()))
            }
            AboutRoot::Tree(root) => Some(Verifier::Verity(Box::new(VerityTree::beside(&root)))),
            AboutRoot::Verity(root) => Some(Verifier::Verity(Box::new(tree_of(object, &root)?))),
        }
    }
}

fn tree_of(object: &StoredObject, root: &VerityRoot) -> Option<VerityTree> {
    let superblock = object.tree_block(ByteRange::new(root.hash_offset, 512), Attempt::First).ok()?;
    let geometry = Geometry::of_object(&superblock, root, object.layout().end()).ok()?;
    Some(VerityTree::new(geometry, root.root_hash))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Soundness {
    Sound,
    Unproven,
    Wrong,
}

/// Checks a chunk and removes it if it is corrupt. Returns `None` if it is absent.
fn check_chunk(object: &StoredObject, index: ChunkIndex, verifier: Option<&Verifier>) -> Option<Soundness> {
    let entry = object.look(index)?;
    let range = object.layout().range(index);
    let chunk = object.read_whole(index, &entry).filter(|chunk| entry.fits(chunk));
    let outcome = match (chunk, verifier) {
        // The chunk was evicted during the read, or it is corrupt.
        (None, _) => Err(VerifyError::Wrong { rule: "a chunk changed after it was stored", offset: range.offset() }),
        (Some(_), _) if object.layout().is_tree(index) => Ok(()),
        (Some(_), None) => return Some(Soundness::Unproven),
        (Some(chunk), Some(verifier)) => {
            verifier.verify_again((index, range), &chunk, &entry, object, &Counters::default())
        }
    };
    match outcome {
        Ok(()) => Some(Soundness::Sound),
        Err(VerifyError::Io(_)) => Some(Soundness::Unproven),
        Err(VerifyError::Wrong { .. }) => {
            let _lock = object.try_lock(index..index + 1).ok().flatten()?;
            // Another process may have replaced or evicted it.
            object.look(index).filter(|now| *now == entry)?;
            object.clear(index..index + 1).ok().map(|()| Soundness::Wrong)
        }
    }
}

impl TreeBlocks for StoredObject {
    /// Reads only cached bytes.
    fn tree_block(&self, range: ByteRange, _attempt: Attempt) -> io::Result<Bytes> {
        let index = self.layout().index_of(range.offset());
        let chunk = self.look(index).and_then(|entry| self.read_whole(index, &entry).filter(|chunk| entry.fits(chunk)));
        let chunk = chunk.ok_or(io::ErrorKind::NotFound)?;
        let start = usize::try_from(range.offset() - self.layout().range(index).offset()).unwrap_or(usize::MAX);
        let end = start.saturating_add(usize::try_from(range.len()).unwrap_or(usize::MAX));
        if end > chunk.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(chunk.slice(start..end))
    }
}

/// Removes long unused files from the subdirectories of a directory.
fn remove_unused(root: &TrustedDirectory, folder: &str) {
    for_each_name(root, folder, |folder, name| {
        let modified = folder.stat(name).ok().and_then(|status| u64::try_from(status.st_mtime).ok());
        let modified = modified.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        if modified.is_some_and(|modified| modified.elapsed().is_ok_and(|unused| unused > UNUSED_MAX)) {
            let _ = folder.remove_file(name);
        }
    });
}
