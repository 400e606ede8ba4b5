//! Reads and decodes each block once.

use std::sync::atomic::Ordering::Relaxed;

use floe_codec::Decoder;
use floe_engine::Volume;
use floe_image::{Decompressor, DeviceId, Error, Place, Result, StoredBlock, StoredLen};

use super::Tally;

/// The maximum decoded size of a block in either format, in bytes.
const DECODED_BYTES_MAX: usize = 12 << 20;

/// The maximum number of bytes that are read ahead over consecutive blocks.
const WINDOW_BYTES_MAX: usize = 1 << 20;

/// Reads and decodes each block once. Each thread has its own.
pub(super) struct CheckedBytes<'a> {
    volume: &'a Volume,
    tally: &'a Tally,
    decoder: Decoder,
    /// Bytes from `window_offset` of `window_device` on.
    window: Vec<u8>,
    window_device: DeviceId,
    window_offset: u64,
    /// The number of bytes that the next read fetches if the next block follows the last.
    window_len: usize,
    output: Vec<u8>,
}

impl<'a> CheckedBytes<'a> {
    pub(super) fn new(volume: &'a Volume, tally: &'a Tally) -> Self {
        Self {
            volume,
            tally,
            decoder: Decoder::strict(),
            window: Vec::new(),
            window_device: DeviceId(0),
            window_offset: 0,
            window_len: 0,
            output: Vec::new(),
        }
    }

    /// Decodes a block and returns its decoded length in bytes.
    pub(super) fn decode(&mut self, block: &StoredBlock) -> Result<usize> {
        let place = Place { nid: None, device: block.device, offset: Some(block.offset) };
        let decoded_len = block.decoded_len.bytes() as usize;
        if decoded_len > DECODED_BYTES_MAX {
            return Err(Error::corrupt("block decodes to more than 12 MiB", place));
        }
        let StoredLen::Known(stored_len) = block.stored_len else {
            return Err(Error::corrupt("data block without a length", place));
        };
        let start = self.bring(block.device, block.offset, u64::from(stored_len))?;
        let stored = &self.window[start..start + stored_len as usize];
        if self.output.len() < decoded_len {
            self.output.resize(decoded_len, 0);
        }
        let output = &mut self.output[..decoded_len];
        let decoded = self.decoder.decode(&block.encoding, block.decoded_len, stored, 0, output);
        let len = decoded.map_err(|error| error.at(place))?;
        self.tally.blocks.fetch_add(1, Relaxed);
        self.tally.stored_bytes.fetch_add(u64::from(stored_len), Relaxed);
        self.tally.decoded_bytes.fetch_add(len as u64, Relaxed);
        Ok(len)
    }

    /// Reads uncompressed bytes.
    pub(super) fn read(&mut self, device: DeviceId, offset: u64, len: u64) -> Result<()> {
        let (mut position, mut left) = (offset, len);
        while left > 0 {
            let step = left.min(WINDOW_BYTES_MAX as u64);
            self.bring(device, position, step)?;
            position += step;
            left -= step;
        }
        self.tally.stored_bytes.fetch_add(len, Relaxed);
        self.tally.decoded_bytes.fetch_add(len, Relaxed);
        Ok(())
    }

    /// Fetches bytes into the window and returns their position in it.
    fn bring(&mut self, device: DeviceId, offset: u64, len: u64) -> Result<usize> {
        let place = Place { nid: None, device, offset: Some(offset) };
        let source = self.volume.source(device)?;
        if offset.checked_add(len).is_none_or(|end| end > source.len()) {
            return Err(Error::corrupt("block past the end of the image", place));
        }
        let window_end = self.window_offset + self.window.len() as u64;
        let is_near = device == self.window_device && self.window_offset <= offset && offset <= window_end;
        if is_near && offset + len <= window_end {
            return Ok((offset - self.window_offset) as usize);
        }
        // Each read over consecutive blocks is twice as long as the one before. A jump resets the length.
        self.window_len = if is_near { (self.window_len * 2).clamp(16 << 10, WINDOW_BYTES_MAX) } else { 0 };
        let wanted = len.max(self.window_len as u64).min(source.len() - offset);
        self.window.resize(wanted as usize, 0);
        if let Err(error) = source.read_at(offset, &mut self.window) {
            self.window.clear();
            return Err(Error::io(device, offset, error));
        }
        (self.window_device, self.window_offset) = (device, offset);
        Ok(0)
    }
}
