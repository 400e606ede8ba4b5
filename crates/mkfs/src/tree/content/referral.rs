//! Data on an extra device of the new image, to which a file refers instead of having data of its own.

use std::{path::PathBuf, sync::Arc};

use floe_erofs::write::CompressedExtent;

use super::Content;
use crate::tree::run::Run;

/// The first block of the extra device with pclusters in the unified address space. It is behind the last block of the image.
pub(crate) const UNIFIED_BLOCK: u64 = 1 << 31;

/// Where the content of a file is on an extra device.
#[derive(Clone, Debug)]
pub(crate) struct Referral {
    /// The number of the device.
    pub(crate) device: u16,
    /// Its path.
    pub(crate) path: Arc<PathBuf>,
    /// The size of the file.
    pub(crate) size: u64,
    pub(crate) data: ReferredData,
}

/// The data of a [`Referral`].
#[derive(Clone, Debug)]
pub(crate) enum ReferredData {
    /// Runs with holes between them. All but the last end with a block.
    Runs {
        runs: Box<[Run]>,
        /// The same content and the offset at which its last block begins, if the device does not have that block.
        tail: Option<(u64, Content)>,
    },
    /// Pclusters. Their blocks are numbered from the beginning of the device.
    Pclusters {
        /// A `COMPRESSION_` number.
        algorithm: u8,
        extents: Box<[CompressedExtent]>,
    },
}

impl Referral {
    /// How many bytes of the file are not in holes, as far as that is known.
    pub(crate) fn stored_len(&self) -> u64 {
        match &self.data {
            ReferredData::Runs { runs, tail } => {
                let tail_len = tail.as_ref().map_or(0, |(start, _)| self.size.saturating_sub(*start));
                runs.iter().map(|run| run.len).sum::<u64>() + tail_len
            }
            ReferredData::Pclusters { .. } => self.size,
        }
    }
}
