//! Decodes part of an LZ4 block without keeping all bytes before the part.
//!
//! liblz4 decodes only into one buffer that holds the block from its beginning, so reading the end of a large block
//! takes memory for all of it. A match reaches back no farther than the window, however. This decoder therefore keeps
//! only a window of the skipped bytes, in a ring. For blocks that liblz4 accepts, it yields the same bytes (tests
//! compare the two), with two exceptions that it rejects: a match distance of zero, which liblz4 decodes to zeros, and
//! a distance above the window, which liblz4 does not check.

use floe_image::DecodeError;

use super::{
    lz4_ring::Decoded,
    request::{ENDS_EARLY, HOLDS_MORE},
};

const BEFORE_BEGINNING: DecodeError = DecodeError::Corrupt("LZ4 match before the beginning of its block");
pub(crate) const PAST_WINDOW: DecodeError = DecodeError::Corrupt("LZ4 match farther back than the window");
const END_RULE: DecodeError = DecodeError::Corrupt("LZ4 block that does not end in literals");

/// The least number of literals at the end of a block, in bytes.
const LAST_LITERALS: usize = 5;
/// The least distance between the start of the last match and the end of the block, in bytes.
const LAST_MATCH_DISTANCE: usize = 12;

/// A request for the bytes of a block from some position on.
pub(crate) struct Part<'a> {
    /// The number of decoded bytes that precede the part.
    pub(crate) skip: usize,
    /// Receives the bytes of the part.
    pub(crate) output: &'a mut [u8],
    /// The largest permitted match distance, in bytes.
    pub(crate) window_bytes: usize,
    /// Whether the block must end where `output` ends, or before.
    pub(crate) ends_with_block: bool,
}

impl Part<'_> {
    /// The memory that [`Part::decode`] needs, in bytes.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.skip.min(self.window_bytes.max(1))
    }

    /// Decodes the part with the help of `ring`, which has [`Part::ring_bytes`] bytes. Returns the number of bytes
    /// written to `output`.
    ///
    /// # Errors
    /// The block is malformed, or is longer than it must be.
    pub(crate) fn decode(self, stored: &[u8], ring: &mut [u8]) -> Result<usize, DecodeError> {
        debug_assert_eq!(ring.len(), self.ring_bytes());
        let end = self.skip + self.output.len();
        let mut decoded = Decoded::new(ring, self.skip, self.output);
        let mut input = Sequences::new(stored);
        loop {
            let token = usize::from(input.byte().ok_or(ENDS_EARLY)?);
            let literals_len = input.len(token >> 4)?;
            let literals_end = decoded.len().saturating_add(literals_len);
            if self.ends_with_block {
                let is_last =
                    literals_end.saturating_add(LAST_MATCH_DISTANCE) > end || literals_len >= input.rest().len();
                if is_last {
                    if literals_end > end {
                        return Err(HOLDS_MORE);
                    }
                    if literals_len != input.rest().len() {
                        return Err(if literals_len > input.rest().len() { CUT } else { END_RULE });
                    }
                    decoded.put(input.rest());
                    return Ok(decoded.len().saturating_sub(self.skip));
                }
            } else if literals_end >= end {
                let len = end - decoded.len();
                decoded.put(input.rest().get(..len).ok_or(CUT)?);
                return Ok(end - self.skip);
            }
            let ahead = input.rest();
            input.take(literals_len).ok_or(CUT)?;
            decoded.put_ahead(literals_len, ahead);

            let Some(distance) = input.distance() else {
                // A block of unknown length may end here; the caller judges whether it did.
                return if input.rest().is_empty() { Ok(decoded.len().saturating_sub(self.skip)) } else { Err(CUT) };
            };
            match distance {
                0 => return Err(DISTANCE_ZERO),
                _ if distance > decoded.len() => return Err(BEFORE_BEGINNING),
                _ if distance > self.window_bytes => return Err(PAST_WINDOW),
                _ => {}
            }
            let match_len = input.len(token & NIBBLE_MAX)?.saturating_add(MATCH_LEN_MIN);
            let match_end = decoded.len().saturating_add(match_len);
            if self.ends_with_block {
                if match_end.saturating_add(LAST_LITERALS) > end {
                    return Err(END_RULE);
                }
            } else if match_end >= end {
                decoded.repeat(distance, end - decoded.len());
                return Ok(end - self.skip);
            }
            decoded.repeat(distance, match_len);
        }
    }
}

pub(crate) const CUT: DecodeError = DecodeError::Corrupt("LZ4 sequence past the end of its block");
pub(crate) const DISTANCE_ZERO: DecodeError = DecodeError::Corrupt("LZ4 match distance of zero");

