//! The clock that selects chunks for eviction, over all objects of the cache.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    BootId, DIGEST_BYTES, Digest,
    about::About,
    layout::{ChunkIndex, ChunkLayout},
    stored_object::StoredObject,
};

/// How many chunks are examined per read of a map.
const LOOK_CHUNKS: u64 = 1024;

/// The position of the clock's hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hand {
    pub(crate) object: Digest,
    pub(crate) chunk: ChunkIndex,
}

impl Hand {
    pub(crate) const START: Self = Self { object: Digest([0; DIGEST_BYTES]), chunk: 0 };
}

/// The results of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Swept {
    /// The space that was freed on disk, in bytes.
    pub(crate) bytes: u64,
    /// The number of evicted chunks.
    pub(crate) chunks: u64,
    /// The final position of the hand.
    pub(crate) hand: Option<Hand>,
}

/// The chunks that a round of the hand spares. The first two rounds are those of an ordinary clock: a chunk that was
/// used since the hand last passed gets a second chance. The third round evicts pinned chunks, and the fourth every
/// chunk that is not locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Round {
    spares_present: bool,
    spares_used: bool,
    spares_pinned: bool,
}

const ROUNDS: [Round; 4] = [
    Round { spares_present: false, spares_used: true, spares_pinned: true },
    Round { spares_present: false, spares_used: true, spares_pinned: true },
    Round { spares_present: false, spares_used: true, spares_pinned: false },
    Round { spares_present: false, spares_used: false, spares_pinned: false },
];

/// Evicts chunks from the position of the hand until `excess` bytes are freed. The caller holds the eviction lock.
pub(crate) fn sweep(root: &Path, boot: BootId, hand: Hand, excess: u64) -> Swept {
    let mut swept = Swept::default();
    let mut objects = objects(root);
    let start = objects.partition_point(|(id, _)| *id < hand.object);
    objects.rotate_left(start);
    let mut first = hand.chunk;
    for round in ROUNDS {
        for (id, directory) in &objects {
            let from = if *id == hand.object { first } else { 0 };
            let Ok(object) = open(directory, *id, boot) else {
                let _ = remove_unknown(root, directory, *id, boot);
                continue;
            };
            let Some(stopped) = sweep_object(&object, round, from, excess, &mut swept) else {
                let _ = remove_if_empty(root, directory, &object);
                continue;
            };
            swept.hand = Some(Hand { object: *id, chunk: stopped });
            return swept;
        }
        first = 0;
    }
    swept
}

/// Frees the space of chunks without an entry, which killed processes have left, and removes unreadable objects.
pub(crate) fn tidy(root: &Path, boot: BootId) -> Swept {
    let mut swept = Swept::default();
    let round = Round { spares_present: true, spares_used: true, spares_pinned: true };
    for (id, directory) in objects(root) {
        match open(&directory, id, boot) {
            Ok(object) => {
                sweep_object(&object, round, 0, u64::MAX, &mut swept);
                let _ = remove_if_empty(root, &directory, &object);
            }
            Err(_) => drop(remove_unknown(root, &directory, id, boot)),
        }
    }
    swept
}

/// Evicts chunks of one object. Returns the position of the hand once enough space is free.
fn sweep_object(
    object: &StoredObject,
    round: Round,
    from: ChunkIndex,
    excess: u64,
    swept: &mut Swept,
) -> Option<ChunkIndex> {
    let freed_before = swept.bytes;
    let allocated = object.allocated_bytes();
    // Iterates over chunks with space, not over entries, because killed processes leave space without an entry.
    for index in object.allocated_chunks().into_iter().filter(|index| *index >= from) {
        let is_present = object.look(index).is_some();
        if is_present && round.spares_present {
            continue;
        }
        let (was_used, is_pinned) = object.take_use(index);
        if is_present && (was_used && round.spares_used || is_pinned && round.spares_pinned) {
            continue;
        }
        if evict(object, index).unwrap_or(false) {
            swept.chunks += u64::from(is_present);
            swept.bytes = freed_before + allocated.saturating_sub(object.allocated_bytes());
            if swept.bytes >= excess {
                return Some(index + 1);
            }
        }
    }
    None
}

