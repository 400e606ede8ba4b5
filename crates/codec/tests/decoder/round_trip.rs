//! Encoded data decodes again: whole, in part, over itself, and only with its length.

use floe_codec::Decoder;
use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};

use crate::{encoder_sys, sample};

const LENS: [usize; 8] = [1, 2, 100, 4096, 8191, 65_536, 131_072, 300_001];

#[test]
fn whole_blocks_decode_to_the_input() {
    let mut decoder = Decoder::new();
    for len in LENS {
        let data = sample::text(len);
        for (encoding, stored) in sample::stored_forms(&data) {
            let exact = DecodedLen::Exact(len as u32);
            let mut output = vec![0xaa; len];
            assert_eq!(decoder.decode(&encoding, exact, &stored, 0, &mut output), Ok(len), "{encoding:?} {len}");
            assert!(output == data, "{encoding:?} {len}");
        }
    }
}

#[test]
fn parts_of_blocks_equal_those_of_the_whole() {
    let mut decoder = Decoder::new();
    for len in LENS {
        let data = sample::text(len);
        for (encoding, stored) in sample::stored_forms(&data) {
            for (skip, count) in [
                (0, 1),
                (0, len / 2),
                (1, len - 1),
                (len / 2, 1),
                (len / 3, len / 3),
                (len - 1, 1),
                (len / 2, len - len / 2),
                (len, 0),
                (0, 0),
            ] {
                for decoded_len in [
                    DecodedLen::Exact(len as u32),
                    DecodedLen::AtLeast((skip + count) as u32),
                    DecodedLen::AtMost(len as u32),
                    DecodedLen::AtMost(len as u32 + 100),
                ] {
                    let is_micro_lzma = matches!(encoding, floe_image::Encoding::MicroLzma { .. });
                    if is_micro_lzma && matches!(decoded_len, DecodedLen::AtMost(_)) {
                        continue;
                    }
                    let mut output = vec![0xaa; count];
                    let decoded = decoder.decode(&encoding, decoded_len, &stored, skip, &mut output);
                    assert_eq!(decoded, Ok(count), "{encoding:?} {decoded_len:?} {skip}+{count}");
                    assert!(output == data[skip..skip + count], "{encoding:?} {decoded_len:?} {skip}+{count}");
                }
            }
        }
    }
}

#[test]
fn an_understated_lz4_window_does_not_change_the_data() {
    let data = sample::text(300_001);
    let stored = sample::lz4_windowed(&data, 65_535);
    let encoding = Encoding::Lz4 { padding: Padding::None, window_bytes: 512 };
    let mut decoder = Decoder::new();
    for (skip, count) in [(0, 300_001), (1000, 4096), (200_000, 100_001)] {
        let mut output = vec![0xaa; count];
        let decoded = decoder.decode(&encoding, DecodedLen::Exact(300_001), &stored, skip, &mut output);
        assert_eq!(decoded, Ok(count), "{skip}+{count}");
        assert!(output == data[skip..skip + count], "{skip}+{count}");
    }
}

const LZ4: Encoding = Encoding::Lz4 { padding: Padding::Leading, window_bytes: 65_536 };

