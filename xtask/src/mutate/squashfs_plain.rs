//! Rewrites a SquashFS image with uncompressed metadata, and locates its structures.
//!
//! A change inside a compressed block rarely gets past the decompressor. So all tables are decoded and stored
//! uncompressed, and every reference is adjusted. Data stays in place.

use std::{collections::BTreeSet, sync::Arc};

use floe_image::{BlockReader, Encoding};
use floe_squashfs::{Squashfs, format};
use floe_testkit::DirectReader;

use super::{metadata_table::MetadataTable, structures::Structures};

/// A SquashFS image with uncompressed metadata.
pub(super) struct PlainSquashfs {
    pub(super) bytes: Vec<u8>,
    pub(super) structures: Structures,
}

/// The parts of an image during rewriting.
struct Tables {
    superblock: format::SuperBlock,
    inodes: MetadataTable,
    directories: MetadataTable,
    fragments: MetadataTable,
    export: MetadataTable,
    ids: MetadataTable,
    xattrs: MetadataTable,
    xattr_sets: MetadataTable,
    /// The structures in the content of tables.
    places: Vec<Placed>,
    /// The listings of directories: offset in the content, and length.
    listings: BTreeSet<(usize, usize)>,
    references: Vec<u64>,
}

/// A structure in the content of a table.
struct Placed {
    table: Which,
    kind: &'static str,
    at: usize,
    shape: Result<&'static [(&'static str, usize)], (usize, usize)>,
}

#[derive(Clone, Copy)]
enum Which {
    Inodes,
    Directories,
    Xattrs,
}

impl PlainSquashfs {
    /// The image `bytes` with uncompressed metadata; `None` if it cannot be rewritten.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let superblock = format::SuperBlock::from_prefix(bytes).filter(|raw| raw.s_magic == format::MAGIC)?;
        let reader = Arc::new(DirectReader::of(bytes));
        let squashfs = Squashfs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).ok()?;
        let compression = squashfs.superblock().compression;
        let encoding = compression.encoding(superblock.block_size);
        let mut tables = Tables::read(bytes, reader.as_ref(), encoding, superblock)?;
        tables.move_inodes()?;
        tables.move_listings()?;
        tables.move_xattrs()?;
        Some(tables.write(bytes.get(..superblock.inode_table_start as usize)?.to_vec()))
    }
}

impl Tables {
    fn read(bytes: &[u8], reader: &dyn BlockReader, encoding: Encoding, raw: format::SuperBlock) -> Option<Self> {
        let read = |start, end| MetadataTable::read(reader, encoding, start, end);
        let first = |list: u64| Some(u64::from_le_bytes(*bytes.get(list as usize..)?.first_chunk()?));
        let listed = |list: u64| if list == format::ABSENT_TABLE { Some(None) } else { first(list).map(Some) };
        let fragments = if raw.fragments == 0 { None } else { listed(raw.fragment_table_start)? };
        let export = listed(raw.lookup_table_start)?;
        let ids = first(raw.id_table_start)?;
        let directories_end = fragments.or(export).unwrap_or(ids);
        let (mut xattrs, mut xattr_sets) = Default::default();
        if raw.xattr_id_table_start != format::ABSENT_TABLE {
            let header = format::XattrIdTable::from_prefix(bytes.get(raw.xattr_id_table_start as usize..)?)?;
            let sets = first(raw.xattr_id_table_start + format::XattrIdTable::SIZE as u64)?;
            xattrs = read(header.xattr_table_start, sets)?;
            xattr_sets = read(sets, raw.xattr_id_table_start)?;
        }
        Some(Self {
            superblock: raw,
            inodes: read(raw.inode_table_start, raw.directory_table_start)?,
            directories: read(raw.directory_table_start, directories_end)?,
            fragments: fragments.map_or(Some(MetadataTable::default()), |at| read(at, raw.fragment_table_start))?,
            export: export.map_or(Some(MetadataTable::default()), |at| read(at, raw.lookup_table_start))?,
            ids: read(ids, raw.id_table_start)?,
            xattrs,
            xattr_sets,
            places: Vec::new(),
            listings: BTreeSet::new(),
            references: vec![raw.bytes_used, raw.root_inode],
        })
    }

