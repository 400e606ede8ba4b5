//! The content of the packed inode: a sequence of fragments.

use std::{
    collections::HashMap,
    fs::File,
    iter,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh64::xxh64;

use crate::{
    error::{Error, Result},
    files::output_file::scratch_file,
    tree::content::Content,
};

/// The comparison size in bytes.
const COMPARE_LEN: usize = 64 << 10;
/// The number of last bytes that two fragments must have in common before the rest is compared.
const END_LEN: usize = 64;
/// The maximum number of fragments with the same last bytes that are compared.
const SAME_END_MAX: usize = 8;

/// Collects fragments in a temporary file and finds duplicates.
///
/// Similar fragments compress better next to each other, so fragments are sorted within runs of some MiB; runs are
/// short enough to keep related data close. Until a run is full, its fragments have provisional offsets; [`FinalOffsets`]
/// maps them to final ones.
pub(crate) struct Packed {
    file: File,
    path: PathBuf,
    run_len: usize,
    /// The start of the open run.
    written: u64,
    /// The fragments of the open run in order of arrival.
    run: Vec<u8>,
    run_fragments: Vec<Fragment>,
    /// The number of a fragment by its hash and its length.
    known: HashMap<[u8; 12], u32>,
    /// The number of the last fragment by the hash of its last bytes; [`Moved::same_end`] leads to the others.
    ends: HashMap<[u8; 8], u32>,
    fragments: Vec<Moved>,
    duplicate_bytes: u64,
}

/// A fragment of the open run.
struct Fragment {
    number: usize,
    group: u32,
    start: usize,
    len: usize,
}

/// The provisional and the final offset of a fragment. Sorting changes the order only within a run.
#[derive(Clone, Copy, Debug)]
struct Moved {
    provisional: u64,
    placed: u64,
    len: u32,
    /// The number of an earlier fragment with the same last bytes, or [`NONE`].
    same_end: u32,
}

/// The number of no fragment.
const NONE: u32 = u32::MAX;

/// The part of a fragment that is already present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownEnd {
    /// Its offset.
    pub(crate) offset: u64,
    /// How many of the fragment's last bytes are present.
    pub(crate) len: usize,
}

/// The final offsets of fragments.
pub(crate) struct FinalOffsets {
    /// In order of arrival.
    fragments: Vec<Moved>,
}

impl FinalOffsets {
    /// The final offset for a provisional one.
    pub(crate) fn offset(&self, offset: u64) -> u64 {
        let count = self.fragments.partition_point(|fragment| fragment.provisional <= offset);
        let fragment = count.checked_sub(1).and_then(|last| self.fragments.get(last));
        fragment.map_or(offset, |fragment| fragment.placed + (offset - fragment.provisional))
    }
}

impl Packed {
    /// Creates an empty inode with a temporary file next to the image at `path`, and runs of about `run_len` bytes.
    pub(crate) fn new(path: &Path, run_len: usize) -> Result<Self> {
        Ok(Self {
            file: scratch_file(path)?,
            path: path.to_path_buf(),
            run_len,
            written: 0,
            run: Vec::new(),
            run_fragments: Vec::new(),
            known: HashMap::new(),
            ends: HashMap::new(),
            fragments: Vec::new(),
            duplicate_bytes: 0,
        })
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.run.len() as u64
    }

    /// How many bytes were found as duplicates.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Counts bytes that were found with [`Packed::known_end`] and are not added.
    pub(crate) fn count_duplicate(&mut self, len: usize) {
        self.duplicate_bytes += len as u64;
    }

