//! Directories whose blocks are packed anew.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

use floe_erofs::format::{Dirent as RawDirent, NAME_LEN};
use floe_image::{DirectoryCursor, Error, FileSystem, Nid, Place, Result};
use floe_sync::Mutex;

use crate::geometry::BLOCK_BYTES;

/// The maximum number of block starts in all kept indexes. A single directory may have more.
const STARTS_MAX: usize = 1 << 18;

/// The maximum size of a rendered directory.
const DIRECTORY_BYTES_MAX: u64 = 4 << 30;

/// The two entries that every directory has, in the order of their names.
const DOTS: [&[u8]; 2] = [b".", b".."];

/// The index of a directory that is packed anew. Packing fills block after block with the entries in the order of their
/// names; the index contains the first entry of each block.
///
/// It takes eight bytes per block. It depends on the directory alone, so it may be dropped and built again.
#[derive(Debug)]
pub(crate) struct PackedDirectory {
    /// The length of the rendered directory in bytes.
    pub(crate) size: u64,
    /// The cursor in the original from which each block is read.
    starts: Vec<DirectoryCursor>,
    /// The blocks with the entries `.` and `..`.
    dot_blocks: [usize; 2],
}

/// The indexes of recently rendered directories.
#[derive(Default)]
pub(crate) struct PackedDirectories {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    directories: HashMap<Nid, Arc<PackedDirectory>>,
    start_count: usize,
}

/// An entry in the order of the names.
pub(crate) struct Sorted<'name> {
    pub(crate) name: &'name [u8],
    /// The inode in the original; for `.` and `..` the directory itself.
    pub(crate) nid: Nid,
    /// The cursor in the original at which a read continues with this entry.
    cursor: DirectoryCursor,
    /// The index of the entry in [`DOTS`].
    dot: Option<usize>,
}

impl PackedDirectories {
    /// The index of a directory, if it is kept.
    pub(crate) fn kept(&self, nid: Nid) -> Option<Arc<PackedDirectory>> {
        self.kept.lock().directories.get(&nid).cloned()
    }

    /// Keeps the index of a directory, and drops all others if they have too many block starts together.
    pub(crate) fn keep(&self, nid: Nid, directory: &Arc<PackedDirectory>) {
        let mut kept = self.kept.lock();
        if kept.start_count + directory.starts.len() > STARTS_MAX {
            *kept = Kept::default();
        }
        if kept.directories.insert(nid, Arc::clone(directory)).is_none() {
            kept.start_count += directory.starts.len();
        }
    }
}

impl PackedDirectory {
    /// Reads a whole directory.
    ///
    /// # Errors
    /// The directory cannot be read, breaks the original's format, is not sorted, or is too large.
    pub(crate) fn new(file_system: &dyn FileSystem, nid: Nid) -> Result<Self> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode(nid));
        let mut directory = Self { size: 0, starts: vec![DirectoryCursor::default()], dot_blocks: [0; 2] };
        let (mut block_len, mut previous, mut fault) = (0, Vec::new(), None);
        let each = &mut |entry: Sorted<'_>| {
            if !previous.is_empty() && entry.name <= previous.as_slice() {
                fault = Some(corrupt("directory is not sorted, or has a name twice"));
                return ControlFlow::Break(());
            }
            entry.name.clone_into(&mut previous);
            block_len += entry.len();
            if block_len > BLOCK_BYTES {
                directory.starts.push(entry.cursor);
                block_len = entry.len();
            }
            if let Some(block) = entry.dot.and_then(|dot| directory.dot_blocks.get_mut(dot)) {
                *block = directory.starts.len() - 1;
            }
            if directory.starts.len() as u64 * BLOCK_BYTES > DIRECTORY_BYTES_MAX {
                fault = Some(Error::unsupported("directory of more than 4 GiB"));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        visit_sorted(file_system, nid, DirectoryCursor::default(), [true; 2], each)?;
        directory.size = (directory.starts.len() as u64 - 1) * BLOCK_BYTES + block_len;
        fault.map_or(Ok(directory), Err)
    }

    /// Whether the directory fits in one block.
    pub(crate) fn is_single_block(&self) -> bool {
        self.starts.len() == 1
    }

    /// Visits the entries of block `block`.
    ///
    /// # Errors
    /// The entries cannot be read, or there is no such block.
    pub(crate) fn visit_block(
        &self,
        file_system: &dyn FileSystem,
        nid: Nid,
        block: u64,
        visit: &mut dyn FnMut(Sorted<'_>),
    ) -> Result<()> {
        let block = usize::try_from(block).unwrap_or(usize::MAX);
        let start = self.starts.get(block).ok_or(Error::corrupt("no such directory block", Place::inode(nid)))?;
        let mut block_len = 0;
        visit_sorted(file_system, nid, *start, self.dot_blocks.map(|dot_block| dot_block >= block), &mut |entry| {
            block_len += entry.len();
            if block_len > BLOCK_BYTES {
                return ControlFlow::Break(());
            }
            visit(entry);
            ControlFlow::Continue(())
        })
    }
}

impl Sorted<'_> {
    /// The bytes that the entry takes in a block.
    fn len(&self) -> u64 {
        (RawDirent::SIZE + self.name.len()) as u64
    }
}

/// Visits the entries of a directory from `cursor` on in the order of their names, including those of [`DOTS`] that are
/// `pending`.
fn visit_sorted(
    file_system: &dyn FileSystem,
    nid: Nid,
    cursor: DirectoryCursor,
    mut pending: [bool; 2],
    visit: &mut dyn FnMut(Sorted<'_>) -> ControlFlow<()>,
) -> Result<()> {
    let mut cursor = cursor;
    let mut is_over = false;
    file_system.read_dir(nid, cursor, &mut |dirent| {
        // SquashFS has names of 256 bytes, which EROFS cannot express.
        if !DOTS.contains(&dirent.name) && dirent.name.len() <= NAME_LEN {
            let before = Some(dirent.name);
            let sorted = Sorted { name: dirent.name, nid: dirent.nid, cursor, dot: None };
            if visit_dots(nid, cursor, &mut pending, before, visit).is_break() || visit(sorted).is_break() {
                is_over = true;
                return ControlFlow::Break(());
            }
        }
        cursor = dirent.next;
        ControlFlow::Continue(())
    })?;
    if !is_over {
        let _ = visit_dots(nid, cursor, &mut pending, None, visit);
    }
    Ok(())
}

/// Visits those of [`DOTS`] that are `pending` and sort before the name `before`; all that are `pending` for `None`.
fn visit_dots(
    nid: Nid,
    cursor: DirectoryCursor,
    pending: &mut [bool; 2],
    before: Option<&[u8]>,
    visit: &mut dyn FnMut(Sorted<'_>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for ((dot, name), is_pending) in DOTS.into_iter().enumerate().zip(pending) {
        if *is_pending && before.is_none_or(|before| name < before) {
            *is_pending = false;
            visit(Sorted { name, nid, cursor, dot: Some(dot) })?;
        }
    }
    ControlFlow::Continue(())
}
