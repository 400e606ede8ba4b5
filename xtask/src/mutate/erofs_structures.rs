//! Locates the structures of an EROFS image.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc};

use floe_erofs::{Erofs, format};
use floe_image::{BlockReader, ByteRange, DirectoryCursor as Cursor, ExtentData, FileSystem, FileType, Nid, StoredLen};
use floe_testkit::DirectReader;

use super::structures::Structures;

/// The maximum number of inodes examined: more than any sufficiently small seed has.
const INODES_MAX: usize = 4096;

/// How many bytes of a pcluster or an index count as one structure.
const RUN_BYTES_MAX: usize = 4096;

/// Derived devices are numbered downward from here.
const DERIVED_DEVICES: u16 = u16::MAX;

/// An image under analysis.
struct Image<'a> {
    bytes: &'a [u8],
    superblock: format::SuperBlock,
    /// The offset of the metabox's content, if it is contiguous.
    metabox: Option<u64>,
    found: Structures,
}

/// Finds the structures of an image; returns none if it cannot be opened.
pub(super) fn find(bytes: &[u8], metabox: Option<u64>) -> Structures {
    let mut found = Structures::new(bytes.len());
    let superblock = bytes.get(format::SUPER_OFFSET as usize..).and_then(format::SuperBlock::from_prefix);
    let Some(superblock) = superblock else { return found };
    found.add("superblock", format::SUPER_OFFSET, format::SuperBlock::FIELDS);
    let mut image = Image { bytes, superblock, metabox, found };
    image.find_tables();
    let reader: Arc<dyn BlockReader> = Arc::new(DirectReader::of(bytes));
    if let Ok(erofs) = Erofs::open(reader) {
        image.find_inodes(&erofs);
    }
    image.found
}