#[test]
fn with_the_margin_a_block_is_decoded_over_itself() {
    let mut random = sample::text(3000);
    random.iter_mut().enumerate().for_each(|(at, byte)| *byte = byte.wrapping_mul(167).wrapping_add((at * at) as u8));
    let samples = [sample::text(1), sample::text(100), sample::text(300_000), vec![7; 300_000], random];
    for data in samples {
        let block = encoder_sys::lz4(&data);
        for zeros in [0, 1, 3000] {
            let stored = [&vec![0; zeros], &block[..]].concat();
            let margin = Decoder::new().in_place_margin(&LZ4, stored.len()).unwrap();
            assert_eq!(margin, (stored.len() >> 8) + 32);
            for (slack, is_done) in [(margin, true), (margin + 1, true), (margin + 5000, true), (margin - 1, false)] {
                if data.len() + slack < stored.len() {
                    continue;
                }
                let mut buffer = vec![0x33; data.len() + slack - stored.len()];
                buffer.extend_from_slice(&stored);
                let before = buffer.clone();
                let done = Decoder::new().decode_in_place(&LZ4, data.len(), stored.len(), &mut buffer);
                assert_eq!(done, Ok(is_done), "{} {zeros} {slack}", data.len());
                if is_done {
                    assert!(buffer[..data.len()] == data, "{} {zeros} {slack}", data.len());
                } else {
                    assert!(buffer == before, "the buffer is unchanged");
                }
            }
        }
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let data = sample::text(5000);
    let stored = encoder_sys::lz4(&data);
    for (decoded_len, expected) in [(4999, false), (5001, false), (5000, true), (0, false)] {
        let mut buffer = vec![0; 6000];
        buffer.extend_from_slice(&stored);
        let decoded = Decoder::new().decode_in_place(&LZ4, decoded_len, stored.len(), &mut buffer);
        assert_eq!(decoded.is_ok(), expected, "{decoded:?}");
    }
    for (stored_len, decoded_len, len) in [(100, 10, 50), (usize::MAX, 10, 50), (10, usize::MAX, 50)] {
        assert_eq!(Decoder::new().decode_in_place(&LZ4, decoded_len, stored_len, &mut vec![0; len]), Ok(false));
    }
    let nothing = Decoder::new().decode_in_place(&LZ4, 10, 10, &mut [0; 100]);
    assert!(matches!(nothing, Err(DecodeError::Corrupt(_))), "{nothing:?}");
}

#[test]
fn only_lz4_with_a_known_end_decodes_in_place() {
    for (encoding, _) in sample::stored_forms(b"abc") {
        let can = matches!(encoding, Encoding::Lz4 { .. });
        assert_eq!(Decoder::new().in_place_margin(&encoding, 1000).is_some(), can, "{encoding:?}");
    }
    let trailing = Encoding::Lz4 { padding: Padding::Trailing, window_bytes: 65_536 };
    assert_eq!(Decoder::new().in_place_margin(&trailing, 1000), None);
    assert_eq!(Decoder::new().decode_in_place(&trailing, 10, 10, &mut [1; 1000]), Ok(false));
}

const LEN: u32 = 10_000;

/// Decodes `output_len` bytes from the beginning of each form of the sample.
fn check(decoded_len: DecodedLen, output_len: usize, expected: impl Fn(&Encoding) -> Option<usize>) {
    let data = sample::text(LEN as usize);
    let mut decoder = Decoder::new();
    for (encoding, stored) in sample::stored_forms(&data) {
        let mut output = vec![0; output_len];
        let decoded = decoder.decode(&encoding, decoded_len, &stored, 0, &mut output);
        assert_eq!(decoded.clone().ok(), expected(&encoding), "{encoding:?} {decoded_len:?}: {decoded:?}");
        if let Ok(len) = decoded {
            assert!(output[..len] == data[..len], "{encoding:?}");
        }
    }
}

#[test]
fn blocks_of_another_than_the_exact_length_are_refused() {
    check(DecodedLen::Exact(LEN), LEN as usize, |_| Some(LEN as usize));
    check(DecodedLen::Exact(LEN - 1), LEN as usize - 1, |_| None);
    check(DecodedLen::Exact(LEN + 1), LEN as usize + 1, |_| None);
    check(DecodedLen::Exact(LEN), LEN as usize + 1, |_| None);
}

#[test]
fn blocks_below_the_lower_bound_are_refused() {
    check(DecodedLen::AtLeast(LEN - 1), LEN as usize - 1, |_| Some(LEN as usize - 1));
    check(DecodedLen::AtLeast(LEN), LEN as usize, |_| Some(LEN as usize));
    check(DecodedLen::AtLeast(LEN + 1), LEN as usize + 1, |_| None);
}

#[test]
fn blocks_above_the_upper_bound_are_refused() {
    // A MicroLZMA stream does not mark its own end.
    let known = |len| move |encoding: &Encoding| (!matches!(encoding, Encoding::MicroLzma { .. })).then_some(len);
    check(DecodedLen::AtMost(LEN), LEN as usize, known(LEN as usize));
    check(DecodedLen::AtMost(LEN + 9000), LEN as usize + 9000, known(LEN as usize));
    check(DecodedLen::AtMost(LEN + 9000), LEN as usize + 10, known(LEN as usize));
    check(DecodedLen::AtMost(LEN + 9000), 10, known(10));
    check(DecodedLen::AtMost(LEN), LEN as usize + 5, known(LEN as usize));
    check(DecodedLen::AtMost(LEN - 1), LEN as usize - 1, |_| None);
}

#[test]
fn requests_past_the_end_are_refused() {
    let data = sample::text(LEN as usize);
    let mut decoder = Decoder::new();
    for (encoding, stored) in sample::stored_forms(&data) {
        let expected = (!matches!(encoding, Encoding::MicroLzma { .. })).then_some(0);
        for skip in [LEN as usize, LEN as usize + 1, LEN as usize + 70_000, 2_000_000] {
            let decoded = decoder.decode(&encoding, DecodedLen::AtMost(200_000), &stored, skip, &mut [0; 10]);
            if skip < 200_000 {
                assert_eq!(decoded.clone().ok(), expected, "{encoding:?} {skip}: {decoded:?}");
            } else {
                assert_eq!(decoded, Ok(0), "{encoding:?} {skip}");
            }
            let exact = decoder.decode(&encoding, DecodedLen::Exact(LEN), &stored, skip, &mut [0; 10]);
            assert!(matches!(exact, Err(DecodeError::Corrupt(_))), "{encoding:?} {skip}");
        }
    }
}

#[test]
fn padding_is_not_part_of_a_block() {
    let data = sample::text(LEN as usize);
    let mut decoder = Decoder::new();
    for (encoding, stored) in sample::stored_forms(&data) {
        let with = |padding| {
            Some(match encoding {
                Encoding::Lz4 { window_bytes, .. } => Encoding::Lz4 { padding, window_bytes },
                Encoding::MicroLzma { dictionary_bytes, .. } => Encoding::MicroLzma { padding, dictionary_bytes },
                Encoding::Deflate { window_log2, .. } => Encoding::Deflate { padding, window_log2 },
                Encoding::Zstd { window_log2_max, .. } => Encoding::Zstd { padding, window_log2_max },
                _ => return None,
            })
        };
        let (Some(leading), Some(trailing)) = (with(Padding::Leading), with(Padding::Trailing)) else { continue };
        let after_zeros = [&vec![0; 8000], &stored[..]].concat();
        let before_others = [&stored[..], &[0x5a; 3000]].concat();
        for (encoding, stored) in [(leading, &after_zeros), (leading, &stored), (trailing, &before_others)] {
            for skip in [0, 1, 9000] {
                let mut output = vec![0; LEN as usize - skip];
                let decoded = decoder.decode(&encoding, DecodedLen::Exact(LEN), stored, skip, &mut output);
                assert_eq!(decoded, Ok(output.len()), "{encoding:?}");
                assert!(output == data[skip..], "{encoding:?}");
            }
        }
        for nothing in [&[][..], &[0; 4096]] {
            let decoded = decoder.decode(&leading, DecodedLen::Exact(LEN), nothing, 0, &mut [0; LEN as usize]);
            assert!(matches!(decoded, Err(DecodeError::Corrupt(_))), "{leading:?}");
        }
    }
}
