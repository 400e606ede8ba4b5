//! Invalid and random input.

use floe_codec::Decoder;
use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};
use proptest::{prelude::*, sample::Index};

use crate::sample;

/// Decodes in several ways and compares the results; then checks that the decoder still works.
fn check(decoder: &mut Decoder, encoding: Encoding, stored: &[u8], decoded_len: DecodedLen, at: [Index; 2]) {
    let len = decoded_len.bytes() as usize;
    let mut whole = vec![0; len];
    let whole_len = decoder.decode(&encoding, decoded_len, stored, 0, &mut whole);
    if let Ok(whole_len) = whole_len {
        assert!(whole_len == len || (whole_len < len && matches!(decoded_len, DecodedLen::AtMost(_))));
    }
    let skip = at[0].index(len + 1);
    let mut part = vec![0; at[1].index(len - skip + 1)];
    let part_len = decoder.decode(&encoding, decoded_len, stored, skip, &mut part);
    if let Encoding::Lz4 { .. } = encoding {
        let strict_len = Decoder::strict().decode(&encoding, decoded_len, stored, 0, &mut vec![0; len]);
        assert!(strict_len.is_err() || (strict_len == whole_len && part_len.is_ok()), "{strict_len:?} {part_len:?}");
        assert!(strict_len.is_ok() || whole_len.is_err() || has_zero_distance(unpadded(encoding, stored)));
    }
    if let Ok(part_len) = part_len {
        assert!(part_len <= part.len());
        let is_ambiguous = matches!(encoding, Encoding::Lz4 { .. }) && has_zero_distance(unpadded(encoding, stored));
        if let Ok(whole_len) = whole_len
            && !is_ambiguous
        {
            assert_eq!(part_len, part.len().min(whole_len.saturating_sub(skip)), "{encoding:?}");
            assert!(part[..part_len] == whole[skip..][..part_len], "{encoding:?}");
        }
    }
}

/// The stored bytes of an LZ4 block without the zeros before it.
fn unpadded(encoding: Encoding, stored: &[u8]) -> &[u8] {
    let is_padded = matches!(encoding, Encoding::Lz4 { padding: Padding::Leading, .. });
    let zeros = stored.iter().take_while(|byte| is_padded && **byte == 0).count();
    &stored[zeros..]
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

fn encodings() -> impl Strategy<Value = Encoding> {
    let padding = prop_oneof![Just(Padding::None), Just(Padding::Leading), Just(Padding::Trailing)];
    (padding, 0..9_usize, any::<u32>()).prop_map(|(padding, which, limit)| match which {
        0 => Encoding::Stored,
        1 => Encoding::Lz4 { padding, window_bytes: limit % 70_000 },
        2 => Encoding::MicroLzma { padding, dictionary_bytes: limit % 100_000 },
        3 => Encoding::Deflate { padding, window_log2: (limit % 17) as u8 },
        4 => Encoding::Zstd { padding, window_log2_max: (limit % 32) as u8 },
        5 => Encoding::Zlib,
        6 => Encoding::LzmaAlone,
        7 => Encoding::Lzo,
        _ => Encoding::Xz { dictionary_bytes: limit % 3_000_000 },
    })
}

fn decoded_lens() -> impl Strategy<Value = DecodedLen> {
    prop_oneof![
        (0..100_000_u32).prop_map(DecodedLen::Exact),
        (0..100_000_u32).prop_map(DecodedLen::AtLeast),
        (0..100_000_u32).prop_map(DecodedLen::AtMost),
    ]
}

#[test]
fn earlier_contents_of_memory_do_not_leak() {
    // A literal, followed by a long match at distance zero.
    let stored = [&[0x1f, b'x', 0, 0][..], &[255; 40], &[0, 0x50], b"tails"].concat();
    let encoding = Encoding::Lz4 { padding: Padding::None, window_bytes: 65_536 };
    for (decoded_len, len) in [(DecodedLen::AtLeast(10_000), 10_000), (DecodedLen::AtLeast(13), 13)] {
        let outputs = [0x11, 0x22].map(|before| {
            let mut output = vec![before; len];
            let decoded = Decoder::new().decode(&encoding, decoded_len, &stored, 0, &mut output);
            (decoded, output)
        });
        assert_eq!(outputs[0], outputs[1]);
        assert_eq!(outputs[0].0, Ok(len));
    }
}

#[test]
fn a_whole_decode_refuses_blocks_that_partial_decodes_refuse() {
    // A literal, a match at `distance` that is longer than the window, and the last literals.
    let block =
        |distance: u16| [&[0x1f, b'x'][..], &distance.to_le_bytes(), &[255; 400], &[0, 0x50], b"tails"].concat();
    let encoding = Encoding::Lz4 { padding: Padding::None, window_bytes: 65_536 };
    let len = 1 + 4 + 15 + 400 * 255 + 5;
    let decoded_len = DecodedLen::Exact(len);
    let zero = DecodeError::Corrupt("LZ4 match distance of zero");
    for (distance, part, strict) in [(1, Ok(5), Ok(len as usize)), (0, Err(zero.clone()), Err(zero))] {
        let stored = block(distance);
        let mut whole = vec![0; len as usize];
        assert_eq!(Decoder::new().decode(&encoding, decoded_len, &stored, 0, &mut whole), Ok(len as usize));
        let skip = len as usize - 5;
        assert_eq!(Decoder::new().decode(&encoding, decoded_len, &stored, skip, &mut [0; 5]), part);
        assert_eq!(Decoder::strict().decode(&encoding, decoded_len, &stored, 0, &mut whole), strict);
        let mut buffer = vec![0; len as usize + 1000];
        let start = buffer.len() - stored.len();
        buffer[start..].copy_from_slice(&stored);
        let in_place = Decoder::strict().decode_in_place(&encoding, len as usize, stored.len(), &mut buffer);
        assert_eq!(in_place, strict.map(|_| true));
    }
}

proptest! {
    #[test]
    fn random_bytes_give_errors_or_data(
        encoding in encodings(), decoded_len in decoded_lens(),
        stored in prop::collection::vec(any::<u8>(), 0..2000), at in any::<[Index; 2]>(),
    ) {
        check(&mut Decoder::new(), encoding, &stored, decoded_len, at);
    }

    #[test]
    fn mutated_blocks_give_errors_or_data(
        len in 1..80_000_usize, which in any::<Index>(), bound in 0..3_u8, off_by in -3..4_i64,
        edits in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        cut in prop_oneof![3 => Just(None), 1 => any::<Index>().prop_map(Some)], at in any::<[Index; 2]>(),
    ) {
        let data = sample::text(len);
        let (encoding, encode) = *which.get(&sample::ENCODERS);
        let sound = encode(&data);
        let mut stored = sound.clone();
        for (index, byte) in edits {
            let index = index.index(stored.len());
            stored[index] = byte;
        }
        if let Some(cut) = cut {
            stored.truncate(cut.index(stored.len()));
        }
        let len = u32::try_from(len as i64 + off_by).unwrap_or(0);
        let decoded_len = [DecodedLen::Exact, DecodedLen::AtLeast, DecodedLen::AtMost][usize::from(bound)](len);
        let mut decoder = Decoder::new();
        check(&mut decoder, encoding, &stored, decoded_len, at);
        let mut output = vec![0; data.len()];
        let again = decoder.decode(&encoding, DecodedLen::Exact(data.len() as u32), &sound, 0, &mut output);
        prop_assert_eq!(again, Ok(data.len()), "{:?} after a broken block", encoding);
        prop_assert!(output == data);
    }
}