    /// The longest end of a fragment, or all of it, that is already present. `hash` is that of the whole fragment.
    pub(crate) fn known_end(&self, fragment: &[u8], hash: u64) -> Result<Option<KnownEnd>> {
        if let Some(number) = self.known.get(&key(hash, fragment.len())).map(|number| *number as usize)
            && self.common_end(number, fragment)? == fragment.len()
        {
            return Ok(Some(KnownEnd { offset: self.fragments[number].provisional, len: fragment.len() }));
        }
        let Some(end) = fragment.len().checked_sub(END_LEN) else { return Ok(None) };
        let mut best: Option<(usize, usize)> = None;
        for number in self.with_end(&fragment[end..]) {
            let len = self.common_end(number, fragment)?;
            if len >= END_LEN && best.is_none_or(|(_, longest)| len > longest) {
                best = Some((number, len));
            }
        }
        Ok(best.map(|(number, len)| {
            let Moved { provisional, len: whole_len, .. } = self.fragments[number];
            KnownEnd { offset: provisional + u64::from(whole_len) - len as u64, len }
        }))
    }

    /// Adds a fragment with this hash, of a file in this similarity group; returns its provisional offset.
    pub(crate) fn add(&mut self, fragment: &[u8], hash: u64, group: u32) -> Result<u64> {
        let number = self.fragments.len();
        let offset = self.len();
        self.fragments.push(Moved::new(offset, fragment.len()));
        self.run_fragments.push(Fragment { number, group, start: self.run.len(), len: fragment.len() });
        self.run.extend_from_slice(fragment);
        // More fragments than there are numbers are stored all the same, but not found again.
        if let Some(number) = u32::try_from(number).ok().filter(|number| *number != NONE) {
            self.known.insert(key(hash, fragment.len()), number);
            if let Some(end) = fragment.len().checked_sub(END_LEN) {
                self.add_end(&fragment[end..], number);
            }
        }
        if self.run.len() >= self.run_len {
            self.close_run()?;
        }
        Ok(offset)
    }

    /// Appends part of a file that arrives in contiguous parts; returns its offset.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        self.close_run()?;
        let offset = self.written;
        self.fragments.push(Moved::new(offset, bytes.len()));
        self.file.write_all_at(bytes, self.written).map_err(self.failed("write"))?;
        self.written += bytes.len() as u64;
        Ok(offset)
    }

    /// Returns the content for compression, and the final offsets of fragments.
    pub(crate) fn into_content(mut self) -> Result<(Content, FinalOffsets)> {
        self.close_run()?;
        let content = Content::of_temporary(self.file, &self.path, self.written);
        Ok((content, FinalOffsets { fragments: self.fragments }))
    }

    /// The first fragments with these last bytes.
    fn with_end(&self, end: &[u8]) -> impl Iterator<Item = usize> {
        let first = self.ends.get(&xxh64(end, 0).to_le_bytes()).copied();
        let next = |number: &u32| Some(self.fragments[*number as usize].same_end).filter(|number| *number != NONE);
        iter::successors(first, next).map(|number| number as usize)
    }

    /// Adds a fragment to those with these last bytes, unless there are enough.
    fn add_end(&mut self, end: &[u8], number: u32) {
        let (count, last) = self.with_end(end).fold((0, None), |(count, _), number| (count + 1, Some(number)));
        match last {
            None => _ = self.ends.insert(xxh64(end, 0).to_le_bytes(), number),
            Some(last) if count < SAME_END_MAX => self.fragments[last].same_end = number,
            Some(_) => {}
        }
    }

    /// The length of the common end of an existing fragment and this one.
    fn common_end(&self, number: usize, fragment: &[u8]) -> Result<usize> {
        let Moved { provisional, placed, len, .. } = self.fragments[number];
        let len = len as usize;
        let most = len.min(fragment.len());
        if provisional >= self.written {
            let start = usize::try_from(provisional - self.written).unwrap_or(usize::MAX);
            return Ok(self.run.get(start..start + len).map_or(0, |known| common_end_len(known, fragment)));
        }
        let mut bytes = vec![0; COMPARE_LEN.min(most)];
        let mut common = 0;
        while common < most {
            let part_len = bytes.len().min(most - common);
            let part = &mut bytes[..part_len];
            let start = placed + (len - common - part_len) as u64;
            self.file.read_exact_at(part, start).map_err(self.failed("read back"))?;
            let same = common_end_len(part, &fragment[..fragment.len() - common]);
            common += same;
            if same < part_len {
                break;
            }
        }
        Ok(common)
    }

    fn close_run(&mut self) -> Result<()> {
        // The sort is stable, so fragments of one group keep their order.
        self.run_fragments.sort_by_key(|fragment| fragment.group);
        let mut ordered = Vec::with_capacity(self.run.len());
        for fragment in &self.run_fragments {
            self.fragments[fragment.number].placed = self.written + ordered.len() as u64;
            ordered.extend_from_slice(&self.run[fragment.start..fragment.start + fragment.len]);
        }
        self.file.write_all_at(&ordered, self.written).map_err(self.failed("write"))?;
        self.written += ordered.len() as u64;
        self.run.clear();
        self.run_fragments.clear();
        Ok(())
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.path.clone();
        move |error| Error::Output { path, action, error }
    }
}

