//! Directories (docs/format/erofs.md, Directories).

use std::ops::ControlFlow;

use floe_image::{Bytes, DirectoryCursor, Dirent, Error, FileType, Nid, Place, Result};

use super::{
    content,
    inode::{Inode, inode_number},
    map::Mapper,
    volume::Volume,
};
use crate::format::{self, NAME_LEN};

/// The size of a raw entry.
const ENTRY_LEN: usize = format::Dirent::SIZE;

/// A directory of an open image.
pub(super) struct Directory<'volume> {
    volume: &'volume Volume,
    inode: &'volume Inode,
    mapper: Mapper<'volume>,
}

impl<'volume> Directory<'volume> {
    /// Opens the directory of `inode`.
    ///
    /// # Errors
    /// `inode` is not a directory, or its map breaks the format.
    pub(super) fn new(volume: &'volume Volume, inode: &'volume Inode) -> Result<Self> {
        match inode.file_type {
            FileType::Directory => Ok(Self { volume, inode, mapper: Mapper::new(volume, inode)? }),
            _ => Err(Error::WrongType { expected: "a directory", nid: inode.nid }),
        }
    }

    /// Looks `name` up: a binary search for the block, then one within it.
    ///
    /// # Errors
    /// A block cannot be read or breaks the format.
    pub(super) fn lookup(&mut self, name: &[u8]) -> Result<Option<Nid>> {
        if name.len() > NAME_LEN {
            return Ok(None);
        }
        if name == b"." && self.inode.omits_dot {
            return Ok(Some(self.inode.nid));
        }
        let (mut low, mut high) = (0, self.volume.superblock.block_size.blocks(self.inode.size));
        let mut candidate = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let block = self.block(middle)?;
            if block.entry(0)?.name > name {
                high = middle;
            } else {
                (candidate, low) = (Some(block), middle + 1);
            }
        }
        candidate.map_or(Ok(None), |block| block.find(name))
    }

    /// Visits the entries from `cursor` on. A cursor is a byte position, as in the kernel's directory streams.
    ///
    /// # Errors
    /// A block cannot be read or breaks the format.
    pub(super) fn read(
        &mut self,
        cursor: DirectoryCursor,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (size, block_size) = (self.inode.size, self.volume.superblock.block_size);
        let mut position = cursor.0;
        while position < size {
            let block = self.block(position >> block_size.log2())?;
            let within = usize::try_from(block_size.offset_within(position)).unwrap_or(usize::MAX);
            for index in within.div_ceil(ENTRY_LEN)..block.entry_count {
                let entry = block.entry(index)?;
                let next = if index + 1 == block.entry_count { block.end() } else { block.position_of(index + 1) };
                if self.visit(&entry, next, visit)?.is_break() {
                    return Ok(());
                }
            }
            position = block.end();
        }
        if self.inode.omits_dot && position == size {
            let entry = Entry { name: b".", nid: self.inode.nid, file_type: format::FT_DIR };
            self.visit(&entry, size.saturating_add(1), visit)?.is_break();
        }
        Ok(())
    }

    fn visit(
        &self,
        entry: &Entry<'_>,
        next: u64,
        visit: &mut dyn FnMut(Dirent<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let file_type = match file_type(entry.file_type) {
            Some(file_type) => file_type,
            None => Inode::read(self.volume, entry.nid)?.file_type,
        };
        let inode_number = inode_number(self.volume, entry.nid);
        Ok(visit(Dirent { name: entry.name, nid: entry.nid, inode_number, file_type, next: DirectoryCursor(next) }))
    }

    /// Reads block `number`, which must begin before the directory's end.
    ///
    /// # Errors
    /// The block cannot be read or breaks the format.
    pub(super) fn block(&mut self, number: u64) -> Result<DirectoryBlock> {
        let block_size = self.volume.superblock.block_size;
        let position = number << block_size.log2();
        let len = block_size.bytes().min(self.inode.size.saturating_sub(position));
        let len = usize::try_from(len).unwrap_or(0);
        let bytes = content::read_with(self.volume, &mut self.mapper, self.inode, position, len)?;
        DirectoryBlock::new(self.inode.nid, position, bytes)
    }
}

/// The file type for the number in an entry.
pub(super) fn file_type(number: u8) -> Option<FileType> {
    Some(match number {
        format::FT_REG_FILE => FileType::Regular,
        format::FT_DIR => FileType::Directory,
        format::FT_CHRDEV => FileType::CharacterDevice,
        format::FT_BLKDEV => FileType::BlockDevice,
        format::FT_FIFO => FileType::Fifo,
        format::FT_SOCK => FileType::Socket,
        format::FT_SYMLINK => FileType::Symlink,
        _ => return None,
    })
}

/// One block of a directory.
pub(super) struct DirectoryBlock {
    directory: Nid,
    /// Its position in the directory.
    position: u64,
    bytes: Bytes,
    entry_count: usize,
}

/// An entry.
pub(super) struct Entry<'block> {
    pub(super) name: &'block [u8],
    pub(super) nid: Nid,
    /// The number recorded in the image.
    pub(super) file_type: u8,
}

