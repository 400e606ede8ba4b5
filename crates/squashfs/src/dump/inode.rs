//! Describes an inode and the extents of its file.

use std::fmt;

use floe_image::{Attr, ByteRange, Extent, ExtentData, FileSystem, Nid, Result, StoredLen};

use crate::{
    Squashfs,
    read::{Inode, InodeData},
};

/// The maximum number of described extents of a file; the rest are not mapped.
const EXTENTS_MAX: usize = 65_536;

/// How many blocks of a file one step maps.
const STEP_BLOCKS: u64 = 1024;

/// A description of an inode.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InodeDescription {
    /// Its attributes.
    pub attr: Attr,
    /// Whether the inode has an extended type.
    pub is_extended: bool,
    /// The names of its xattrs.
    pub xattr_names: Vec<Vec<u8>>,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The extents of a regular file: the first 65,536.
    pub extents: Vec<Extent>,
    /// The fields that are specific to the inode's type, with their names.
    pub fields: Vec<(&'static str, u64)>,
}

/// Describes an inode.
///
/// # Errors
/// The inode does not exist, cannot be read or breaks the format.
pub fn describe_inode(squashfs: &Squashfs, nid: Nid) -> Result<InodeDescription> {
    let inode = squashfs.inode(nid)?;
    let attr = squashfs.attr(nid)?;
    let is_symlink = matches!(inode.data, InodeData::Symlink { .. });
    Ok(InodeDescription {
        attr,
        is_extended: inode.is_extended,
        xattr_names: squashfs.xattr_names(nid)?,
        target: if is_symlink { Some(squashfs.read_link(nid)?) } else { None },
        extents: extents(squashfs, &inode)?,
        fields: fields(&inode),
    })
}

/// The number of bytes in holes that the inode of a regular file states; 0 for other inodes.
///
/// # Errors
/// The inode does not exist, cannot be read or breaks the format.
pub fn hole_bytes(squashfs: &Squashfs, nid: Nid) -> Result<u64> {
    Ok(match squashfs.inode(nid)?.data {
        InodeData::Regular(file) => file.sparse,
        _ => 0,
    })
}

fn extents(squashfs: &Squashfs, inode: &Inode) -> Result<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    let InodeData::Regular(file) = &inode.data else { return Ok(extents) };
    let step = STEP_BLOCKS.saturating_mul(u64::from(squashfs.superblock.block_size()));
    let mut position = 0;
    while position < file.size && extents.len() < EXTENTS_MAX {
        squashfs.map_file(inode.nid, file, ByteRange::new(position, step), &mut extents)?;
        // Each step maps at least one byte, so the loop ends.
        position = extents.last().map_or(file.size, |last| last.range.end());
    }
    extents.truncate(EXTENTS_MAX);
    Ok(extents)
}

fn fields(inode: &Inode) -> Vec<(&'static str, u64)> {
    let mut fields = Vec::new();
    match &inode.data {
        InodeData::Directory(directory) => {
            fields.push(("parent inode number", u64::from(directory.parent)));
            fields.push(("listing block", u64::from(directory.start_block)));
            fields.push(("listing offset", u64::from(directory.offset)));
            fields.push(("index entries", u64::from(directory.index_count)));
        }
        InodeData::Regular(file) => {
            fields.push(("first data byte", file.start));
            fields.push(("blocks", file.block_count));
            fields.push(("bytes in holes", file.sparse));
            if let Some(tail) = file.fragment {
                fields.push(("fragment", u64::from(tail.index)));
                fields.push(("fragment offset", u64::from(tail.offset)));
            }
        }
        _ => {}
    }
    if let Some(index) = inode.xattr_index {
        fields.push(("attribute set", u64::from(index)));
    }
    fields
}

impl fmt::Display for InodeDescription {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attr = &self.attr;
        let kind = if self.is_extended { "extended" } else { "basic" };
        writeln!(formatter, "inode:              {} (reference {:#x})", attr.inode_number, attr.nid.0)?;
        writeln!(formatter, "type:               {} ({kind})", attr.file_type.letter())?;
        writeln!(formatter, "permissions:        {:04o}", attr.permissions)?;
        writeln!(formatter, "owner and group:    {} {}", attr.uid, attr.gid)?;
        writeln!(formatter, "links:              {}", attr.link_count)?;
        writeln!(formatter, "size:               {} bytes in {} blocks of 512", attr.size, attr.blocks_512)?;
        writeln!(formatter, "modified:           {} s since 1970", attr.modified.seconds)?;
        for (name, value) in &self.fields {
            writeln!(formatter, "{:<19} {value}", format!("{name}:"))?;
        }
        for name in &self.xattr_names {
            writeln!(formatter, "attribute:          {}", name.escape_ascii())?;
        }
        if let Some(target) = &self.target {
            writeln!(formatter, "target:             {}", target.escape_ascii())?;
        }
        for extent in &self.extents {
            write!(formatter, "bytes {}: ", extent.range)?;
            match extent.data {
                ExtentData::Hole => writeln!(formatter, "hole")?,
                ExtentData::Plain { offset, .. } => writeln!(formatter, "plain from byte {offset}")?,
                ExtentData::Encoded { block, skip } => {
                    let stored_len = match block.stored_len {
                        StoredLen::Known(len) => u64::from(len),
                        StoredLen::Prefixed => 0,
                    };
                    writeln!(formatter, "{stored_len} compressed bytes from byte {}, from {skip} on", block.offset)?;
                }
            }
        }
        Ok(())
    }
}