/// Evicts one chunk, unless its lock is taken.
fn evict(object: &StoredObject, index: ChunkIndex) -> io::Result<bool> {
    let Some(_lock) = object.try_lock(index)? else { return Ok(false) };
    object.clear(index)?;
    Ok(true)
}

/// Removes the directory of an object that has no chunks and is not open. Returns whether it did.
pub(crate) fn remove_if_empty(root: &Path, directory: &Path, object: &StoredObject) -> io::Result<bool> {
    let chunks = object.layout().chunks();
    let is_empty = (0..chunks).step_by(LOOK_CHUNKS as usize).all(|first| {
        let count = LOOK_CHUNKS.min(chunks - first);
        !object.presence(first, count).contains(&true)
    });
    if !is_empty {
        return Ok(false);
    }
    let Some(_lock) = object.try_exclude_all()? else { return Ok(false) };
    remove(root, directory)?;
    Ok(true)
}

/// Removes the directory of an object whose description or files are torn, unless a process has it open. A process that is just
/// creating the object must wait, so the files that it locks are created first.
fn remove_unknown(root: &Path, directory: &Path, id: Digest, boot: BootId) -> io::Result<()> {
    match StoredObject::complete(directory, ChunkLayout::new(0, 0), id, boot) {
        Ok(object) => remove_if_empty(root, directory, &object).map(drop),
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => remove(root, directory),
    }
}

fn remove(root: &Path, directory: &Path) -> io::Result<()> {
    let trash = root.join("trash");
    fs::create_dir_all(&trash)?;
    let name = format!("{}-{}", directory.file_name().unwrap_or_default().display(), std::process::id());
    fs::rename(directory, trash.join(&name))?;
    match fs::remove_dir_all(trash.join(name)) {
        // A process that opened the cache meanwhile has already removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Opens the object in a directory.
pub(crate) fn open(directory: &Path, id: Digest, boot: BootId) -> io::Result<StoredObject> {
    let about = About::read(directory, &id).ok_or(io::ErrorKind::InvalidData)?;
    StoredObject::inspect(directory, about.layout, id, boot)
}

/// The ids of all objects of the cache with their directories, sorted by id.
pub(crate) fn objects(root: &Path) -> Vec<(Digest, PathBuf)> {
    let folders = entries(&root.join("objects")).into_iter().flat_map(|folder| entries(&folder));
    let mut objects: Vec<_> =
        folders.filter_map(|path| Some((path.file_name()?.to_str()?.parse().ok()?, path))).collect();
    objects.sort();
    objects
}

/// The space of all files of the cache on disk, in bytes.
pub(crate) fn allocated_bytes(root: &Path) -> u64 {
    let files = |folder: PathBuf| entries(&folder).into_iter();
    let in_objects = objects(root).into_iter().flat_map(|(_, directory)| files(directory));
    let others =
        ["blobs", "names"].map(|name| root.join(name)).into_iter().flat_map(|folder| files(folder).flat_map(files));
    let bytes = |path: PathBuf| fs::symlink_metadata(path).map_or(0, |metadata| metadata.blocks() * 512);
    in_objects.chain(others).map(bytes).sum()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Location, ObjectKey, Trust};

    #[test]
    fn objects_in_use_are_not_removed_whatever_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let location = Location { url: "memory".to_owned(), etag: "1".to_owned() };
        let key = ObjectKey { trust: Trust::Location(location), len: 300_000 };
        let (about, id, boot) = (About::of(&key, "memory").expect("it parses"), key.id(), BootId::of("first"));
        let directory = folder.path().join("objects").join("ab").join(id.to_string());
        for missing in [&["about"][..], &["about", "data"], &["usage"], &[]] {
            let object = StoredObject::open(&directory, &about, id, boot).expect("it opens");
            missing.iter().for_each(|name| fs::remove_file(directory.join(name)).expect("it is there"));
            tidy(folder.path(), boot);
            assert!(directory.exists(), "{missing:?}");
            drop(object);
            tidy(folder.path(), boot);
            assert!(!directory.exists(), "{missing:?}");
        }
        // What cannot be an object is removed.
        fs::create_dir_all(directory.join("map")).expect("created");
        tidy(folder.path(), boot);
        assert!(!directory.exists());
    }
}
