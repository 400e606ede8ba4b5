//! Blocks that the caller decodes.

use std::sync::Arc;

use floe_image::{DecodedLen, Error, Nid, Place, StoredBlock};

use super::Finding;

/// A data or fragment block that the check has found but not decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockToDecode {
    /// The block. The caller decodes all of it, into [`DecodedLen::bytes`] bytes. If its encoding is
    /// [`Encoding::Stored`](floe_image::Encoding), it is enough to read it.
    pub block: StoredBlock,
    /// The number of decoded bytes that files use; for a data block, all of them.
    pub needed_bytes: u32,
    /// An inode that uses it.
    pub nid: Option<Nid>,
    /// The first path to that inode.
    pub path: Option<Arc<[u8]>>,
}

impl BlockToDecode {
    /// Judges the result of decoding: the number of decoded bytes, or the error. Returns a finding if decoding failed
    /// or the length is wrong.
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
                Finding::error("block decodes to fewer bytes than files use", place)
            }
        };
        Some(finding.with_path(self.path.as_ref().map(|path| path.to_vec())))
    }
}
