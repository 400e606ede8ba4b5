//! LZMA streams: MicroLZMA, .lzma ("LZMA alone") and .xz.

use floe_image::{DecodeError, Padding};

use super::{
    lzma_sys::{LzmaStream, crc32},
    request::{Request, Scratch},
    stream,
};

/// The largest dictionary in bytes, whatever the image states. EROFS allows no larger one.
const DICTIONARY_BYTES_MAX: u32 = 8 * 1024 * 1024;

/// Decodes the requested part of a stream.
pub(crate) fn decode_micro(
    lzma: &mut LzmaStream,
    padding: Padding,
    dictionary_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if dictionary_bytes > DICTIONARY_BYTES_MAX {
        return Err(DecodeError::Unsupported("MicroLZMA dictionary above 8 MiB".into()));
    }
    if request.may_be_short() {
        // The stream does not mark its own end.
        return Err(DecodeError::Unsupported("MicroLZMA stream of unknown decoded length".into()));
    }
    let is_exact = request.ends_with_block() && padding != Padding::Trailing;
    lzma.start_micro(
        request.stored.len(),
        request.end(),
        is_exact,
        dictionary_of(dictionary_bytes, request.len_max()),
    )?;
    stream::answer(lzma, request, scratch)
}

/// The dictionary size for a block of `decoded_len` bytes in an image that states `dictionary_bytes`. Matches never
/// reach back beyond the beginning of the block, so a short block needs less. Blocks of similar length get the same
/// size, so that memory is reused.
pub(crate) fn dictionary_of(dictionary_bytes: u32, decoded_len: usize) -> u32 {
    let needed = decoded_len.checked_next_power_of_two().and_then(|needed| u32::try_from(needed).ok());
    dictionary_bytes.min(needed.unwrap_or(u32::MAX))
}

/// The largest block of SquashFS in bytes. Smaller dictionaries are used as the streams state them, so that blocks of different
/// length share memory.
const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// The position of the size of the dictionary in the header.
const DICTIONARY_AT: usize = 1;

/// The length of the header: properties, dictionary, decoded length.
const HEADER_LEN: usize = 13;

/// Decodes the requested part of a stream. A dictionary larger than the block is reduced: no match reaches back beyond the
/// beginning of the block.
pub(crate) fn decode_alone(
    lzma: &mut LzmaStream,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    let dictionary_bytes_max = dictionary_bytes_max(request.len_max());
    lzma.start_alone(dictionary_bytes_max)?;
    if let Some((header, rest)) = request.stored.split_first_chunk::<HEADER_LEN>()
        && let Some(stated) = header.get(DICTIONARY_AT..).and_then(|bytes| bytes.first_chunk())
        && u32::from_le_bytes(*stated) > dictionary_bytes_max
    {
        let mut header = *header;
        header[DICTIONARY_AT..][..stated.len()].copy_from_slice(&dictionary_bytes_max.to_le_bytes());
        lzma.take(&header)?;
        request.stored = rest;
    }
    stream::answer(lzma, request, scratch)
}

/// The largest dictionary in bytes for a block of at most `decoded_len` bytes.
pub(crate) fn dictionary_bytes_max(decoded_len: usize) -> u32 {
    let needed = decoded_len.checked_next_power_of_two().and_then(|needed| u32::try_from(needed).ok());
    needed.unwrap_or(u32::MAX).clamp(BLOCK_BYTES_MAX, DICTIONARY_BYTES_MAX)
}

/// The length of the header of a stream, which the header of its first block follows.
const STREAM_HEADER_LEN: usize = 12;
/// The largest length of the header of a block.
const BLOCK_HEADER_LEN_MAX: usize = 1024;
/// The length of the checksum at the end of both headers.
const CHECKSUM_LEN: usize = 4;
/// The number of the filter LZMA2.
const LZMA2: u64 = 0x21;
/// Flags of the header of a block: the length of the stored bytes follows, and that of the decoded bytes.
const LEN_FLAGS: [u8; 2] = [0x40, 0x80];
/// The size of the smallest dictionary that a header can state.
const DICTIONARY_BYTES_MIN: u32 = 4096;
/// The largest code for the size of a dictionary.
const CODE_MAX: u8 = 40;

