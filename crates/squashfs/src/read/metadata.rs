//! Reads metadata blocks (section "Metadata blocks").

use std::{io, sync::Arc};

use floe_image::{BlockReader, Bytes, DecodedLen, DeviceId, Encoding, Error, Place, Result, StoredBlock, StoredLen};

use crate::format::{METADATA_BYTES, Raw};

/// The largest raw structure, in bytes.
const RAW_BYTES_MAX: usize = 96;

/// The size of a metadata block's length word in bytes.
const LENGTH_WORD_BYTES: u64 = 2;

/// The position of a byte of decoded metadata: a block and an offset in its decoded bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MetadataPosition {
    /// The start of the stored block in the image.
    pub(crate) block: u64,
    /// The offset in the decoded block.
    pub(crate) offset: u32,
}

impl MetadataPosition {
    /// The position of a reference whose block is relative to `table_start`; `None` if it exceeds 48 bits.
    pub(crate) fn of_reference(table_start: u64, reference: u64) -> Option<Self> {
        let block = u32::try_from(reference.checked_shr(16)?).ok()?;
        let offset = u32::try_from(reference & 0xffff).ok()?;
        Some(Self { block: table_start.checked_add(u64::from(block))?, offset })
    }

    /// The location for error messages.
    pub(crate) const fn place(self) -> Place {
        Place::at(self.block)
    }
}

/// The range of a table's metadata blocks in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// Reads and decodes metadata blocks.
#[derive(Clone)]
pub(crate) struct Metadata {
    reader: Arc<dyn BlockReader>,
    encoding: Encoding,
}

impl Metadata {
    pub(crate) fn new(reader: Arc<dyn BlockReader>, encoding: Encoding) -> Self {
        Self { reader, encoding }
    }

    /// The same image through another reader.
    pub(crate) fn with_reader(&self, reader: Arc<dyn BlockReader>) -> Self {
        Self { reader, encoding: self.encoding }
    }

    pub(crate) fn reader(&self) -> &dyn BlockReader {
        self.reader.as_ref()
    }

    pub(crate) const fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Creates a cursor that reads `table` from `position` on.
    pub(crate) fn cursor(&self, table: TableRange, position: MetadataPosition) -> MetadataCursor<'_> {
        MetadataCursor { metadata: self, table, position, loaded: None }
    }

    /// Reads the block at `offset`; returns it with the position after it.
    pub(crate) fn block(&self, offset: u64) -> Result<(Bytes, u64)> {
        let block = StoredBlock {
            device: DeviceId(0),
            offset,
            stored_len: StoredLen::Prefixed,
            decoded_len: DecodedLen::AtMost(METADATA_BYTES),
            encoding: self.encoding,
        };
        let decoded = self.reader.decoded(&block).map_err(|error| match &error {
            Error::Io { place, error } if error.kind() == io::ErrorKind::UnexpectedEof => {
                Error::corrupt("metadata block past the end of the image", *place)
            }
            _ => error,
        })?;
        let stored_len = decoded.stored_end.saturating_sub(offset.saturating_add(LENGTH_WORD_BYTES));
        if stored_len > u64::from(METADATA_BYTES) {
            return Err(Error::corrupt("metadata block of more than 8192 bytes", Place::at(offset)));
        }
        if decoded.bytes.is_empty() || decoded.stored_end <= offset {
            return Err(Error::corrupt("empty metadata block", Place::at(offset)));
        }
        Ok((decoded.bytes, decoded.stored_end))
    }
}

/// Reads decoded metadata sequentially; records may span blocks.
///
/// Each further block must follow the previous one and lie within the table, so every read ends.
#[derive(Clone)]
pub(crate) struct MetadataCursor<'image> {
    metadata: &'image Metadata,
    table: TableRange,
    position: MetadataPosition,
    loaded: Option<LoadedBlock>,
}

#[derive(Clone)]
struct LoadedBlock {
    offset: u64,
    bytes: Bytes,
    stored_end: u64,
}

