//! Tar headers: the 512 bytes before each member.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

/// The size of a header and the alignment of data, in bytes.
pub(super) const BLOCK_SIZE: u64 = 512;
/// [`BLOCK_SIZE`] as a buffer length.
pub(super) const BLOCK_LEN: usize = 512;
/// The magic of ustar, and the field after it.
const MAGIC: std::ops::Range<usize> = 257..263;
const USTAR: &[u8] = b"ustar\0";
const VERSION: std::ops::Range<usize> = 263..265;
/// The checksum field of a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// Whether the checksum of a header is right. Some old programs computed it over signed bytes.
pub(super) fn is_whole(block: &[u8; BLOCK_LEN]) -> bool {
    let Some(expected) = number(&block[CHECKSUM]) else { return false };
    let counted = || block.iter().enumerate().map(|(at, byte)| if CHECKSUM.contains(&at) { b' ' } else { *byte });
    let unsigned: i64 = counted().map(i64::from).sum();
    let signed: i64 = counted().map(|byte| i64::from(byte.cast_signed())).sum();
    expected == unsigned || expected == signed
}

/// Sets the version of a ustar header, which some programs leave empty, to the only one there is.
pub(super) fn complete_version(block: &mut [u8; BLOCK_LEN]) {
    if block[MAGIC] == *USTAR {
        block[VERSION].copy_from_slice(b"00");
    }
}

/// Parses a numeric field: octal digits, or a big-endian number in two's complement if the first bit is set. A blank
/// field is 0; `None` if the field is invalid.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // The second bit is the sign bit.
            let sign = if first & 0x40 != 0 { -1 } else { 0 };
            let first = if sign < 0 { i64::from(first.cast_signed()) } else { i64::from(first & 0x3f) };
            let mut value = first;
            for byte in rest {
                value = value.checked_mul(256)? | i64::from(*byte);
            }
            Some(value)
        }
        _ => {
            let text = field.trim_ascii_start();
            let end = text.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(text.len());
            text[..end].iter().try_fold(0i64, |value, digit| match digit {
                b'0'..=b'7' => Some(value.checked_mul(8)? + i64::from(digit - b'0')),
                _ => None,
            })
        }
    }
}

/// The fields with the major and the minor device number, if the header has any.
pub(super) fn device_fields(header: &Header) -> Option<(&[u8], &[u8])> {
    if let Some(ustar) = header.as_ustar() {
        return Some((&ustar.dev_major, &ustar.dev_minor));
    }
    let gnu = header.as_gnu()?;
    Some((&gnu.dev_major, &gnu.dev_minor))
}

/// The offsets and lengths in a sparse header up to the first empty entry, and whether more may follow.
pub(super) fn sparse_runs(headers: &[GnuSparseHeader]) -> Option<(Vec<(u64, u64)>, bool)> {
    let mut runs = Vec::new();
    for header in headers {
        if header.offset[0] == 0 || header.numbytes[0] == 0 {
            return Some((runs, false));
        }
        runs.push((number(&header.offset)?.try_into().ok()?, number(&header.numbytes)?.try_into().ok()?));
    }
    Some((runs, true))
}

/// Parses a continuation block of a sparse map.
pub(super) fn sparse_block(block: &[u8; BLOCK_LEN]) -> GnuExtSparseHeader {
    let mut header = GnuExtSparseHeader::new();
    header.as_mut_bytes().copy_from_slice(block);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"  644 \0\0", Some(0o644)),
            (b"77777777777\0", Some(0o77777777777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"0000648\0", None),
            (b"-000644\0", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\x00", Some(256)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
            (b"\x80\0\0\0\xff\xff\xff\xff", Some(0xffff_ffff)),
            (b"\x80\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }
}
