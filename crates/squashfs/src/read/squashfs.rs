//! An open image.

use std::sync::{Arc, OnceLock};

use floe_image::{BlockReader, Error, Nid, Place, Result};

use super::{
    CompressorOptions, Superblock,
    block_index::BlockIndexes,
    location_list::{ListPlace, ListedTable, LocationList, XattrTable},
    metadata::{Metadata, TableRange},
};
use crate::format::{self, FragmentEntry, SUPERBLOCK_BYTES};

/// The size of an id in bytes.
const ID_BYTES: u32 = 4;

/// The size of an inode reference in the export table, in bytes.
const REFERENCE_BYTES: u32 = 8;

/// A SquashFS 4.0 image.
///
/// Memory: the ids (at most 256 KiB), the lists of the fragment and export tables (8 bytes for each 512 fragments and
/// 1024 inodes), and an index of up to 24 KiB for each of the 128 most recently read long files.
#[derive(Clone)]
pub struct Squashfs {
    pub(crate) superblock: Superblock,
    pub(crate) options: Option<CompressorOptions>,
    pub(crate) metadata: Metadata,
    pub(crate) inode_table: TableRange,
    pub(crate) directory_table: TableRange,
    pub(crate) ids: Arc<[u32]>,
    pub(crate) id_table: TableRange,
    pub(crate) fragments: Option<Arc<LocationList>>,
    pub(crate) export: Option<Arc<LocationList>>,
    pub(super) xattrs: Option<Arc<XattrTable>>,
    /// The inode number of the root.
    pub(super) root_number: u32,
    pub(super) block_indexes: Arc<BlockIndexes>,
    pub(super) inode_numbers: Arc<InodeNumbers>,
    /// The number of dirents that fit into the directory table; computed on first use.
    pub(super) entry_count_max: Arc<OnceLock<u64>>,
}

impl Squashfs {
    /// Opens an image. Byte 0 of the reader must be byte 0 of the file system.
    ///
    /// # Errors
    /// There is no superblock of a supported version and compressor; a table is misplaced; or the root is not a
    /// directory.
    pub fn open(reader: Arc<dyn BlockReader>) -> Result<Self> {
        let superblock = Superblock::read(reader.as_ref())?;
        let block_size = superblock.block_size();
        let metadata = Metadata::new(reader, superblock.compression.encoding(block_size));
        let options = read_options(&metadata, &superblock)?;
        let tables = Tables::read(metadata.reader(), &superblock)?;
        let ids = read_ids(&metadata, &tables.ids)?;
        let mut squashfs = Self {
            superblock,
            options,
            metadata,
            inode_table: tables.inodes,
            directory_table: tables.directories,
            ids: ids.into(),
            id_table: tables.ids.range(),
            fragments: tables.fragments.map(Arc::new),
            export: tables.export.map(Arc::new),
            xattrs: tables.xattrs.map(Arc::new),
            root_number: 0,
            block_indexes: Arc::default(),
            inode_numbers: Arc::default(),
            entry_count_max: Arc::default(),
        };
        let root = squashfs.inode(superblock.root)?;
        if root.directory().is_err() {
            return Err(Error::corrupt("root is not a directory", Place::inode(superblock.root)));
        }
        squashfs.root_number = root.number;
        Ok(squashfs)
    }

    /// The superblock.
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The attribute sets.
    pub(crate) fn xattr_sets(&self) -> Option<&LocationList> {
        self.xattrs.as_deref().map(XattrTable::sets)
    }

    /// The range of the attributes' metadata blocks.
    pub(crate) fn xattr_attributes(&self) -> Option<TableRange> {
        self.xattrs.as_deref().map(XattrTable::attributes)
    }
}

/// The tables of an image. Each ends before the next begins (section "Layout").
struct Tables {
    inodes: TableRange,
    directories: TableRange,
    fragments: Option<LocationList>,
    export: Option<LocationList>,
    ids: LocationList,
    xattrs: Option<XattrTable>,
}