/// Decodes the requested part of a stream, with a dictionary of at most `dictionary_bytes`, which no match of the block exceeds.
/// Encoders often state a larger one, because they do not know how short the block is.
pub(crate) fn decode_xz(
    lzma: &mut LzmaStream,
    dictionary_bytes: u32,
    request: &mut Request<'_>,
    scratch: &mut Scratch,
) -> Result<usize, DecodeError> {
    if dictionary_bytes > DICTIONARY_BYTES_MAX {
        return Err(DecodeError::Unsupported("xz dictionary above 8 MiB".into()));
    }
    lzma.start_xz(dictionary_bytes)?;
    if let Some((header, rest)) = with_dictionary(request.stored, dictionary_bytes) {
        lzma.take(&header)?;
        request.stored = rest;
    }
    stream::answer(lzma, request, scratch)
}

/// The headers of a stream with a smaller dictionary, and the bytes after them. `None` if its dictionary is small enough, or if
/// the headers are invalid, which liblzma will report.
fn with_dictionary(stored: &[u8], dictionary_bytes: u32) -> Option<(Vec<u8>, &[u8])> {
    let size_byte = *stored.get(STREAM_HEADER_LEN)?;
    let len = (usize::from(size_byte) + 1) * 4;
    debug_assert!(len <= BLOCK_HEADER_LEN_MAX);
    let (headers, rest) = stored.split_at_checked(STREAM_HEADER_LEN + len)?;
    let (fields, checksum) = headers.get(STREAM_HEADER_LEN..)?.split_last_chunk::<CHECKSUM_LEN>()?;
    // Without the checksum of the header, a changed one would hide that it was invalid.
    if size_byte == 0 || crc32(fields) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let code_at = dictionary_code_at(fields)?;
    let code = code_for(dictionary_bytes);
    if fields[code_at] <= code || fields[code_at] > CODE_MAX {
        return None;
    }
    let mut headers = headers.to_vec();
    headers[STREAM_HEADER_LEN + code_at] = code;
    let end = headers.len() - CHECKSUM_LEN;
    let checksum = crc32(&headers[STREAM_HEADER_LEN..end]);
    headers[end..].copy_from_slice(&checksum.to_le_bytes());
    Some((headers, rest))
}

/// The position of the code for the size of the dictionary among the fields of a block's header.
fn dictionary_code_at(fields: &[u8]) -> Option<usize> {
    let flags = *fields.get(1)?;
    let mut rest = fields.get(2..)?;
    for flag in LEN_FLAGS {
        if flags & flag != 0 {
            take_number(&mut rest)?;
        }
    }
    for _ in 0..=flags & 3 {
        let (filter, len) = (take_number(&mut rest)?, take_number(&mut rest)?);
        let len = usize::try_from(len).ok()?;
        if filter == LZMA2 {
            return (len == 1 && !rest.is_empty()).then_some(fields.len() - rest.len());
        }
        rest = rest.get(len..)?;
    }
    None
}

/// Takes a number, of which each byte has seven bits, the lowest ones first.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for index in 0..9 {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The code for the largest size of a dictionary of at most `bytes`, if there is one; else for the smallest size.
fn code_for(bytes: u32) -> u8 {
    let size = |code: u8| u64::from(2 | code & 1) << (code / 2 + 11);
    let bytes = u64::from(bytes.max(DICTIONARY_BYTES_MIN));
    (0..CODE_MAX).rev().find(|code| size(*code) <= bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_dictionaries_are_rounded_down() {
        for (bytes, expected) in
            [(0, 0), (4096, 0), (6143, 0), (6144, 1), (8192, 2), (1 << 17, 10), (1 << 20, 16), ((1 << 23) + 5, 22)]
        {
            assert_eq!(code_for(bytes), expected, "{bytes}");
        }
    }
}