impl Image<'_> {
    fn block(&self, number: u64) -> u64 {
        number << self.superblock.blkszbits
    }

    /// Finds the structures that the superblock refers to.
    fn find_tables(&mut self) {
        let raw = self.superblock;
        let mut end = format::SUPER_OFFSET + format::SuperBlock::SIZE as u64;
        if raw.sb_extslots > 0 {
            self.found.add("superblock extension", end, format::SuperBlockExtension::FIELDS);
            end += u64::from(raw.sb_extslots) * format::SB_EXTSLOT_SIZE as u64;
        }
        if raw.feature_incompat & format::FEATURE_INCOMPAT_COMPR_CFGS != 0 {
            for _ in 0..(raw.u1 & format::ALL_COMPR_ALGS).count_ones() {
                let len = self.u16_at(end);
                self.found.add_words("compression configuration", end, 2 + usize::from(len), 2);
                end = (end + 2 + u64::from(len)).next_multiple_of(4);
            }
        }
        for index in 0..u64::from(raw.extra_devices) {
            let start = (u64::from(raw.devt_slotoff) + index) * format::DeviceSlot::SIZE as u64;
            self.found.add("device slot", start, format::DeviceSlot::FIELDS);
        }
        let in_image = raw.feature_compat & format::FEATURE_COMPAT_PLAIN_XATTR_PFX != 0
            || (self.metabox.is_none() && raw.packed_nid == 0);
        let start = u64::from(raw.xattr_prefix_start) * 4;
        if let Some(mut start) = if in_image { Some(start) } else { self.metabox.map(|base| base + start) } {
            for _ in 0..raw.xattr_prefix_count {
                let len = u64::from(self.u16_at(start));
                self.found.add_words("long xattr prefix", start, 2 + len as usize, 1);
                start = (start + 2 + len).next_multiple_of(4);
            }
        }
        self.found.references.extend([
            u64::from(raw.rb),
            raw.rootnid_8b,
            raw.packed_nid,
            u64::from(raw.meta_blkaddr),
            u64::from(raw.xattr_blkaddr),
            u64::from(raw.blocks_lo),
        ]);
    }

    fn find_inodes(&mut self, erofs: &Erofs) {
        let mut pending = vec![erofs.root()];
        if self.superblock.feature_incompat & format::FEATURE_INCOMPAT_FRAGMENTS != 0 && self.superblock.packed_nid > 0
        {
            pending.push(Nid(self.superblock.packed_nid));
        }
        let extension = self.bytes.get(format::SUPER_OFFSET as usize + format::SuperBlock::SIZE..);
        if self.superblock.feature_incompat & format::FEATURE_INCOMPAT_METABOX != 0
            && let Some(extension) = extension.and_then(format::SuperBlockExtension::from_prefix)
        {
            pending.push(Nid(extension.metabox_nid));
        }
        let mut seen = BTreeSet::new();
        while let Some(nid) = pending.pop() {
            if seen.len() == INODES_MAX || !seen.insert(nid) {
                continue;
            }
            self.found.references.push(nid.0);
            self.find_inode(nid);
            self.find_data(erofs, nid);
            let _ = erofs.read_dir(nid, Cursor::default(), &mut |dirent| {
                pending.push(dirent.nid);
                ControlFlow::Continue(())
            });
        }
    }

    /// Finds an inode, its xattrs, and the map of its data.
    fn find_inode(&mut self, nid: Nid) {
        let base = if nid.0 >> format::DIRENT_NID_METABOX_BIT != 0 {
            let Some(metabox) = self.metabox else { return };
            metabox
        } else {
            self.block(u64::from(self.superblock.meta_blkaddr))
        };
        let start = base + (nid.0 & format::DIRENT_NID_MASK) * format::INODE_SLOT_SIZE;
        let raw = self.bytes.get(start as usize..).unwrap_or_default();
        let Some(compact) = format::InodeCompact::from_prefix(raw) else { return };
        let (end, size, u) = if compact.i_format & format::I_VERSION_MASK == 0 {
            self.found.add("compact inode", start, format::InodeCompact::FIELDS);
            (start + format::InodeCompact::SIZE as u64, u64::from(compact.i_size), compact.i_u)
        } else {
            let Some(extended) = format::InodeExtended::from_prefix(raw) else { return };
            self.found.add("extended inode", start, format::InodeExtended::FIELDS);
            (start + format::InodeExtended::SIZE as u64, extended.i_size, extended.i_u)
        };
        self.found.references.extend([u64::from(u), size]);
        let xattrs_len = match u64::from(compact.i_xattr_icount) {
            0 => 0,
            count => format::XattrIbodyHeader::SIZE as u64 + (count - 1) * 4,
        };
        if xattrs_len > 0 {
            self.find_xattrs(end, end + xattrs_len);
        }
        let end = end + xattrs_len;
        match compact.i_format >> format::I_DATALAYOUT_BIT & format::I_DATALAYOUT_MASK {
            format::INODE_CHUNK_BASED => {
                let chunk_format = u as u16;
                let log2 =
                    u32::from(self.superblock.blkszbits) + u32::from(chunk_format & format::CHUNK_FORMAT_BLKBITS_MASK);
                let count = size.div_ceil(1 << log2.min(63)).min(1024);
                for index in 0..count {
                    if chunk_format & format::CHUNK_FORMAT_INDEXES == 0 {
                        self.found.add_words("block map entry", end.next_multiple_of(4) + index * 4, 4, 4);
                    } else {
                        let start = end.next_multiple_of(8) + index * 8;
                        self.found.add("chunk index", start, format::InodeChunkIndex::FIELDS);
                    }
                }
            }
            format::INODE_COMPRESSED_FULL => self.find_index(end, size, false),
            format::INODE_COMPRESSED_COMPACT => self.find_index(end, size, true),
            _ => {}
        }
    }

    fn find_index(&mut self, end: u64, size: u64, is_compact: bool) {
        let start = end.next_multiple_of(8);
        let raw = self.bytes.get(start as usize..).and_then(format::MapHeader::from_prefix);
        let Some(header) = raw else { return };
        self.found.add("map header", start, format::MapHeader::FIELDS);
        if header.h_clusterbits >> format::FRAGMENT_INODE_BIT != 0 {
            return;
        }
        let start = start + format::MapHeader::SIZE as u64;
        let log2 = self.superblock.blkszbits + (header.h_clusterbits & format::CLUSTERBITS_MASK);
        let lclusters = size.div_ceil(1 << log2.min(63)).min(512);
        if is_compact {
            let len = (lclusters as usize * 4).next_multiple_of(32).min(RUN_BYTES_MAX);
            self.found.add_words("compact index", start, len, 4);
        } else if header.h_advise & format::ADVISE_EXTENTS != 0 {
            let record_len = 4 << (header.h_advise >> format::ADVISE_EXTRECSZ_BIT & format::ADVISE_EXTRECSZ_MASK);
            let len = (header.h_u as usize).min(128) * record_len;
            self.found.add_words("encoded extents", start, len, 4);
        } else {
            for index in 0..lclusters {
                let start = start + 8 + index * format::LclusterIndex::SIZE as u64;
                self.found.add("lcluster index", start, format::LclusterIndex::FIELDS);
            }
        }
    }

    fn find_xattrs(&mut self, start: u64, end: u64) {
        self.found.add("xattr header", start, format::XattrIbodyHeader::FIELDS);
        let raw = self.bytes.get(start as usize..).and_then(format::XattrIbodyHeader::from_prefix);
        let Some(header) = raw else { return };
        let mut position = start + format::XattrIbodyHeader::SIZE as u64;
        for _ in 0..header.h_shared_count {
            self.found.add_words("shared xattr number", position, 4, 4);
            let number = u64::from(self.u32_at(position));
            let in_metabox = self.superblock.feature_compat & format::FEATURE_COMPAT_SHARED_EA_IN_METABOX != 0;
            let area = match (in_metabox, self.metabox) {
                (true, Some(metabox)) => metabox,
                _ => self.block(u64::from(self.superblock.xattr_blkaddr)),
            };
            self.find_xattr("shared xattr", area + number * 4);
            position += 4;
        }
        while position + (format::XattrEntry::SIZE as u64) < end {
            position = self.find_xattr("inline xattr", position);
        }
    }

    /// Finds one xattr; returns its end.
    fn find_xattr(&mut self, kind: &'static str, start: u64) -> u64 {
        self.found.add(kind, start, format::XattrEntry::FIELDS);
        let raw = self.bytes.get(start as usize..).and_then(format::XattrEntry::from_prefix);
        let Some(entry) = raw else { return u64::MAX };
        let body = start + format::XattrEntry::SIZE as u64;
        let len = usize::from(entry.e_name_len) + usize::from(entry.e_value_size);
        self.found.add_words("xattr name and value", body, len, 1);
        (body + len as u64).next_multiple_of(format::XATTR_ALIGN)
    }

    /// Finds an inode's stored data, and the dirents in it.
    fn find_data(&mut self, erofs: &Erofs, nid: Nid) {
        let Ok(attr) = erofs.attr(nid) else { return };
        let mut extents = Vec::new();
        let _ = erofs.map(nid, ByteRange::new(0, attr.size.min(1 << 24)), &mut extents);
        let block_size = 1_u64 << self.superblock.blkszbits;
        for extent in extents {
            match extent.data {
                ExtentData::Plain { device, offset } => {
                    let offset = match (device.0, self.metabox) {
                        (0, _) => offset,
                        (DERIVED_DEVICES, Some(metabox)) => metabox + offset,
                        _ => continue,
                    };
                    self.found.references.push(offset / block_size);
                    match attr.file_type {
                        FileType::Directory => {
                            let mut position = 0;
                            while position < extent.range.len() {
                                let len = block_size.min(extent.range.len() - position);
                                self.find_dirents(offset + position, len);
                                position += len;
                            }
                        }
                        FileType::Symlink => {
                            self.found.add_words("symbolic link target", offset, extent.range.len() as usize, 1);
                        }
                        _ => {}
                    }
                }
                ExtentData::Encoded { block, .. } if block.device.0 == 0 => {
                    if let StoredLen::Known(len) = block.stored_len {
                        self.found.references.push(block.offset / block_size);
                        self.found.add_words("pcluster", block.offset, (len as usize).min(RUN_BYTES_MAX), 1);
                    }
                }
                ExtentData::Encoded { .. } | ExtentData::Hole => {}
            }
        }
    }

    fn find_dirents(&mut self, start: u64, len: u64) {
        let raw = self.bytes.get(start as usize..).and_then(format::Dirent::from_prefix);
        let Some(first) = raw else { return };
        let names = u64::from(first.nameoff).min(len);
        for index in 0..names / format::Dirent::SIZE as u64 {
            self.found.add("dirent", start + index * format::Dirent::SIZE as u64, format::Dirent::FIELDS);
        }
        self.found.add_words("names", start + names, (len - names) as usize, 1);
    }

    fn u16_at(&self, offset: u64) -> u16 {
        let bytes = self.bytes.get(offset as usize..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u16::from_le_bytes(*bytes))
    }

    fn u32_at(&self, offset: u64) -> u32 {
        let bytes = self.bytes.get(offset as usize..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

/// The image with the content of its metabox appended, and the offset of that content; `None` if it has no metabox.
pub(super) fn with_plain_metabox(bytes: &[u8]) -> Option<(Vec<u8>, u64)> {
    let at = format::SUPER_OFFSET as usize;
    let mut raw = format::SuperBlock::from_prefix(bytes.get(at..)?)?;
    if raw.feature_incompat & format::FEATURE_INCOMPAT_METABOX == 0 {
        return None;
    }
    let nid = format::SuperBlockExtension::from_prefix(bytes.get(at + format::SuperBlock::SIZE..)?)?.metabox_nid;
    let reader = Arc::new(DirectReader::of(bytes));
    let erofs = Erofs::open(Arc::clone(&reader) as Arc<dyn BlockReader>).ok()?;
    let size = erofs.attr(Nid(nid)).ok()?.size;
    let content = reader.read_file(&erofs, Nid(nid), ByteRange::new(0, size)).ok()?;

    let block_size = 1_usize << raw.blkszbits;
    let mut plain = bytes.to_vec();
    plain.resize(plain.len().next_multiple_of(block_size), 0);
    let start = plain.len();
    plain.extend(content);
    plain.resize(plain.len().next_multiple_of(block_size), 0);

    let inode = (u64::from(raw.meta_blkaddr) << raw.blkszbits) + nid * format::INODE_SLOT_SIZE;
    let inode = plain.get_mut(inode as usize..)?;
    let start_block = (start / block_size) as u32;
    let layout = !(format::I_DATALAYOUT_MASK << format::I_DATALAYOUT_BIT);
    let mut compact = format::InodeCompact::from_prefix(inode)?;
    if compact.i_format & format::I_VERSION_MASK == 0 {
        if compact.i_format & format::I_NLINK_1 != 0 {
            compact.i_nb = 0;
        }
        compact.i_format &= layout;
        compact.i_u = start_block;
        inode[..format::InodeCompact::SIZE].copy_from_slice(&compact.to_bytes());
    } else {
        let mut extended = format::InodeExtended::from_prefix(inode)?;
        extended.i_format &= layout;
        extended.i_nb = 0;
        extended.i_u = start_block;
        inode[..format::InodeExtended::SIZE].copy_from_slice(&extended.to_bytes());
    }
    raw.blocks_lo = (plain.len() / block_size) as u32;
    plain[at..at + format::SuperBlock::SIZE].copy_from_slice(&raw.to_bytes());
    repair_checksum(&mut plain);
    Some((plain, start as u64))
}

/// Updates the superblock's checksum, if the image has one.
pub(super) fn repair_checksum(bytes: &mut [u8]) {
    let at = format::SUPER_OFFSET as usize;
    let Some(mut raw) = bytes.get(at..).and_then(format::SuperBlock::from_prefix) else { return };
    let Some(block_size) = 1_usize.checked_shl(raw.blkszbits.into()) else { return };
    let len = if block_size > at { block_size - at } else { block_size };
    if raw.feature_compat & format::FEATURE_COMPAT_SB_CHKSUM == 0 || raw.magic != format::SUPER_MAGIC_V1 {
        return;
    }
    raw.checksum = 0;
    bytes[at..at + format::SuperBlock::SIZE].copy_from_slice(&raw.to_bytes());
    if let Some(summed) = at.checked_add(len).and_then(|end| bytes.get(at..end)) {
        // The format omits the final inversion of crc32c.
        raw.checksum = !crc32c::crc32c(summed);
        bytes[at..at + format::SuperBlock::SIZE].copy_from_slice(&raw.to_bytes());
    }
}
