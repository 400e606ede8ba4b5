//! Directory blocks (docs/format/erofs.md, Directories).

use floe_image::FileType;

use crate::format::{self, Dirent};

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryEntry<'name> {
    /// The name: 1 to 255 bytes.
    pub name: &'name [u8],
    /// The inode that the entry refers to.
    pub nid: u64,
    /// The type of that inode.
    pub file_type: FileType,
}

/// The length of a directory whose names have these lengths, in the order of the names, including `.` and `..`. Only
/// the used part of the last block counts.
pub fn directory_len(name_lens: impl IntoIterator<Item = usize>, block_size: u64) -> u64 {
    let mut len = 0u64;
    for name_len in name_lens {
        let entry_len = entry_len(name_len);
        if len % block_size + entry_len > block_size {
            len = len.next_multiple_of(block_size);
        }
        len += entry_len;
    }
    len
}

/// The content of a directory. `entries` are sorted by the bytes of their names; blocks are filled one after the other.
pub fn directory_bytes(entries: &[DirectoryEntry<'_>], block_size: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut block_len = 0;
        let count = rest.iter().take_while(|entry| {
            block_len += entry_len(entry.name.len());
            block_len <= block_size
        });
        let (block, after) = rest.split_at(count.count().max(1));
        if !bytes.is_empty() {
            let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX).next_multiple_of(block_size);
            bytes.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        }
        put_block(block, &mut bytes);
        rest = after;
    }
    bytes
}

fn put_block(entries: &[DirectoryEntry<'_>], bytes: &mut Vec<u8>) {
    let mut name_offset = entries.len() * Dirent::SIZE;
    for entry in entries {
        let dirent = Dirent {
            nid: entry.nid,
            nameoff: u16::try_from(name_offset).unwrap_or(u16::MAX),
            file_type: file_type_number(entry.file_type),
            reserved: 0,
        };
        bytes.extend(dirent.to_bytes());
        name_offset += entry.name.len();
    }
    for entry in entries {
        bytes.extend(entry.name);
    }
}

fn entry_len(name_len: usize) -> u64 {
    u64::try_from(Dirent::SIZE + name_len).unwrap_or(u64::MAX)
}

fn file_type_number(file_type: FileType) -> u8 {
    match file_type {
        FileType::Regular => format::FT_REG_FILE,
        FileType::Directory => format::FT_DIR,
        FileType::Symlink => format::FT_SYMLINK,
        FileType::CharacterDevice => format::FT_CHRDEV,
        FileType::BlockDevice => format::FT_BLKDEV,
        FileType::Fifo => format::FT_FIFO,
        FileType::Socket => format::FT_SOCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_self_contained_and_lengths_agree() {
        for (count, name_len, block_size) in [(1, 1, 512), (3, 255, 512), (100, 20, 512), (1000, 13, 4096)] {
            let names: Vec<Vec<u8>> =
                (0..count).map(|number| format!("{number:0>width$}", width = name_len).into_bytes()).collect();
            let entries: Vec<DirectoryEntry<'_>> = names
                .iter()
                .zip(7..)
                .map(|(name, nid)| DirectoryEntry { name, nid, file_type: FileType::Regular })
                .collect();
            let bytes = directory_bytes(&entries, block_size);
            assert_eq!(bytes.len() as u64, directory_len(names.iter().map(Vec::len), block_size));
            let mut found = 0;
            for block in bytes.chunks(block_size as usize) {
                let first = Dirent::from_prefix(block).expect("a block has an entry");
                let in_block = usize::from(first.nameoff) / Dirent::SIZE;
                for number in 0..in_block {
                    let dirent = Dirent::from_prefix(&block[number * Dirent::SIZE..]).expect("it is within the block");
                    let name = &block[usize::from(dirent.nameoff)..];
                    assert!(name.starts_with(&names[found]));
                    assert_eq!(dirent.nid, 7 + found as u64);
                    found += 1;
                }
            }
            assert_eq!(found, count);
        }
    }
}
