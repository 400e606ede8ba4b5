//! EROFS images with an uncompressed metabox.
//!
//! A change inside a compressed metabox rarely gets past the decompressor.

use std::sync::Arc;

use floe_erofs::{Erofs, format};
use floe_image::{BlockReader, ByteRange, FileSystem, Nid};
use floe_testkit::DirectReader;

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
