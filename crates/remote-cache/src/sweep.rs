//! The clock that selects sections for eviction, over all objects of the cache.

use std::{ffi::OsStr, io};

use crate::{
    BootId, CHUNK_BYTES, DIGEST_BYTES, Digest,
    key::About,
    layout::{ChunkLayout, SectionIndex},
    stored_object::StoredObject,
    trusted_directory::TrustedDirectory,
    trusted_path::Missing,
};

/// How many chunks are examined per read of a map.
const LOOK_CHUNKS: u64 = 1024;

/// The position of the clock's hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hand {
    pub(crate) object: Digest,
    pub(crate) section: SectionIndex,
}

impl Hand {
    pub(crate) const START: Self = Self { object: Digest([0; DIGEST_BYTES]), section: 0 };
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

/// The sections that a round of the hand spares. The first two rounds are those of an ordinary clock: a section that was used
/// since the hand last passed gets a second chance. The third round evicts pinned sections, and the fourth every
/// section that is not locked.
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

/// Evicts sections from the position of the hand until `excess` bytes are freed. The caller holds the eviction lock.
pub(crate) fn sweep(root: &TrustedDirectory, boot: BootId, hand: Hand, excess: u64) -> Swept {
    let mut swept = Swept::default();
    let mut objects = objects(root);
    let start = objects.partition_point(|id| *id < hand.object);
    objects.rotate_left(start);
    let mut first = hand.section;
    for round in ROUNDS {
        for id in &objects {
            let from = if *id == hand.object { first } else { 0 };
            let Ok(object) = existing(root, *id, boot) else {
                let _ = remove_unknown(root, *id, boot);
                continue;
            };
            let Some(stopped) = sweep_object(&object, round, from, excess, &mut swept) else {
                let _ = remove_if_empty(root, id, &object);
                continue;
            };
            swept.hand = Some(Hand { object: *id, section: stopped });
            return swept;
        }
        first = 0;
    }
    swept
}

/// Frees the space of chunks without an entry, which killed processes have left, and removes unreadable objects.
pub(crate) fn tidy(root: &TrustedDirectory, boot: BootId) -> Swept {
    let mut swept = Swept::default();
    let round = Round { spares_present: true, spares_used: true, spares_pinned: true };
    for id in objects(root) {
        match existing(root, id, boot) {
            Ok(object) => {
                sweep_object(&object, round, 0, u64::MAX, &mut swept);
                let _ = remove_if_empty(root, &id, &object);
            }
            Err(_) => drop(remove_unknown(root, id, boot)),
        }
    }
    swept
}

/// Evicts sections of one object. Returns the position of the hand once enough space is free.
fn sweep_object(
    object: &StoredObject,
    round: Round,
    from: SectionIndex,
    excess: u64,
    swept: &mut Swept,
) -> Option<SectionIndex> {
    let freed_before = swept.bytes;
    let allocated = object.allocated_bytes();
    // Iterates over sections with space, not over entries, because killed processes leave space without an entry.
    for section in object.allocated_sections().into_iter().filter(|section| *section >= from) {
        let present = object.presence(object.layout().chunks_of(section)).into_iter().filter(|is| *is).count() as u64;
        let is_present = present > 0;
        if is_present && round.spares_present {
            continue;
        }
        let (was_used, is_pinned) = object.take_use(section);
        if is_present && (was_used && round.spares_used || is_pinned && round.spares_pinned) {
            continue;
        }
        if evict(object, section).unwrap_or(false) {
            swept.chunks += present;
            swept.bytes = freed_before + allocated.saturating_sub(object.allocated_bytes());
            if swept.bytes >= excess {
                return Some(section + 1);
            }
        }
    }
    None
}

/// Evicts one section, unless the lock of one of its chunks is taken.
fn evict(object: &StoredObject, section: SectionIndex) -> io::Result<bool> {
    let chunks = object.layout().chunks_of(section);
    let Some(_lock) = object.try_lock(chunks.clone())? else { return Ok(false) };
    object.clear(chunks)?;
    Ok(true)
}

/// Removes the directory of an object that has no chunks and is not open. Returns whether it did.
pub(crate) fn remove_if_empty(root: &TrustedDirectory, id: &Digest, object: &StoredObject) -> io::Result<bool> {
    let chunks = object.layout().chunks();
    let is_empty = (0..chunks)
        .step_by(LOOK_CHUNKS as usize)
        .all(|first| !object.presence(first..chunks.min(first + LOOK_CHUNKS)).contains(&true));
    if !is_empty {
        return Ok(false);
    }
    let Some(_lock) = object.try_exclude_all()? else { return Ok(false) };
    remove(root, id)?;
    Ok(true)
}

/// Removes the directory of an object whose description or files are torn, unless a process has it open. A process that is just
/// creating the object must wait, so the files that it locks are created first.
fn remove_unknown(root: &TrustedDirectory, id: Digest, boot: BootId) -> io::Result<()> {
    let directory = StoredObject::directory(root, &id, Missing::Refused);
    match directory.and_then(|directory| {
        StoredObject::open_files(&directory, ChunkLayout::new(0, 0, CHUNK_BYTES), id, boot, Missing::Created)
    }) {
        Ok(object) => remove_if_empty(root, &id, &object).map(drop),
        // It was removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => remove(root, &id),
    }
}

fn remove(root: &TrustedDirectory, id: &Digest) -> io::Result<()> {
    let trash = root.create_below("trash")?;
    let id = id.to_string();
    let name = format!("{id}-{}", std::process::id());
    root.open_below("objects")?.open_below(&id[..2])?.rename(&id, &trash, &name)?;
    match trash.remove_all(&name) {
        // A process that opened the cache meanwhile has already removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn existing(root: &TrustedDirectory, id: Digest, boot: BootId) -> io::Result<StoredObject> {
    open(&StoredObject::directory(root, &id, Missing::Refused)?, id, boot)
}

/// Opens the object in a directory.
pub(crate) fn open(directory: &TrustedDirectory, id: Digest, boot: BootId) -> io::Result<StoredObject> {
    let about = About::read(directory, &id).ok_or(io::ErrorKind::InvalidData)?;
    StoredObject::open_files(directory, about.layout, id, boot, Missing::Refused)
}

/// The ids of all objects of the cache, sorted.
pub(crate) fn objects(root: &TrustedDirectory) -> Vec<Digest> {
    let mut objects = Vec::new();
    for_each_name(root, "objects", |_, name| objects.extend(name.to_str().and_then(|id| id.parse::<Digest>().ok())));
    objects.sort();
    objects
}

/// The space of all files of the cache on disk, in bytes.
pub(crate) fn allocated_bytes(root: &TrustedDirectory) -> u64 {
    let mut bytes = 0;
    let mut add = |folder: &TrustedDirectory, name: &OsStr| {
        bytes += folder.stat(name).map_or(0, |status| u64::try_from(status.st_blocks).unwrap_or(0) * 512);
    };
    for id in objects(root) {
        if let Ok(directory) = StoredObject::directory(root, &id, Missing::Refused) {
            directory.names().iter().for_each(|name| add(&directory, name));
        }
    }
    ["blobs", "names"].into_iter().for_each(|kind| for_each_name(root, kind, &mut add));
    bytes
}

/// Visits the names in all subdirectories of `objects`, `blobs` or `names`.
pub(crate) fn for_each_name(root: &TrustedDirectory, kind: &str, mut visit: impl FnMut(&TrustedDirectory, &OsStr)) {
    let Ok(kind) = root.open_below(kind) else { return };
    for folder in kind.names() {
        if let Some(Ok(folder)) = folder.to_str().map(|folder| kind.open_below(folder)) {
            folder.names().iter().for_each(|name| visit(&folder, name));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::DirBuilderExt};

    use super::*;
    use crate::{Location, ObjectKey, Trust};

    #[test]
    fn objects_in_use_are_not_removed_whatever_is_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let location = Location { url: "memory".to_owned(), etag: "1".to_owned() };
        let key = ObjectKey { trust: Trust::Location(location), len: 300_000 };
        let (about, id, boot) = (About::of(&key, "memory").expect("it parses"), key.id(), BootId::of("first"));
        let root = TrustedDirectory::create(folder.path(), "v2").expect("a directory");
        let directory = root.path().join("objects").join(&id.to_string()[..2]).join(id.to_string());
        for missing in [&["about"][..], &["about", "data"], &["usage"], &[]] {
            let object = StoredObject::open(&root, &about, id, boot).expect("it opens");
            missing.iter().for_each(|name| fs::remove_file(directory.join(name)).expect("it is there"));
            tidy(&root, boot);
            assert!(directory.exists(), "{missing:?}");
            drop(object);
            tidy(&root, boot);
            assert!(!directory.exists(), "{missing:?}");
        }
        // An invalid object is removed.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory.join("map")).expect("created");
        tidy(&root, boot);
        assert!(!directory.exists());
    }
}
