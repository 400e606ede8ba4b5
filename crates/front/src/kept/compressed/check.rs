//! Decodes blocks before the kernel does.

use std::{io, os::unix::fs::FileExt};

use floe_codec::Decoder;
use floe_image::{Decompressor, StoredBlock};

use super::pieces::{blocks_of, decoded_len};
use crate::{
    geometry::BLOCK_BYTES,
    kept::{image_file::ImageFile, not_kept::NotKept},
};

/// Decodes blocks.
pub(super) struct Check {
    decoder: Decoder,
    stored: Vec<u8>,
    decoded: Vec<u8>,
}

impl Check {
    /// Whether a block can be read and decodes to its length.
    pub(super) fn is_sound(&mut self, image: &ImageFile, block: &StoredBlock) -> Result<bool, NotKept> {
        let (Some((start, count)), Some(len)) = (blocks_of(block), decoded_len(block)) else { return Ok(false) };
        self.stored.resize((count * BLOCK_BYTES) as usize, 0);
        self.decoded.resize(len as usize, 0);
        match image.file().read_exact_at(&mut self.stored, start * BLOCK_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        // The kernel looks for the end of the padding in the first block only.
        if self.stored.iter().take(BLOCK_BYTES as usize).all(|byte| *byte == 0) {
            return Ok(false);
        }
        let decoded = self.decoder.decode(&block.encoding, block.decoded_len, &self.stored, 0, &mut self.decoded);
        Ok(decoded.is_ok_and(|decoded| decoded as u64 == len))
    }
}

impl Default for Check {
    fn default() -> Self {
        Self { decoder: Decoder::strict(), stored: Vec::new(), decoded: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use floe_codec::encode::Compression;
    use floe_image::{DecodedLen, DeviceId, Encoding, Padding, StoredLen};

    use super::*;

    #[test]
    fn the_kernel_gets_only_blocks_that_decode() {
        let text: Vec<u8> = (0..30_000_u32).flat_map(|number| (number / 7).to_le_bytes()).take(20_000).collect();
        let compression = Compression::Lz4 { window_bytes: std::num::NonZeroU32::new(65_535).expect("not zero") };
        let mut encoded = vec![0; 60_000];
        let len = compression
            .encoder()
            .expect("memory")
            .encode_whole(&text, &mut encoded)
            .expect("encoded")
            .expect("it fits");
        let padded = (len as u64 + 1).next_multiple_of(BLOCK_BYTES);
        let mut stored = vec![0; padded as usize - len];
        let first = stored.len();
        stored.extend(&encoded[..len]);
        let block = |offset, stored_len: u64, len| StoredBlock {
            device: DeviceId(0),
            offset,
            stored_len: StoredLen::Known(stored_len as u32),
            decoded_len: DecodedLen::Exact(len),
            encoding: Encoding::Lz4 { padding: Padding::Leading, window_bytes: 65_535 },
        };
        type Change = fn(&mut Vec<u8>, usize);
        let rows: [(Change, StoredBlock, bool); 6] = [
            (|_, _| {}, block(0, padded, 20_000), true),
            (|_, _| {}, block(0, padded, 19_999), false),
            (|_, _| {}, block(0, padded, 20_001), false),
            (|stored, first| stored[first] = 0xff, block(0, padded, 20_000), false),
            // The kernel looks for the end of the padding in the first block.
            (
                |stored, _| drop(stored.splice(..0, vec![0; BLOCK_BYTES as usize])),
                block(0, padded + BLOCK_BYTES, 20_000),
                false,
            ),
            // Past the end of the image.
            (|_, _| {}, block(BLOCK_BYTES, padded, 20_000), false),
        ];
        for (index, (change, block, is_sound)) in rows.into_iter().enumerate() {
            let mut stored = stored.clone();
            change(&mut stored, first);
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&stored, 0).expect("written");
            let image = ImageFile::new(file).expect("it has a length");
            assert_eq!(Check::default().is_sound(&image, &block).expect("read"), is_sound, "row {index}");
        }
    }
}
