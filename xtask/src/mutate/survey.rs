//! Everything that an image shows, within limits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    ops::ControlFlow,
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::Path,
};

use floe::{Attr, Error, FileType, Image, SeekTarget};
use floe_image::{DirectoryCursor, FileSystem, Nid};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// The maximum number of entries visited.
const ENTRIES_MAX: usize = 10_000;
/// The listing of a directory is continued after each of its first entries, up to this many.
const CONTINUED_MAX: usize = 64;
/// Files up to this size are read completely; of larger ones, parts of [`PART_BYTES`].
const WHOLE_BYTES_MAX: u64 = 4 << 20;
const PART_BYTES: u64 = 1 << 20;
/// The maximum number of bytes read of all files.
const READ_BYTES_MAX: u64 = 64 << 20;
/// The maximum number of bytes read of all xattr values: many inodes may share a large one.
const XATTR_BYTES_MAX: usize = 8 << 20;

/// Everything that an image shows, within limits.
#[derive(Default)]
pub(super) struct Survey {
    /// The entries by path.
    pub(super) entries: BTreeMap<Vec<u8>, Seen>,
    /// The violated rules, each with the first location.
    pub(super) errors: BTreeMap<String, String>,
    /// The first xattr that is listed but not found. As on the kernel's mount, that happens if the inode's filter or a malformed
    /// value hides it; the check then warns.
    pub(super) hidden_xattr: Option<String>,
    /// Whether everything was visited.
    pub(super) is_whole: bool,
    left_bytes: u64,
    left_xattr_bytes: usize,
    seen: BTreeSet<Nid>,
}

/// An entry.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub(super) file_type: FileType,
    pub(super) size: u64,
    /// The digest of the bytes read, or of a link target; `None` if reading failed or was skipped.
    pub(super) digest: Option<u128>,
}

impl Survey {
    /// Surveys an image; reads data only if `read` is set, in pieces of `piece_bytes`.
    pub(super) fn new(image: &Image, read: bool, piece_bytes: usize) -> Self {
        let mut survey =
            Self { is_whole: true, left_bytes: READ_BYTES_MAX, left_xattr_bytes: XATTR_BYTES_MAX, ..Self::default() };
        for entry in image.walk() {
            if survey.entries.len() == ENTRIES_MAX {
                survey.is_whole = false;
                break;
            }
            match entry {
                Ok(entry) => {
                    let seen = survey.look(image, &entry.attr, read.then_some(piece_bytes));
                    survey.entries.insert(entry.path, seen);
                }
                Err(error) => survey.note::<()>(Err(error.error)).unwrap_or_default(),
            }
        }
        survey
    }