/// The shortest match, in bytes.
pub(crate) const MATCH_LEN_MIN: usize = 4;
/// A nibble with this value is continued in further bytes.
pub(crate) const NIBBLE_MAX: usize = 15;

/// The stored bytes of a block that are not consumed yet.
pub(crate) struct Sequences<'a> {
    rest: &'a [u8],
}

impl<'a> Sequences<'a> {
    pub(crate) fn new(stored: &'a [u8]) -> Self {
        Self { rest: stored }
    }

    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    pub(crate) fn distance(&mut self) -> Option<usize> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(usize::from(u16::from_le_bytes(*bytes)))
    }

    /// Reads a length that begins with a nibble of the token.
    #[inline]
    pub(crate) fn len(&mut self, nibble: usize) -> Result<usize, DecodeError> {
        let mut len = nibble;
        if nibble == NIBBLE_MAX {
            loop {
                let byte = self.byte().ok_or(CUT)?;
                len = len.saturating_add(usize::from(byte));
                if byte != u8::MAX {
                    break;
                }
            }
        }
        Ok(len)
    }
}

/// Refuses the fault that liblz4 accepts but the windowed decoder does not: a match distance of zero, in the sequences of
/// the first `end` decoded bytes.
///
/// # Errors
/// A match has a distance of zero, or a length is cut off.
pub(crate) fn refuse_zero_distances(stored: &[u8], end: usize) -> Result<(), DecodeError> {
    let mut sequences = Sequences::new(stored);
    let mut decoded_len = 0_usize;
    while let Some(token) = sequences.byte().map(usize::from) {
        let literals_len = sequences.len(token >> 4)?;
        decoded_len = decoded_len.saturating_add(literals_len);
        if decoded_len >= end || sequences.take(literals_len).is_none() {
            break;
        }
        match sequences.distance() {
            Some(0) => return Err(DISTANCE_ZERO),
            Some(_) => {}
            None => break,
        }
        let match_len = sequences.len(token & NIBBLE_MAX)?.saturating_add(MATCH_LEN_MIN);
        decoded_len = decoded_len.saturating_add(match_len);
        if decoded_len >= end {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decoder::lz4_sys;

    const WINDOWS: [usize; 6] = [1, 100, 1024, 4096, 16_384, 65_536];

    /// Builds a block and its data from literals, each followed by a match.
    fn block(sequences: &[(Vec<u8>, usize, usize)], window_bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let (mut stored, mut data) = (Vec::new(), Vec::new());
        let mut push = |literals: &[u8], matched: Option<(usize, usize)>| {
            let nibbles = [literals.len(), matched.map_or(0, |(_, len)| len - MATCH_LEN_MIN)];
            let [high, low] = nibbles.map(|len| len.min(NIBBLE_MAX) as u8);
            stored.push(high << 4 | low);
            let push_rest = |stored: &mut Vec<u8>, len: usize| {
                if let Some(mut rest) = len.checked_sub(NIBBLE_MAX) {
                    while rest >= 255 {
                        stored.push(255);
                        rest -= 255;
                    }
                    stored.push(rest as u8);
                }
            };
            push_rest(&mut stored, nibbles[0]);
            stored.extend_from_slice(literals);
            data.extend_from_slice(literals);
            if let Some((distance, len)) = matched {
                let distance = 1 + distance % data.len().min(window_bytes).min(65_535);
                stored.extend_from_slice(&(distance as u16).to_le_bytes());
                push_rest(&mut stored, nibbles[1]);
                for _ in 0..len {
                    data.push(data[data.len() - distance]);
                }
            }
        };
        push(b"x", None.or(Some((0, MATCH_LEN_MIN))));
        for (literals, distance, len) in sequences {
            push(literals, Some((*distance, MATCH_LEN_MIN + len)));
        }
        push(b"the last twelve", None);
        (stored, data)
    }

    fn sequences() -> impl Strategy<Value = Vec<(Vec<u8>, usize, usize)>> {
        let literals = prop_oneof![4 => prop::collection::vec(any::<u8>(), 0..20), 1 => prop::collection::vec(any::<u8>(), 0..700)];
        let distance =
            prop_oneof![2 => 0_usize..40, 3 => 0_usize..70_000, 1 => 65_000_usize..65_536, 1 => 16_300_usize..16_400];
        let match_len = prop_oneof![4 => 0_usize..40, 1 => 0_usize..3000];
        prop::collection::vec((literals, distance, match_len), 0..400)
    }

    fn decode(
        stored: &[u8],
        window_bytes: usize,
        skip: usize,
        output: &mut [u8],
        ends: bool,
    ) -> Result<usize, DecodeError> {
        let part = Part { skip, output, window_bytes, ends_with_block: ends };
        // Bytes left by an earlier decode must not matter.
        let mut ring = vec![0xee; part.ring_bytes()];
        part.decode(stored, &mut ring)
    }

    proptest! {
        #[test]
        fn decoded_parts_equal_those_of_the_data(sequences in sequences(), window in 0..WINDOWS.len(), at in any::<[prop::sample::Index; 2]>()) {
            let window_bytes = WINDOWS[window];
            let (stored, data) = block(&sequences, window_bytes);
            let mut whole = vec![0; data.len()];
            prop_assert_eq!(lz4_sys::decode_whole(&stored, &mut whole), Ok(data.len()));
            prop_assert!(whole == data);

            let skip = at[0].index(data.len());
            let mut rest = vec![0; data.len() - skip];
            prop_assert_eq!(decode(&stored, window_bytes, skip, &mut rest, true), Ok(rest.len()));
            prop_assert!(rest == data[skip..]);
            let len = at[1].index(rest.len() + 1);
            let mut part = vec![0; len];
            prop_assert_eq!(decode(&stored, window_bytes, skip, &mut part, false), Ok(len));
            prop_assert!(part == data[skip..skip + len]);
            let mut longer = vec![0; rest.len() + 100];
            prop_assert_eq!(decode(&stored, window_bytes, skip, &mut longer, true), Ok(rest.len()));
            prop_assert!(longer[..rest.len()] == data[skip..]);
        }

        #[test]
        fn blocks_that_liblz4_accepts_are_accepted(sequences in sequences(), window in 0..WINDOWS.len(), at in any::<prop::sample::Index>(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut in 0_usize..8) {
            let window_bytes = WINDOWS[window];
            let (mut stored, data) = block(&sequences, window_bytes);
            for (index, byte) in edits {
                let index = index.index(stored.len());
                stored[index] = byte;
            }
            stored.truncate(stored.len() - cut.saturating_sub(4));
            let skip = at.index(data.len());
            for ends in [true, false] {
                let mut theirs = vec![0; data.len()];
                let their_len = if ends {
                    lz4_sys::decode_whole(&stored, &mut theirs)
                } else {
                    lz4_sys::decode_prefix(&stored, &mut theirs)
                };
                let mut ours = vec![0; data.len() - skip];
                let our_len = decode(&stored, window_bytes, skip, &mut ours, ends);
                match (their_len, our_len) {
                    (Ok(their_len), Ok(our_len)) => {
                        prop_assert_eq!(their_len.saturating_sub(skip), our_len);
                        prop_assert!(ours[..our_len] == theirs[their_len - our_len..their_len]);
                    }
                    (Ok(their_len), Err(error)) => prop_assert!(
                        [DISTANCE_ZERO, PAST_WINDOW].contains(&error) || (!ends && their_len < data.len()),
                        "{error:?} {their_len}"
                    ),
                    (Err(_), _) => {}
                }
            }
        }
    }

    #[test]
    fn broken_blocks_are_refused_with_their_rule() {
        let sequence =
            |distance: u16| [&[0x1f_u8, b'x'][..], &distance.to_le_bytes(), &[10], &[0x50], b"tails"].concat();
        for (stored, expected) in [
            (sequence(1), Ok(31)),
            (sequence(0), Err(DISTANCE_ZERO)),
            (sequence(2), Err(BEFORE_BEGINNING)),
            (vec![0x1f, b'x', 1, 0], Err(CUT)),
            (vec![0x1f, b'x', 1], Err(CUT)),
            (vec![0x1f, b'x', 1, 0, 255, 255], Err(CUT)),
            (vec![0x1f, b'x', 1, 0, 3], Err(ENDS_EARLY)),
            (vec![0xf0, 255], Err(CUT)),
            (vec![0x50, 1, 2], Err(CUT)),
            (vec![], Err(ENDS_EARLY)),
        ] {
            let mut output = [0; 50];
            assert_eq!(decode(&stored, 65_536, 4, &mut output, true), expected, "{stored:x?}");
        }
        let mut long = vec![0xf0, 60];
        long.resize(2 + 75, 1);
        long.extend_from_slice(&[70, 0, 0x80, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(decode(&long, 70, 4, &mut [0; 83], true), Ok(83));
        assert_eq!(decode(&long, 69, 4, &mut [0; 83], true), Err(PAST_WINDOW));
        assert_eq!(decode(&long, 70, 4, &mut [0; 82], true), Err(END_RULE));
    }
}