impl MetadataCursor<'_> {
    /// The position of the next byte. At the end of a block, this is the first byte of the next one.
    pub(crate) const fn position(&self) -> MetadataPosition {
        self.position
    }

    /// Whether the cursor has reached the end of the table.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.position.block >= self.table.end
    }

    /// Reads a structure.
    pub(crate) fn read<T: Raw>(&mut self) -> Result<T> {
        let place = self.position.place();
        let mut bytes = [0; RAW_BYTES_MAX];
        let bytes = bytes.get_mut(..T::SIZE).unwrap_or_default();
        self.fill(bytes)?;
        T::from_prefix(bytes).ok_or(Error::corrupt("metadata record is too short", place))
    }

    /// Reads a 32-bit number.
    pub(crate) fn read_u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a 64-bit number.
    pub(crate) fn read_u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Fills `output` with the next bytes.
    pub(crate) fn fill(&mut self, output: &mut [u8]) -> Result<()> {
        let mut rest = output;
        while !rest.is_empty() {
            let chunk = self.chunk(rest.len())?;
            let (head, tail) = rest.split_at_mut_checked(chunk.len()).unwrap_or_default();
            head.copy_from_slice(chunk);
            rest = tail;
        }
        Ok(())
    }

    /// Reads `len` bytes. Memory grows with the bytes found, not with `len`.
    pub(crate) fn take(&mut self, len: u32) -> Result<Vec<u8>> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut output = Vec::new();
        while output.len() < len {
            let chunk = self.chunk(len.saturating_sub(output.len()))?;
            output.extend_from_slice(chunk);
        }
        Ok(output)
    }

    /// Skips `len` bytes.
    pub(crate) fn skip(&mut self, len: u64) -> Result<()> {
        let mut left = len;
        while left > 0 {
            let chunk = self.chunk(usize::try_from(left).unwrap_or(usize::MAX))?;
            left = left.saturating_sub(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// Returns the next bytes: at least one, at most `len_max`.
    fn chunk(&mut self, len_max: usize) -> Result<&[u8]> {
        let position = self.position;
        if self.loaded.as_ref().is_none_or(|loaded| loaded.offset != position.block) {
            self.loaded = Some(load(self.metadata, self.table, position.block)?);
        }
        let Some(loaded) = &self.loaded else { return Ok(&[]) };
        let offset = usize::try_from(position.offset).unwrap_or(usize::MAX);
        let rest = loaded.bytes.get(offset..).unwrap_or_default();
        if rest.is_empty() {
            return Err(Error::corrupt("metadata reference past the end of its block", position.place()));
        }
        let chunk = rest.get(..len_max).unwrap_or(rest);
        self.position = if chunk.len() == rest.len() {
            MetadataPosition { block: loaded.stored_end, offset: 0 }
        } else {
            let len = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            MetadataPosition { block: position.block, offset: position.offset.saturating_add(len) }
        };
        Ok(chunk)
    }
}

fn load(metadata: &Metadata, table: TableRange, offset: u64) -> Result<LoadedBlock> {
    if !(table.start..table.end).contains(&offset) {
        return Err(Error::corrupt("metadata block outside its table", Place::at(offset)));
    }
    let (bytes, stored_end) = metadata.block(offset)?;
    if stored_end > table.end {
        return Err(Error::corrupt("metadata block past the end of its table", Place::at(offset)));
    }
    Ok(LoadedBlock { offset, bytes, stored_end })
}

#[cfg(test)]
mod tests {
    use floe_testkit::DirectReader;

    use super::*;

    fn metadata(image: Vec<u8>) -> Metadata {
        Metadata::new(Arc::new(DirectReader::of(image)), Encoding::Stored)
    }

    fn block(bytes: &[u8]) -> Vec<u8> {
        let word = 0x8000 | u16::try_from(bytes.len()).expect("a block");
        [&word.to_le_bytes(), bytes].concat()
    }

    #[test]
    fn records_span_blocks_and_positions_go_on_to_the_next_block() {
        let image = [block(&[1, 2, 3]), block(&[4, 5, 6, 7, 8, 9])].concat();
        let table = TableRange { start: 0, end: image.len() as u64 };
        let metadata = metadata(image);
        let mut cursor = metadata.cursor(table, MetadataPosition { block: 0, offset: 1 });
        assert_eq!(cursor.read_u32().expect("four bytes"), u32::from_le_bytes([2, 3, 4, 5]));
        assert_eq!(cursor.position(), MetadataPosition { block: 5, offset: 2 });
        cursor.skip(1).expect("one byte");
        assert_eq!(cursor.take(3).expect("three bytes"), [7, 8, 9]);
        assert!(cursor.is_at_end());
        let error = cursor.take(1).expect_err("the table ends");
        assert_eq!(error.to_string(), "corrupt image: metadata block outside its table (byte 13)");
    }

    #[test]
    fn blocks_and_references_are_held_to_their_rules() {
        let long = block(&vec![0; 8193]);
        for (image, end, block, offset, expected) in [
            (block(b"abc"), 5, 0, 3, "metadata reference past the end of its block"),
            (block(b"abc"), 4, 0, 0, "metadata block past the end of its table"),
            (block(b"abc"), 5, 5, 0, "metadata block outside its table"),
            (vec![0, 0x80, 0, 0], 4, 0, 0, "empty metadata block"),
            (long, 1 << 20, 0, 0, "more than"),
        ] {
            let metadata = metadata(image);
            let mut cursor = metadata.cursor(TableRange { start: 0, end }, MetadataPosition { block, offset });
            let error = cursor.read_u32().expect_err(expected).to_string();
            assert!(error.contains(expected), "{error} where {expected} is expected");
        }
    }

    #[test]
    fn references_have_48_bits() {
        let position = |block, offset| Some(MetadataPosition { block, offset });
        for (reference, expected) in [
            (0, position(100, 0)),
            (0x2_0003, position(102, 3)),
            (0xffff_ffff_ffff, position(100 + 0xffff_ffff, 0xffff)),
            (0x1_0000_0000_0000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(MetadataPosition::of_reference(100, reference), expected, "{reference:#x}");
        }
    }
}
