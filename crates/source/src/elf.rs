//! The end of ELF programs: AppImages append a file system to one.

use std::io;

use floe_image::ImageSource;

/// The maximum number of section headers that are read.
const SECTION_COUNT_MAX: u64 = 1024;

/// `SHT_NOBITS`: the section takes no space in the file.
const NOBITS: u64 = 8;

/// Reads header fields in the program's class and byte order.
struct Fields<'a> {
    bytes: &'a [u8],
    is_64_bit: bool,
    is_big_endian: bool,
}

/// The end in bytes of the ELF program at the start of a source, according to its section headers; `None` if there is
/// no program.
///
/// The end is that of the section header table or of the last section, whichever is later.
pub(crate) fn end(source: &dyn ImageSource) -> io::Result<Option<u64>> {
    let mut header = [0; 64];
    if source.len() < header.len() as u64 {
        return Ok(None);
    }
    source.read_at(0, &mut header)?;
    let (is_64_bit, is_big_endian) = match header {
        [0x7f, b'E', b'L', b'F', class @ 1..=2, order @ 1..=2, ..] => (class == 2, order == 2),
        _ => return Ok(None),
    };
    let fields = Fields { bytes: &header, is_64_bit, is_big_endian };
    let (table, entry_len, count) = if is_64_bit {
        (fields.number(40, 8), fields.number(58, 2), fields.number(60, 2))
    } else {
        (fields.number(32, 4), fields.number(46, 2), fields.number(48, 2))
    };
    let entry_len_min = if is_64_bit { 64 } else { 40 };
    let count = count.min(SECTION_COUNT_MAX);
    let Some(mut end) = entry_len.checked_mul(count).and_then(|len| table.checked_add(len)) else { return Ok(None) };
    if end > source.len() || entry_len < entry_len_min || count == 0 {
        return Ok(None);
    }
    let mut entry = [0; 64];
    let entry = &mut entry[..entry_len_min as usize];
    for index in 0..count {
        source.read_at(table + index * entry_len, entry)?;
        let fields = Fields { bytes: entry, is_64_bit, is_big_endian };
        let (offset, len) = if is_64_bit {
            (fields.number(24, 8), fields.number(32, 8))
        } else {
            (fields.number(16, 4), fields.number(20, 4))
        };
        if fields.number(4, 4) != NOBITS {
            end = end.max(offset.saturating_add(len));
        }
    }
    Ok(Some(end))
}

impl Fields<'_> {
    /// The number in the `len` bytes at `offset`, which lie within the header.
    fn number(&self, offset: usize, len: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&self.bytes[offset..offset + len]);
        if self.is_big_endian {
            bytes[..len].reverse();
        }
        debug_assert!(len < 8 || self.is_64_bit, "only 64-bit programs have such fields");
        u64::from_le_bytes(bytes)
    }
}
