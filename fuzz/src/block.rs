//! A block to decode and the requested part of it, made from fuzzer input.

use floe_codec::Decoder;
use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};

/// The largest stated length of a block, in bytes.
const DECODED_LEN_MAX: u32 = 1 << 20;
/// The length of the choices: padding and bound, limit, decoded length, skip and request.
const HEADER_LEN: usize = 14;

/// A block to decode; in the input, the choices precede the stored bytes.
pub struct Block<'a> {
    stored: &'a [u8],
    /// An arbitrary number for the limit of an encoding.
    pub limit: u32,
    /// The padding.
    pub padding: Padding,
    decoded_len: DecodedLen,
    skip: usize,
    output_len: usize,
}

impl<'a> Block<'a> {
    /// Parses fuzzer input; `None` if it is too short.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, stored) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], 0]);
        let len = number(5) % (DECODED_LEN_MAX + 1);
        let skip = number(8) % (len + 1);
        let output_len = number(11) % (len - skip + 1);
        Some(Self {
            stored,
            limit: u32::from_le_bytes([header[1], header[2], header[3], header[4]]),
            padding: [Padding::None, Padding::Leading, Padding::Trailing][usize::from(header[0] >> 4) % 3],
            decoded_len: [DecodedLen::Exact, DecodedLen::AtLeast, DecodedLen::AtMost][usize::from(header[0] & 15) % 3](
                len,
            ),
            skip: skip as usize,
            output_len: output_len as usize,
        })
    }

    /// Decodes the whole block, a part and the rest, and compares the results; then decodes `sound`, which must still
    /// decode to `data`.
    ///
    /// # Panics
    /// The results differ.
    pub fn check(&self, encoding: Encoding, sound: &[u8], data: &[u8]) {
        let mut decoder = Decoder::new();
        let len = self.decoded_len.bytes() as usize;
        let (whole_len, whole) = self.decode(&mut decoder, encoding, 0, len);
        for (skip, output_len) in [(self.skip, self.output_len), (self.skip, len - self.skip)] {
            let (part_len, part) = self.decode(&mut decoder, encoding, skip, output_len);
            match (&whole_len, part_len) {
                (Ok(_), Ok(_)) if self.is_ambiguous(encoding) => {}
                (Ok(whole_len), Ok(part_len)) => {
                    assert_eq!(part_len, output_len.min(whole_len.saturating_sub(skip)));
                    assert_eq!(part[..part_len], whole[skip..][..part_len]);
                }
                // The windowed decoder rejects two faults that liblz4 accepts.
                (Ok(_), Err(DecodeError::Corrupt(rule))) if matches!(encoding, Encoding::Lz4 { .. }) => {
                    assert!(rule.contains("distance of zero") || rule.contains("farther back"), "{rule}");
                }
                // The two libraries differ in strictness for code lengths that no encoder writes.
                (Ok(_), Err(DecodeError::Corrupt(_)))
                    if matches!(encoding, Encoding::Deflate { .. } | Encoding::Zlib) => {}
                (Ok(_), Err(error)) => panic!("a part of what decodes does not: {error:?}"),
                (Err(_), _) => {}
            }
        }
        let mut output = vec![0; data.len()];
        let again = decoder.decode(&encoding, DecodedLen::Exact(data.len() as u32), sound, 0, &mut output);
        if !matches!(again, Err(DecodeError::Unsupported(_))) {
            assert_eq!(again, Ok(data.len()));
            assert_eq!(output, data);
        }
    }

    /// Decodes the block in place, and compares the result with a normal decode.
    ///
    /// # Panics
    /// The results differ.
    pub fn check_in_place(&self, encoding: Encoding) {
        let mut decoder = Decoder::new();
        let len = self.decoded_len.bytes() as usize;
        let Some(margin) = decoder.in_place_margin(&encoding, self.stored.len()) else { return };
        let mut buffer = vec![0; (len + margin).max(self.stored.len())];
        let start = buffer.len() - self.stored.len();
        buffer[start..].copy_from_slice(self.stored);
        let decoded = decoder.decode_in_place(&encoding, len, self.stored.len(), &mut buffer);
        let (whole_len, whole) = self.decode(&mut decoder, encoding, 0, len);
        if matches!(self.decoded_len, DecodedLen::Exact(1..)) && whole_len.is_ok() && !self.is_ambiguous(encoding) {
            assert_eq!(decoded, Ok(true));
            assert_eq!(buffer[..len], whole);
        }
    }

    fn decode(
        &self,
        decoder: &mut Decoder,
        encoding: Encoding,
        skip: usize,
        output_len: usize,
    ) -> (Result<usize, DecodeError>, Vec<u8>) {
        let mut output = vec![0xa5; output_len];
        let decoded = decoder.decode(&encoding, self.decoded_len, self.stored, skip, &mut output);
        if let Ok(len) = decoded {
            assert!(len == output_len || (len < output_len && matches!(self.decoded_len, DecodedLen::AtMost(_))));
        }
        (decoded, output)
    }

    /// Whether the decoded bytes depend on the requested part.
    fn is_ambiguous(&self, encoding: Encoding) -> bool {
        let Encoding::Lz4 { padding, .. } = encoding else { return false };
        let zeros = self.stored.iter().take_while(|byte| padding == Padding::Leading && **byte == 0).count();
        has_zero_distance(&self.stored[zeros..])
    }
}

/// Whether an LZ4 block has a match distance of zero. No encoder writes one, and liblz4's result for it depends on the
/// requested part.
fn has_zero_distance(stored: &[u8]) -> bool {
    let mut rest = stored.iter().copied();
    while let Some(token) = rest.next() {
        for (nibble, is_literals) in [(token >> 4, true), (token & 15, false)] {
            if !is_literals {
                match (rest.next(), rest.next()) {
                    (Some(0), Some(0)) => return true,
                    (Some(_), Some(_)) => {}
                    _ => return false,
                }
            }
            let mut len = usize::from(nibble);
            if nibble == 15 {
                for byte in rest.by_ref() {
                    len += usize::from(byte);
                    if byte != u8::MAX {
                        break;
                    }
                }
            }
            if is_literals && len > 0 {
                rest.nth(len - 1);
            }
        }
    }
    false
}
