//! Finds a file system inside a file that has other content too: behind an ELF program (AppImage), in a SIF container
//! (Singularity, Apptainer, version 01).

use std::io;

use floe_image::ImageSource;

use crate::magic::{self, HEAD_LEN, ImageFormat};

/// A search examines each multiple of this offset, in bytes.
pub const SCAN_ALIGNMENT: u64 = 512;
/// A search ends at this offset, in bytes.
pub const SCAN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The number of bytes that one step of a search reads; a multiple of [`SCAN_ALIGNMENT`].
const SCAN_STEP_LEN: usize = 1024 * 1024;

/// The location of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// Its format.
    pub format: ImageFormat,
    /// Its offset in bytes.
    pub offset: u64,
}

/// Finds the file system in a source: at its beginning; in a SIF container, by its descriptors; in an ELF program such
/// as an AppImage, after the program; otherwise the first one at a multiple of [`SCAN_ALIGNMENT`] within
/// [`SCAN_BYTES_MAX`].
///
/// At the beginning the magic number suffices. Elsewhere it may occur by chance, so the superblock must be valid too.
///
/// # Errors
/// The source cannot be read.
pub fn locate(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    if let Some(format) = ImageFormat::of(source)? {
        return Ok(Some(Location { format, offset: 0 }));
    }
    for offset in partitions(source)?.into_iter().chain(end(source)?) {
        if let Some(format) = valid_superblock_at(source, offset)? {
            return Ok(Some(Location { format, offset }));
        }
    }
    scan(source)
}

fn valid_superblock_at(source: &dyn ImageSource, offset: u64) -> io::Result<Option<ImageFormat>> {
    if offset >= source.len() {
        return Ok(None);
    }
    let head = magic::read_head(source, offset)?;
    Ok(ImageFormat::of_valid_superblock(&head, source.len() - offset))
}

fn scan(source: &dyn ImageSource) -> io::Result<Option<Location>> {
    let end = source.len().min(SCAN_BYTES_MAX);
    // Steps overlap by the length of a superblock, so that one at the end of a step is complete.
    let mut bytes = vec![0; SCAN_STEP_LEN + HEAD_LEN];
    let mut offset = 0;
    while offset < end {
        let rest = source.len() - offset;
        let len = bytes.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        source.read_at(offset, &mut bytes[..len])?;
        let steps = (offset..end).step_by(SCAN_ALIGNMENT as usize).take(SCAN_STEP_LEN / SCAN_ALIGNMENT as usize);
        for at in steps {
            let head = bytes[..len].get((at - offset) as usize..).unwrap_or_default();
            if let Some(format) = ImageFormat::of_valid_superblock(head, source.len() - at) {
                return Ok(Some(Location { format, offset: at }));
            }
        }
        offset += SCAN_STEP_LEN as u64;
    }
    Ok(None)
}

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
fn end(source: &dyn ImageSource) -> io::Result<Option<u64>> {
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

/// Offset of the magic number and the version, which follow the line that launches the container.
const MAGIC_OFFSET: usize = 32;
const MAGIC: &[u8; 13] = b"SIF_MAGIC\x0001\0";
const HEADER_LEN: usize = 128;

/// Length of a descriptor in bytes, and the limit of the descriptors that are read.
const DESCRIPTOR_LEN: usize = 585;
const DESCRIPTOR_COUNT_MAX: u64 = 256;

/// Object type of a partition, and partition type of the system to run.
const PARTITION: u32 = 0x4004;
const PRIMARY_SYSTEM: u32 = 2;

/// The offsets of the container's partitions in bytes, the primary system first; empty if the source is not a
/// container.
fn partitions(source: &dyn ImageSource) -> io::Result<Vec<u64>> {
    let mut header = [0; HEADER_LEN];
    if source.len() < header.len() as u64 {
        return Ok(Vec::new());
    }
    source.read_at(0, &mut header)?;
    if !header[MAGIC_OFFSET..].starts_with(MAGIC) {
        return Ok(Vec::new());
    }
    let (count, table) = (u64_at(&header, 88), u64_at(&header, 96));
    let (mut primary, mut others) = (Vec::new(), Vec::new());
    for index in 0..count.min(DESCRIPTOR_COUNT_MAX) {
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let place = table.checked_add(index * DESCRIPTOR_LEN as u64);
        let Some(place) = place.filter(|place| place.saturating_add(DESCRIPTOR_LEN as u64) <= source.len()) else {
            break;
        };
        source.read_at(place, &mut descriptor)?;
        let (kind, is_used, partition_type) = (u32_at(&descriptor, 0), descriptor[4] != 0, u32_at(&descriptor, 205));
        if is_used && kind == PARTITION {
            let list = if partition_type == PRIMARY_SYSTEM { &mut primary } else { &mut others };
            list.push(u64_at(&descriptor, 17));
        }
    }
    primary.append(&mut others);
    Ok(primary)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(field)
}