impl DirectoryBlock {
    /// Parses the block of `directory` at byte `position`.
    ///
    /// # Errors
    /// The offset of the first name, which determines the number of entries, breaks the format.
    pub(super) fn new(directory: Nid, position: u64, bytes: Bytes) -> Result<Self> {
        let mut block = Self { directory, position, bytes, entry_count: 0 };
        let names_start = usize::from(block.raw(0)?.nameoff);
        if names_start < ENTRY_LEN || names_start >= block.bytes.len() {
            return Err(block.corrupt("first name of a directory block does not follow its entries"));
        }
        block.entry_count = names_start / ENTRY_LEN;
        Ok(block)
    }

    /// Parses entry `index`.
    ///
    /// # Errors
    /// Its name breaks the format.
    pub(super) fn entry(&self, index: usize) -> Result<Entry<'_>> {
        let raw = self.raw(index)?;
        let start = usize::from(raw.nameoff);
        let is_last = index + 1 >= self.entry_count;
        let end = if is_last { self.bytes.len() } else { usize::from(self.raw(index + 1)?.nameoff) };
        let name = self.bytes.get(start..end).ok_or_else(|| self.corrupt("dirent name past its block"))?;
        let name = match name.iter().position(|byte| *byte == 0) {
            Some(end) if is_last => name.get(..end).unwrap_or_default(),
            Some(_) => return Err(self.corrupt("dirent name has a zero byte")),
            None => name,
        };
        match name.len() {
            0 => Err(self.corrupt("dirent name is empty")),
            1..=NAME_LEN if name.contains(&b'/') => Err(self.corrupt("dirent name has a slash")),
            1..=NAME_LEN => Ok(Entry { name, nid: Nid(raw.nid), file_type: raw.file_type }),
            _ => Err(self.corrupt("dirent name longer than 255 bytes")),
        }
    }

    /// The number of entries.
    pub(super) fn entry_count(&self) -> usize {
        self.entry_count
    }

    /// Whether the first name directly follows an entry.
    pub(super) fn has_whole_entries(&self) -> bool {
        self.raw(0).is_ok_and(|raw| usize::from(raw.nameoff).is_multiple_of(ENTRY_LEN))
    }

    /// Looks `name` up in this block.
    fn find(&self, name: &[u8]) -> Result<Option<Nid>> {
        let (mut low, mut high) = (0, self.entry_count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(middle)?;
            match entry.name.cmp(name) {
                std::cmp::Ordering::Equal => return Ok(Some(entry.nid)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// The position in the directory after the block.
    fn end(&self) -> u64 {
        self.position.saturating_add(u64::try_from(self.bytes.len()).unwrap_or(u64::MAX))
    }

    /// The position of entry `index` in the directory.
    fn position_of(&self, index: usize) -> u64 {
        self.position.saturating_add(u64::try_from(index * ENTRY_LEN).unwrap_or(u64::MAX))
    }

    fn raw(&self, index: usize) -> Result<format::Dirent> {
        let raw = self.bytes.get(index * ENTRY_LEN..).and_then(format::Dirent::from_prefix);
        raw.ok_or_else(|| self.corrupt("dirent past its block"))
    }

    fn corrupt(&self, rule: &'static str) -> Error {
        Error::corrupt(rule, Place::inode_at(self.directory, self.position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(entries: &[(&str, u64)], tail: &[u8]) -> Vec<u8> {
        let mut nameoff = entries.len() * ENTRY_LEN;
        let (mut raw, mut names) = (Vec::new(), Vec::new());
        for (name, nid) in entries {
            let nameoff16 = u16::try_from(nameoff).expect("small");
            raw.extend(format::Dirent { nid: *nid, nameoff: nameoff16, file_type: 1, reserved: 0 }.to_bytes());
            names.extend(name.as_bytes());
            nameoff += name.len();
        }
        [&raw, &names, tail].concat()
    }

    #[test]
    fn names_end_at_the_next_name_or_a_zero_byte() {
        for tail in [&b""[..], &[0; 7]] {
            let bytes = block(&[("..", 1), ("a", 2), ("bcd", 3)], tail);
            let block = DirectoryBlock::new(Nid(9), 0, bytes.into()).expect("the block is right");
            let names: Vec<_> = (0..3).map(|index| block.entry(index).expect("it is right").name.to_vec()).collect();
            assert_eq!(names, [&b".."[..], b"a", b"bcd"]);
            for (name, nid) in [("..", Some(1)), ("a", Some(2)), ("bcd", Some(3)), ("bc", None), ("bcde", None)] {
                assert_eq!(block.find(name.as_bytes()).expect("it is right"), nid.map(Nid), "{name}");
            }
        }
    }

    #[test]
    fn broken_blocks_are_named() {
        let whole = block(&[("..", 1), ("a", 2)], b"");
        for (at, byte, rule) in [
            (8, 11, "first name of a directory block does not follow its entries"),
            (8, 200, "first name of a directory block does not follow its entries"),
            (20, 200, "dirent name past its block"),
            (20, 24, "dirent name is empty"),
            (24, b'/', "dirent name has a slash"),
            (24, 0, "dirent name has a zero byte"),
        ] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            let block = DirectoryBlock::new(Nid(9), 4096, bytes.into());
            let error = block.and_then(|block| block.entry(0).map(|_| ())).expect_err("it is broken");
            assert_eq!(error.to_string(), format!("corrupt image: {rule} (inode 9, byte 4096)"));
        }
    }
}
