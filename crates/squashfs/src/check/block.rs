//! Blocks that are left to be decoded.

use std::sync::Arc;

use floe_image::{DecodedLen, Error, Nid, Place, StoredBlock};

use super::Finding;

/// A data or fragment block that a check has found and not decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockToDecode {
    /// The block. All of it is to be decoded, into [`DecodedLen::bytes`] bytes.
    pub block: StoredBlock,
    /// How many bytes files need of it; for a data block, all.
    pub needed_bytes: u32,
    /// An inode that needs it.
    pub nid: Option<Nid>,
    /// The path by which that was reached first.
    pub path: Option<Arc<[u8]>>,
}

impl BlockToDecode {
    /// What is wrong, given the number of bytes that the block decoded to, or why it did not.
    pub fn judge(&self, decoded: Result<usize, &Error>) -> Option<Finding> {
        let place = Place { nid: self.nid, device: self.block.device, offset: Some(self.block.offset) };
        let finding = match decoded {
            Err(error) => Finding { place, ..Finding::from(error) },
            Ok(len) => {
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let is_other = matches!(self.block.decoded_len, DecodedLen::Exact(exact) if exact != len);
                if !is_other && len >= self.needed_bytes {
                    return None;
                }
                Finding::error("block decodes to fewer bytes than files need of it", place)
            }
        };
        Some(finding.with_path(self.path.as_ref().map(|path| path.to_vec())))
    }
}