    fn place(
        &mut self,
        table: Which,
        kind: &'static str,
        at: usize,
        fields: &'static [(&'static str, usize)],
    ) -> usize {
        self.places.push(Placed { table, kind, at, shape: Ok(fields) });
        at + fields.iter().map(|(_, size)| size).sum::<usize>()
    }

    fn place_words(&mut self, table: Which, kind: &'static str, at: usize, len: usize, word: usize) -> usize {
        self.places.push(Placed { table, kind, at, shape: Err((len, word)) });
        at + len
    }

    /// Visits the inodes and adjusts references to listings.
    fn move_inodes(&mut self) -> Option<()> {
        use Which::Inodes;
        let mut at = 0;
        while at < self.inodes.content.len() {
            let base = format::BaseInode::from_prefix(&self.inodes.content[at..])?;
            self.references.push(u64::from(base.inode_number));
            let body = self.place(Inodes, "inode", at, format::BaseInode::FIELDS);
            let content = self.inodes.content[body..].to_vec();
            at = match base.inode_type {
                format::DIR_TYPE => {
                    let raw = format::DirInode::from_prefix(&content)?;
                    self.move_directory(body, raw.start_block, raw.offset, raw.file_size.into())?;
                    self.place(Inodes, "directory inode", body, format::DirInode::FIELDS)
                }
                format::LDIR_TYPE => {
                    let raw = format::LDirInode::from_prefix(&content)?;
                    self.move_directory(body + 8, raw.start_block, raw.offset, raw.file_size)?;
                    let mut at = self.place(Inodes, "long directory inode", body, format::LDirInode::FIELDS);
                    for _ in 0..raw.i_count {
                        let index = format::DirIndex::from_prefix(&self.inodes.content[at..])?;
                        put(&mut self.inodes.content, at + 4, self.directories.moved_block(index.start_block.into())?);
                        at = self.place(Inodes, "directory index", at, format::DirIndex::FIELDS);
                        at = self.place_words(Inodes, "name", at, index.size as usize + 1, 1);
                    }
                    at
                }
                format::REG_TYPE => {
                    let raw = format::RegInode::from_prefix(&content)?;
                    let blocks = self.block_count(raw.file_size.into(), raw.fragment);
                    let at = self.place(Inodes, "file inode", body, format::RegInode::FIELDS);
                    self.place_words(Inodes, "block list", at, blocks * 4, 4)
                }
                format::LREG_TYPE => {
                    let raw = format::LRegInode::from_prefix(&content)?;
                    let blocks = self.block_count(raw.file_size, raw.fragment);
                    let at = self.place(Inodes, "long file inode", body, format::LRegInode::FIELDS);
                    self.place_words(Inodes, "block list", at, blocks * 4, 4)
                }
                format::SYMLINK_TYPE | format::LSYMLINK_TYPE => {
                    let raw = format::SymlinkInode::from_prefix(&content)?;
                    let at = self.place(Inodes, "link inode", body, format::SymlinkInode::FIELDS);
                    let end = self.place_words(Inodes, "link target", at, raw.symlink_size as usize, 1);
                    if base.inode_type == format::SYMLINK_TYPE {
                        end
                    } else {
                        self.place_words(Inodes, "link xattrs", end, 4, 4)
                    }
                }
                format::BLKDEV_TYPE | format::CHRDEV_TYPE => {
                    self.place(Inodes, "device inode", body, format::DevInode::FIELDS)
                }
                format::LBLKDEV_TYPE | format::LCHRDEV_TYPE => {
                    self.place(Inodes, "long device inode", body, format::LDevInode::FIELDS)
                }
                format::FIFO_TYPE | format::SOCKET_TYPE => {
                    self.place(Inodes, "pipe inode", body, format::IpcInode::FIELDS)
                }
                format::LFIFO_TYPE | format::LSOCKET_TYPE => {
                    self.place(Inodes, "long pipe inode", body, format::LIpcInode::FIELDS)
                }
                _ => return None,
            };
        }
        Some(())
    }

    fn block_count(&self, size: u64, fragment: u32) -> usize {
        let whole = size / u64::from(self.superblock.block_size);
        let has_tail = fragment == format::ABSENT_FRAGMENT && !size.is_multiple_of(self.superblock.block_size.into());
        whole as usize + usize::from(has_tail)
    }

    /// Adjusts the field at `field`, which refers to a listing.
    fn move_directory(&mut self, field: usize, start_block: u32, offset: u16, size: u32) -> Option<()> {
        let len = size.saturating_sub(format::DIRECTORY_SIZE_EXTRA) as usize;
        let start = u64::from(start_block);
        if len > 0 {
            self.listings.insert((self.directories.block_content(start)? + usize::from(offset), len));
        }
        put(&mut self.inodes.content, field, self.directories.moved_block(start).unwrap_or(0));
        Some(())
    }

    /// Visits the listings and adjusts references to inodes.
    fn move_listings(&mut self) -> Option<()> {
        use Which::Directories;
        for (start, len) in self.listings.clone() {
            let mut at = start;
            while at < start + len {
                let header = format::DirHeader::from_prefix(self.directories.content.get(at..)?)?;
                put(&mut self.directories.content, at + 4, self.inodes.moved_block(header.start_block.into())?);
                self.references.push(u64::from(header.inode_number));
                at = self.place(Directories, "dirent header", at, format::DirHeader::FIELDS);
                for _ in 0..=header.count {
                    let entry = format::DirEntry::from_prefix(self.directories.content.get(at..)?)?;
                    at = self.place(Directories, "dirent", at, format::DirEntry::FIELDS);
                    at = self.place_words(Directories, "name", at, usize::from(entry.size) + 1, 1);
                }
            }
        }
        Some(())
    }

    /// Visits the xattr sets and adjusts references to xattrs and out-of-line values.
    fn move_xattrs(&mut self) -> Option<()> {
        use Which::Xattrs;
        let mut seen = BTreeSet::new();
        for start in (0..self.xattr_sets.content.len()).step_by(format::XattrId::SIZE) {
            let set = format::XattrId::from_prefix(&self.xattr_sets.content[start..])?;
            let mut at = self.xattrs.referred(set.xattr)?;
            put64(&mut self.xattr_sets.content, start, self.xattrs.moved(set.xattr)?);
            for _ in 0..set.count {
                let is_new = seen.insert(at);
                let entry = format::XattrEntry::from_prefix(self.xattrs.content.get(at..)?)?;
                at = self.place(Xattrs, "xattr", at, format::XattrEntry::FIELDS);
                at = self.place_words(Xattrs, "name", at, entry.size.into(), 1);
                let value = format::XattrVal::from_prefix(self.xattrs.content.get(at..)?)?;
                at = self.place(Xattrs, "xattr value", at, format::XattrVal::FIELDS);
                if entry.kind & format::XATTR_VALUE_OUT_OF_LINE != 0 && is_new {
                    let reference = u64::from_le_bytes(*self.xattrs.content.get(at..)?.first_chunk()?);
                    let moved = self.xattrs.moved(reference)?;
                    put64(&mut self.xattrs.content, at, moved);
                }
                at += value.vsize as usize;
            }
        }
        Some(())
    }

    /// Appends the tables after the data, in order, and records the positions of all structures.
    fn write(mut self, mut bytes: Vec<u8>) -> PlainSquashfs {
        let mut raw = self.superblock;
        raw.root_inode = self.inodes.moved(raw.root_inode).unwrap_or(raw.root_inode);
        for reference in self.export.content.chunks_exact_mut(8) {
            let old = reference.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            let new = self.inodes.moved(old).unwrap_or(old);
            reference.copy_from_slice(&new.to_le_bytes());
            self.references.push(new);
        }
        raw.inode_table_start = bytes.len() as u64;
        self.inodes.write(&mut bytes);
        raw.directory_table_start = bytes.len() as u64;
        self.directories.write(&mut bytes);
        let mut lists = Vec::new();
        for (table, start) in [
            (&mut self.fragments, &mut raw.fragment_table_start),
            (&mut self.export, &mut raw.lookup_table_start),
            (&mut self.ids, &mut raw.id_table_start),
        ] {
            if !table.content.is_empty() {
                let blocks = table.write(&mut bytes);
                *start = bytes.len() as u64;
                lists.push((bytes.len() as u64, blocks.len() * 8));
                bytes.extend(blocks.into_iter().flat_map(u64::to_le_bytes));
            } else if *start != format::ABSENT_TABLE {
                *start = bytes.len() as u64;
            }
        }
        let mut xattr_header = None;
        if raw.xattr_id_table_start != format::ABSENT_TABLE {
            let header = format::XattrIdTable {
                xattr_table_start: bytes.len() as u64,
                xattr_ids: (self.xattr_sets.content.len() / format::XattrId::SIZE) as u32,
                unused: 0,
            };
            self.xattrs.write(&mut bytes);
            let blocks = self.xattr_sets.write(&mut bytes);
            raw.xattr_id_table_start = bytes.len() as u64;
            xattr_header = Some(raw.xattr_id_table_start);
            bytes.extend(header.to_bytes());
            lists.push((bytes.len() as u64, blocks.len() * 8));
            bytes.extend(blocks.into_iter().flat_map(u64::to_le_bytes));
        }
        raw.bytes_used = bytes.len() as u64;
        bytes[..format::SuperBlock::SIZE].copy_from_slice(&raw.to_bytes());
        let structures = self.structures(bytes.len(), &raw, &lists, xattr_header);
        PlainSquashfs { bytes, structures }
    }

    fn structures(
        &self,
        image_len: usize,
        raw: &format::SuperBlock,
        lists: &[(u64, usize)],
        xattr_header: Option<u64>,
    ) -> Structures {
        let mut found = Structures::new(image_len);
        found.references.clone_from(&self.references);
        found.add("superblock", 0, format::SuperBlock::FIELDS);
        for &(start, len) in lists {
            found.add_words("location list", start, len, 8);
        }
        if let Some(start) = xattr_header {
            found.add("attribute id table", start, format::XattrIdTable::FIELDS);
        }
        if raw.flags & format::FLAG_COMPRESSOR_OPTIONS != 0 {
            found.add_words("compressor options", format::SuperBlock::SIZE as u64, 10, 2);
        }
        for placed in &self.places {
            let table = match placed.table {
                Which::Inodes => &self.inodes,
                Which::Directories => &self.directories,
                Which::Xattrs => &self.xattrs,
            };
            match placed.shape {
                Ok(fields) => table.add(&mut found, placed.kind, placed.at, fields),
                Err((len, word)) => table.add_words(&mut found, placed.kind, placed.at, len, word),
            }
        }
        let entries = [
            (&self.fragments, "fragment", format::FragmentEntry::FIELDS),
            (&self.xattr_sets, "attribute set", format::XattrId::FIELDS),
            (&self.export, "export entry", &[("reference", 8)]),
            (&self.ids, "id", &[("id", 4)]),
        ];
        for (table, kind, fields) in entries {
            let len: usize = fields.iter().map(|(_, size)| size).sum();
            (0..table.content.len()).step_by(len).for_each(|at| table.add(&mut found, kind, at, fields));
        }
        let tables = [&self.inodes, &self.directories, &self.fragments, &self.export, &self.ids, &self.xattrs];
        tables.into_iter().chain([&self.xattr_sets]).for_each(|table| table.add_lengths(&mut found));
        found.add_words(
            "stored data",
            format::SuperBlock::SIZE as u64,
            raw.inode_table_start as usize - format::SuperBlock::SIZE,
            1,
        );
        found
    }
}

fn put(content: &mut [u8], at: usize, value: u64) {
    content[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
}

fn put64(content: &mut [u8], at: usize, value: u64) {
    content[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