impl Moved {
    fn new(offset: u64, len: usize) -> Self {
        // A longer one is part of a file that arrives in parts, and not found again.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self { provisional: offset, placed: offset, len, same_end: NONE }
    }
}

/// The key of a fragment with this hash and length.
fn key(hash: u64, len: usize) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&hash.to_le_bytes());
    key[8..].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    key
}

/// The length of the common end of two byte strings.
fn common_end_len(left: &[u8], right: &[u8]) -> usize {
    let most = left.len().min(right.len());
    let (left, right) = (&left[left.len() - most..], &right[right.len() - most..]);
    let blocks = left.rchunks_exact(16).zip(right.rchunks_exact(16)).take_while(|(left, right)| left == right);
    let whole = blocks.count() * 16;
    let (left, right) = (&left[..most - whole], &right[..most - whole]);
    whole + left.iter().rev().zip(right.iter().rev()).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn fragments_are_found_at_their_final_offsets() {
        let folder = tempfile::tempdir().expect("there is room");
        for run_len in [1, 40_000, 1 << 20] {
            let mut packed = Packed::new(&folder.path().join("image"), run_len).expect("there is room");
            let fragments: Vec<Vec<u8>> = (0..60).map(|n| noise(n * 613 % 9000 + 1, n as u64)).collect();
            let mut provisional = Vec::new();
            for (number, fragment) in fragments.iter().enumerate() {
                if number == 30 {
                    let offsets = [packed.append(&fragments[7]), packed.append(&fragments[8])];
                    let [first, second] = offsets.map(|offset| offset.expect("there is room"));
                    assert_eq!(second, first + fragments[7].len() as u64);
                }
                let hash = xxh64(fragment, 0);
                assert_eq!(packed.known_end(fragment, hash).expect("it can be read"), None);
                provisional.push(packed.add(fragment, hash, number as u32 % 5).expect("there is room"));
            }
            let mut ends = Vec::new();
            for (number, fragment) in fragments.iter().enumerate().filter(|(_, fragment)| fragment.len() > 1000) {
                for (start, prefix) in [(0, &b""[..]), (0, b"other"), (100, b""), (100, b"other than that")] {
                    let wanted = [prefix, &fragment[start..]].concat();
                    let known = packed.known_end(&wanted, xxh64(&wanted, 0)).expect("it can be read");
                    let known = known.expect("its end is there");
                    assert_eq!((known.offset, known.len), (provisional[number] + start as u64, fragment.len() - start));
                    ends.push((known, wanted));
                }
            }
            let (content, places) = packed.into_content().expect("there is room");
            let open = content.open().expect("it is open");
            let found = |offset, len| {
                let mut bytes = vec![0; len];
                open.read_at(places.offset(offset), &mut bytes).expect("it is there");
                bytes
            };
            for (fragment, provisional) in fragments.iter().zip(provisional) {
                assert!(found(provisional, fragment.len()) == *fragment, "runs of {run_len}");
            }
            for (known, wanted) in ends {
                assert!(found(known.offset, known.len) == wanted[wanted.len() - known.len..], "runs of {run_len}");
            }
        }
    }
}
