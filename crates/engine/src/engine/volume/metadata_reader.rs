//! The [`BlockReader`] of the engine: formats read their metadata through the engine's caches.

use std::{sync::Arc, time::Duration};

use floe_image::{
    BlockReader, Bytes, DecodedBlock, DecodedLen, Decompressor, DeviceId, Encoding, Error, ImageSource, Place, Result,
    StoredBlock, StoredLen,
};

use crate::{
    Blocking, Volume,
    cache::metadata_cache::{ENTRY_BYTES, Weight},
    engine::volume::decode_error,
    threads::real_time,
};

/// The size and the alignment of cached pieces of stored metadata, in bytes.
const PIECE_BYTES: u64 = 16 << 10;

/// Reads metadata through the engine's caches, blocking or not.
///
/// A file system is opened with a blocking reader. [`FileSystem::with_reader`](floe_image::FileSystem::with_reader)
/// returns its non-blocking view.
pub(crate) struct MetadataReader {
    pub(crate) volume: Arc<Volume>,
    pub(crate) blocking: Blocking,
}

impl Weight for Bytes {
    fn weight(&self) -> usize {
        self.len() + ENTRY_BYTES
    }

    fn deep_copy(&self) -> Self {
        Self::copy_from_slice(self)
    }
}

impl Weight for DecodedBlock {
    fn weight(&self) -> usize {
        self.bytes.len() + ENTRY_BYTES
    }

    fn deep_copy(&self) -> Self {
        Self { bytes: self.bytes.deep_copy(), ..*self }
    }
}

impl MetadataReader {
    /// Returns the cached piece with the byte at `offset`. The piece is shorter than [`PIECE_BYTES`] at the end of the
    /// device.
    ///
    /// # Errors
    /// There is no such byte; the source fails.
    fn piece(&self, device: DeviceId, offset: u64) -> Result<Bytes> {
        let start = offset - offset % PIECE_BYTES;
        self.volume.engine.stored_metadata.find_or_make(
            (self.volume.source_id(device), start),
            self.blocking,
            |_| true,
            || {
                let end = self.device_len(device)?.min(start.saturating_add(PIECE_BYTES));
                if offset >= end {
                    return Err(past_the_end(device, offset));
                }
                let mut bytes = vec![0; (end - start) as usize];
                self.fill(device, start, &mut bytes)?;
                Ok(bytes.into())
            },
        )
    }

    fn fill(&self, device: DeviceId, offset: u64, output: &mut [u8]) -> Result<()> {
        self.volume.sources.fetch_metadata(device, offset, output, self.blocking)
    }

    fn decode(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        self.volume.check_bounds(block)?;
        let StoredBlock { device, offset, decoded_len, mut encoding, .. } = *block;
        let decoded_len_max = decoded_len.bytes() as usize;
        let mut stored = Vec::new();
        let stored_start;
        match block.stored_len {
            StoredLen::Known(len) => {
                stored_start = 0;
                stored.resize(len as usize, 0);
                self.fill(device, offset, &mut stored)?;
            }
            StoredLen::Prefixed => {
                // One read fetches the length and, since stored data is never longer than decoded data, all that can
                // follow it.
                stored_start = 2;
                let room = self.device_len(device)?.saturating_sub(offset);
                stored.resize(room.min(2 + decoded_len_max as u64) as usize, 0);
                self.fill(device, offset, &mut stored)?;
                let place = Place { nid: None, device, offset: Some(offset) };
                let word = stored.first_chunk::<2>().map_or(0, |word| u16::from_le_bytes(*word));
                let len = usize::from(word & 0x7fff);
                if len == 0 || len > decoded_len_max {
                    return Err(Error::corrupt("metadata block of wrong length", place));
                }
                if stored.len() < 2 + len {
                    return Err(Error::corrupt("metadata block past the end of the image", place));
                }
                stored.truncate(2 + len);
                if word & 0x8000 != 0 {
                    encoding = Encoding::Stored;
                }
            }
        }
        let stored_end = offset + stored.len() as u64;
        let mut bytes = vec![0; decoded_len_max];
        let decoded = self.volume.engine.decoders.with(&encoding, decoded_len, |decoder| {
            let decoded = decoder.decode(&encoding, decoded_len, &stored[stored_start..], 0, &mut bytes);
            decoded.map_err(|error| decode_error(error, block))
        })?;
        bytes.truncate(decoded);
        bytes.shrink_to_fit();
        Ok(DecodedBlock { bytes: bytes.into(), stored_end })
    }
}

/// The error of a read past the end of a device.
fn past_the_end(device: DeviceId, offset: u64) -> Error {
    Error::corrupt("metadata past the end of the image", Place { nid: None, device, offset: Some(offset) })
}

impl BlockReader for MetadataReader {
    fn device_count(&self) -> u16 {
        self.volume.sources.device_count()
    }

    fn device_len(&self, device: DeviceId) -> Result<u64> {
        self.volume.sources.device_len(device)
    }

    fn stored(&self, device: DeviceId, offset: u64, len: usize) -> Result<Bytes> {
        real_time::check(Duration::ZERO);
        let place = Place { nid: None, device, offset: Some(offset) };
        let end = offset.checked_add(len as u64).filter(|_| len <= <dyn BlockReader>::STORED_LEN_MAX);
        let end = end.ok_or(Error::corrupt("metadata longer than 1 MiB", place))?;
        let within = (offset % PIECE_BYTES) as usize;
        if len != 0 && within + len <= PIECE_BYTES as usize {
            let piece = self.piece(device, offset)?;
            let is_whole = within + len <= piece.len();
            return if is_whole { Ok(piece.slice(within..within + len)) } else { Err(past_the_end(device, offset)) };
        }
        if end > self.device_len(device)? {
            return Err(past_the_end(device, offset));
        }
        let mut bytes = Vec::with_capacity(len);
        let mut position = offset;
        while position < end {
            let piece = self.piece(device, position)?;
            let start = position - position % PIECE_BYTES;
            let stop = end.min(start + PIECE_BYTES);
            let part = piece.get((position - start) as usize..(stop - start) as usize);
            bytes.extend_from_slice(part.ok_or_else(|| past_the_end(device, offset))?);
            position = stop;
        }
        Ok(bytes.into())
    }

    fn decoded(&self, block: &StoredBlock) -> Result<DecodedBlock> {
        real_time::check(Duration::ZERO);
        let len = block.decoded_len.bytes() as usize;
        // Two callers may know different lengths of the same block. The longest is cached.
        let is_enough =
            |found: &DecodedBlock| found.bytes.len() >= len || matches!(block.decoded_len, DecodedLen::AtMost(_));
        let make = || self.decode(block);
        let key = self.volume.blocks.key(block);
        let found = self.volume.engine.decoded_metadata.find_or_make(key, self.blocking, is_enough, make)?;
        if is_enough(&found) {
            return Ok(DecodedBlock { bytes: found.bytes.slice(..found.bytes.len().min(len)), ..found });
        }
        self.decode(block)
    }

    fn add_derived(&self, source: Arc<dyn ImageSource>) -> Result<DeviceId> {
        self.volume.add_derived(source)
    }
}
