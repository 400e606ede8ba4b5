//! Decoded lengths are checked against the stated length.

use floe_codec::Decoder;
use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};

use crate::sample;

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