impl Tables {
    /// Reads the tables' lists, last table first, because each list must end where the next table begins.
    fn read(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Self> {
        let bytes_used = superblock.bytes_used;
        let xattrs = superblock.xattr_id_table_start;
        let xattrs = xattrs.map(|start| XattrTable::read(reader, start, bytes_used)).transpose()?;
        let mut next = xattrs.as_ref().map_or(bytes_used, XattrTable::start);
        let mut read = |table, start, entry_count, entry_bytes| {
            let place = ListPlace { table, blocks_end: start, start, next, entry_count, entry_bytes };
            let list = LocationList::read(reader, place)?;
            next = list.range().start;
            Ok::<_, Error>(list)
        };
        let ids = read(ListedTable::Ids, superblock.id_table_start, u32::from(superblock.id_count), ID_BYTES)?;
        let export = match superblock.export_table_start {
            Some(start) => Some(read(ListedTable::Export, start, superblock.inode_count, REFERENCE_BYTES)?),
            None => None,
        };
        let fragments = match (superblock.fragment_count, superblock.fragment_table_start) {
            (0, _) => None,
            (count, Some(start)) => {
                let entry_bytes = u32::try_from(FragmentEntry::SIZE).unwrap_or(u32::MAX);
                Some(read(ListedTable::Fragments, start, count, entry_bytes)?)
            }
            (_, None) => {
                return Err(Error::corrupt("fragments without a fragment table", Place::at(superblock.offset)));
            }
        };
        let directories = TableRange { start: superblock.directory_table_start, end: next };
        let inodes = TableRange { start: superblock.inode_table_start, end: directories.start };
        // A tree of one empty directory has no listing.
        if directories.start > directories.end {
            return Err(Error::corrupt("directory table runs into the next table", Place::at(directories.start)));
        }
        if inodes.start >= inodes.end || inodes.start < SUPERBLOCK_BYTES {
            return Err(Error::corrupt("inode table is not before the directory table", Place::at(inodes.start)));
        }
        Ok(Self { inodes, directories, fragments, export, ids, xattrs })
    }
}

fn read_options(metadata: &Metadata, superblock: &Superblock) -> Result<Option<CompressorOptions>> {
    if !superblock.flags.has(format::FLAG_COMPRESSOR_OPTIONS) {
        return Ok(None);
    }
    let (bytes, _) = metadata.block(SUPERBLOCK_BYTES)?;
    CompressorOptions::parse(superblock.compression, &bytes).map(Some)
}

fn read_ids(metadata: &Metadata, table: &LocationList) -> Result<Vec<u32>> {
    (0..table.entry_count()).map(|index| table.cursor_at(metadata, index)?.read_u32()).collect()
}

/// The inodes of an image without a correct export table. Filled on first use; a transient error is not kept.
pub(super) type InodeNumbers = OnceLock<Numbers>;

/// Inodes by their numbers, up to the first that cannot be read.
#[derive(Debug)]
pub(super) struct Numbers {
    sorted: Vec<(u32, Nid)>,
    /// Why the rest is missing.
    error: Option<Error>,
}

impl Numbers {
    /// Creates the table of these inodes; `error` is why others are missing.
    pub(super) fn new(mut inodes: Vec<(u32, Nid)>, error: Option<Error>) -> Self {
        inodes.sort_unstable();
        Self { sorted: inodes, error }
    }

    /// The inode with this number; `None` if there is none.
    ///
    /// # Errors
    /// It is not among the inodes that could be read.
    pub(super) fn find(&self, number: u32) -> Result<Option<Nid>> {
        let found = self.sorted.binary_search_by_key(&number, |(number, _)| *number).ok();
        match (found.and_then(|index| self.sorted.get(index)), &self.error) {
            (Some((_, nid)), _) => Ok(Some(*nid)),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Ok(None),
        }
    }
}
