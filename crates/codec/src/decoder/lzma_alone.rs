//! .lzma ("LZMA alone") streams.

use floe_image::DecodeError;

use super::{lzma_sys::LzmaStream, request::Request, scratch::Scratch, stream};

/// The largest block of SquashFS in bytes. Smaller dictionaries are used as the streams state them, so that blocks of different
/// length share memory.
const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// The largest dictionary in bytes that is used for a longer block.
const DICTIONARY_BYTES_MAX: u32 = 8 << 20;

/// The position of the size of the dictionary in the header.
const DICTIONARY_AT: usize = 1;

/// The length of the header: properties, dictionary, decoded length.
const HEADER_LEN: usize = 13;

/// Decodes the requested part of a stream. A dictionary larger than the block is reduced: no match reaches back beyond the
/// beginning of the block.
pub(crate) fn decode(
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