    fn look(&mut self, image: &Image, attr: &Attr, piece_bytes: Option<usize>) -> Seen {
        let file_system = image.file_system().as_ref();
        if self.seen.insert(attr.nid) {
            for name in self.note(file_system.xattr_names(attr.nid)).unwrap_or_default() {
                if self.left_xattr_bytes == 0 {
                    self.is_whole = false;
                    break;
                }
                let value = self.note(file_system.xattr(attr.nid, &name));
                if value == Some(None) {
                    let place = || format!("{} of inode {}", name.escape_ascii(), attr.nid);
                    self.hidden_xattr.get_or_insert_with(place);
                }
                let value = value.flatten();
                self.left_xattr_bytes = self.left_xattr_bytes.saturating_sub(value.map_or(0, |value| value.len()));
            }
            // An extraction reads all attributes of an inode together.
            let mut left = self.left_xattr_bytes;
            let all = file_system.xattrs(attr.nid, &mut |xattr| {
                left = left.saturating_sub(xattr.value.len());
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            self.note(all);
        }
        let digest = match attr.file_type {
            FileType::Symlink => self.note(file_system.read_link(attr.nid)).map(|target| xxh3_128(&target)),
            FileType::Directory => {
                for name in [&b"no such name"[..], b".."] {
                    self.note(file_system.lookup(attr.nid, name));
                }
                self.check_listing(file_system, attr.nid);
                None
            }
            FileType::Regular => {
                for target in [SeekTarget::Data, SeekTarget::Hole] {
                    self.note(file_system.seek(attr.nid, attr.size.saturating_sub(PART_BYTES), target));
                }
                piece_bytes.and_then(|piece_bytes| self.read(image, attr, piece_bytes))
            }
            _ => None,
        };
        Seen { file_type: attr.file_type, size: attr.size, digest }
    }

    fn read(&mut self, image: &Image, attr: &Attr, piece_bytes: usize) -> Option<u128> {
        let Some(left) = self.left_bytes.checked_sub(wanted_bytes(attr.size)) else {
            self.is_whole = false;
            return None;
        };
        self.left_bytes = left;
        self.is_whole &= attr.size <= WHOLE_BYTES_MAX;
        let read = |offset: u64, output: &mut [u8]| image.read_at(attr.nid, offset, output);
        let digest = digest(attr.size, piece_bytes, read);
        self.note(digest)
    }

    /// Looks up each listed name, and continues the listing after each of the first names.
    fn check_listing(&mut self, file_system: &dyn FileSystem, directory: Nid) {
        let mut listed = Vec::new();
        let outcome = file_system.read_dir(directory, DirectoryCursor::default(), &mut |dirent| {
            listed.push((dirent.name.to_vec(), dirent.nid, dirent.next));
            if listed.len() < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        self.note(outcome);
        for (number, (name, nid, next)) in listed.iter().enumerate() {
            let found = self.note(file_system.lookup(directory, name));
            if found.is_some_and(|found| found != Some(*nid)) {
                self.contradiction("a lookup does not find what is listed", directory, name);
            }
            let Some((following, ..)) = listed.get(number + 1).filter(|_| number < CONTINUED_MAX) else { continue };
            let mut is_following = false;
            let continued = file_system.read_dir(directory, *next, &mut |dirent| {
                is_following = dirent.name == following.as_slice();
                ControlFlow::Break(())
            });
            if self.note(continued).is_some() && !is_following {
                self.contradiction("a listing continues elsewhere", directory, following);
            }
        }
    }

    /// Records that two ways of reading contradict each other. In a sound image they must not.
    fn contradiction(&mut self, rule: &str, nid: Nid, name: &[u8]) {
        let place = || format!("{rule}: {} of inode {nid}", name.escape_ascii());
        self.errors.entry(rule.to_owned()).or_insert_with(place);
    }

    fn note<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
        outcome.map_err(|error| self.errors.entry(rule(&error)).or_insert(error.to_string())).ok()
    }
}

/// Surveys a directory with system calls, within the same limits; skips what cannot be read.
pub(super) fn directory(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut found = BTreeMap::new();
    let mut pending = vec![(root.to_path_buf(), b"/".to_vec(), 0)];
    let mut left = READ_BYTES_MAX;
    while let Some((location, path, depth)) = pending.pop() {
        let Ok(metadata) = fs::symlink_metadata(&location) else { continue };
        let kind = metadata.file_type();
        let mut seen = Seen { file_type: FileType::Directory, size: metadata.len(), digest: None };
        if kind.is_dir() {
            let entries = fs::read_dir(&location).into_iter().flatten().flatten();
            for entry in entries.take(if depth < 100 { ENTRIES_MAX } else { 0 }) {
                let mut below = path.clone();
                if path != b"/" {
                    below.push(b'/');
                }
                below.extend_from_slice(entry.file_name().as_bytes());
                pending.push((entry.path(), below, depth + 1));
            }
        } else if kind.is_symlink() {
            seen.file_type = FileType::Symlink;
            let target = fs::read_link(&location).ok();
            seen.digest = target.map(|target| xxh3_128(target.as_os_str().as_bytes()));
        } else if kind.is_file() {
            seen.file_type = FileType::Regular;
            if let Some(rest) = left.checked_sub(wanted_bytes(metadata.len())) {
                left = rest;
                seen.digest = read_file(&location, metadata.len()).ok();
            }
        } else {
            continue;
        }
        found.insert(path, seen);
        if found.len() == ENTRIES_MAX {
            break;
        }
    }
    found
}

fn read_file(path: &Path, size: u64) -> io::Result<u128> {
    let file = File::open(path)?;
    digest(size, 64 << 10, |offset, output| file.read_at(output, offset))
}

/// The digest of the bytes of a file that a survey reads.
fn digest<E>(
    size: u64,
    piece_bytes: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<u128, E> {
    let mut hash = Xxh3Default::new();
    // Small files do not need pages of a large buffer.
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(piece_bytes).min(piece_bytes)];
    let parts = if size <= WHOLE_BYTES_MAX {
        [0..size, 0..0, 0..0]
    } else {
        [0..PART_BYTES, size / 2..size / 2 + PART_BYTES, size - PART_BYTES..size]
    };
    for part in parts {
        let mut position = part.start;
        while position < part.end {
            let wanted = (piece_bytes as u64).min(part.end - position) as usize;
            let len = read(position, &mut buffer[..wanted])?;
            hash.update(&buffer[..len]);
            if len == 0 {
                break;
            }
            position += len as u64;
        }
    }
    Ok(hash.digest128())
}

fn wanted_bytes(size: u64) -> u64 {
    if size <= WHOLE_BYTES_MAX { size } else { 3 * PART_BYTES }
}

/// The message of an error without the location.
pub(super) fn rule(error: &Error) -> String {
    match error {
        Error::Corrupt { rule, .. } => (*rule).to_owned(),
        Error::Io { error, .. } => format!("cannot read: {}", error.kind()),
        Error::WrongType { expected, .. } => format!("is not {expected}"),
        Error::Unsupported { feature } => {
            let words: String =
                feature.chars().map(|letter| if letter.is_ascii_digit() { '0' } else { letter }).collect();
            format!("not supported: {}", words.split(" (").next().unwrap_or_default())
        }
        other => other.to_string(),
    }
}
