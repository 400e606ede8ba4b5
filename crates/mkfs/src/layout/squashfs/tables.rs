//! Tables of fixed-size entries in metadata blocks, followed by a list of the blocks; the ids in one of them.

use std::collections::{BTreeSet, HashMap};

use super::metadata::{BLOCK_LEN, MetadataWriter};
use crate::{
    error::{Error, Result},
    files::image_file::ImageFile,
};

/// Appends a table with entries of this size: its metadata blocks, `header`, and the list of the blocks' positions. Returns
/// the position of `header` or, if that is empty, of the list.
pub(super) fn append_table(
    image: &mut ImageFile,
    mut writer: MetadataWriter,
    entry_len: usize,
    entries: &[u8],
    header: &[u8],
) -> Result<u64> {
    debug_assert_eq!(BLOCK_LEN % entry_len, 0, "entries do not cross blocks");
    writer.write(entries)?;
    let blocks = writer.finish()?;
    let start = image.len();
    image.append(&blocks.stored)?;
    let list_start = image.len();
    image.append(header)?;
    let positions: Vec<u8> = blocks.starts.iter().flat_map(|block| (start + block).to_le_bytes()).collect();
    image.append(&positions)?;
    Ok(list_start)
}

/// The owners and groups of all inodes.
#[derive(Default)]
pub(super) struct IdTable {
    numbers: HashMap<u32, u16>,
    ids: Vec<u32>,
    pub(super) uids: BTreeSet<u32>,
    pub(super) gids: BTreeSet<u32>,
}

impl IdTable {
    /// The indexes of an owner and a group.
    pub(super) fn indexes(&mut self, uid: u32, gid: u32) -> Result<(u16, u16)> {
        self.uids.insert(uid);
        self.gids.insert(gid);
        Ok((self.index(uid)?, self.index(gid)?))
    }

    /// The number of ids.
    pub(super) fn count(&self) -> u16 {
        u16::try_from(self.ids.len()).unwrap_or(u16::MAX)
    }

    /// The entries of the table.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    fn index(&mut self, id: u32) -> Result<u16> {
        if let Some(index) = self.numbers.get(&id) {
            return Ok(*index);
        }
        // The superblock has 16 bits for the number of ids.
        let index = u16::try_from(self.ids.len()).ok().filter(|index| *index < u16::MAX);
        let index =
            index.ok_or_else(|| Error::Layout("SquashFS has at most 65535 different owners and groups".into()))?;
        self.ids.push(id);
        self.numbers.insert(id, index);
        Ok(index)
    }
}
