//! Memory limits: excessive demands of an image are refused with an error that names them.

use floe_codec::Decoder;
use floe_image::{DecodeError, DecodedLen, Decompressor, Encoding, Padding};

use crate::{encoder_sys, sample};

const LEN: usize = 200_000;

fn check(encoding: Encoding, stored: &[u8], is_taken: bool) {
    let data = sample::text(LEN);
    // The whole block, its beginning and its end take different code paths.
    for (skip, len) in [(0, LEN), (0, LEN - 1), (100_000, LEN - 100_000)] {
        let mut output = vec![0; len];
        let decoded = Decoder::new().decode(&encoding, DecodedLen::Exact(LEN as u32), stored, skip, &mut output);
        if is_taken {
            assert_eq!(decoded, Ok(len), "{encoding:?}");
            assert!(output == data[skip..skip + len], "{encoding:?}");
        } else {
            assert!(matches!(decoded, Err(DecodeError::Unsupported(_))), "{encoding:?} {skip}: {decoded:?}");
        }
    }
}

#[test]
fn lzma_dictionaries_are_bounded() {
    let data = sample::text(LEN);
    let padding = Padding::None;
    let micro = encoder_sys::micro_lzma(&data, 4096);
    for (dictionary_bytes, is_taken) in [(4096, true), (1 << 23, true), ((1 << 23) + 1, false), (u32::MAX, false)] {
        check(Encoding::MicroLzma { padding, dictionary_bytes }, &micro, is_taken);
    }
    check(Encoding::Xz { dictionary_bytes: (1 << 23) + 1 }, &encoder_sys::xz(&data, 4096, &[]), false);
}

#[test]
fn a_dictionary_larger_than_the_block_is_reduced() {
    let data = sample::text(LEN);
    let filters = [&[][..], &[liblzma_sys::LZMA_FILTER_X86, liblzma_sys::LZMA_FILTER_ARM]];
    for stated in [1 << 18, 1 << 20, (1 << 20) + (1 << 19), 1 << 26] {
        for filters in filters {
            let xz = encoder_sys::xz(&data, stated, filters);
            // The last one is rounded down to a size that a header can state.
            for dictionary_bytes in [1 << 18, 1 << 20, 300_000] {
                check(Encoding::Xz { dictionary_bytes }, &xz, true);
                is_held(Encoding::Xz { dictionary_bytes }, &xz);
            }
        }
    }
    for stated in [1 << 12, 1 << 20, 1 << 23, 1 << 24, 1 << 30, (1 << 30) + 1, u32::MAX] {
        let alone = with_dictionary(encoder_sys::lzma_alone(&data, 4096), stated);
        check(Encoding::LzmaAlone, &alone, true);
        is_held(Encoding::LzmaAlone, &alone);
    }
}

/// Checks that a decoder holds no more memory than announced after this block, nor more than the block needs.
fn is_held(encoding: Encoding, stored: &[u8]) {
    let mut decoder = Decoder::new();
    let decoded_len = DecodedLen::Exact(LEN as u32);
    decoder.decode(&encoding, decoded_len, stored, 0, &mut vec![0; LEN]).expect("sound");
    let (held, held_max) = (decoder.held_bytes(), Decoder::held_bytes_max(&encoding, decoded_len));
    assert!(held <= held_max && held < 3 << 19, "{encoding:?}: {held} of {held_max}");
}

#[test]
fn faults_of_a_header_are_found_although_its_dictionary_is_reduced() {
    let data = sample::text(LEN);
    let sound = encoder_sys::xz(&data, 1 << 26, &[liblzma_sys::LZMA_FILTER_X86]);
    let encoding = Encoding::Xz { dictionary_bytes: 1 << 18 };
    let decode =
        |stored: &[u8]| Decoder::new().decode(&encoding, DecodedLen::Exact(LEN as u32), stored, 0, &mut vec![0; LEN]);
    assert_eq!(decode(&sound), Ok(LEN));
    for at in 0..40 {
        for bit in 0..8 {
            let mut stored = sound.clone();
            stored[at] ^= 1 << bit;
            let header_len = 12 + (usize::from(sound[12]) + 1) * 4;
            assert!(at >= header_len || decode(&stored).is_err(), "byte {at}, bit {bit}");
        }
        assert!(decode(&sound[..at]).is_err(), "{at} bytes");
    }
}

/// A .lzma stream whose header states another dictionary size than it was made with.
fn with_dictionary(mut stored: Vec<u8>, dictionary_bytes: u32) -> Vec<u8> {
    stored[1..5].copy_from_slice(&dictionary_bytes.to_le_bytes());
    stored
}

#[test]
fn a_match_past_the_lzma_dictionary_is_refused() {
    let mut data = sample::text(64_000);
    let again = data.clone();
    data.extend_from_slice(&again);
    let stored = encoder_sys::micro_lzma(&data, 1 << 20);
    for (dictionary_bytes, is_taken) in [(1 << 17, true), (1 << 15, false)] {
        let encoding = Encoding::MicroLzma { padding: Padding::None, dictionary_bytes };
        let mut output = vec![0; data.len()];
        let decoded = Decoder::new().decode(&encoding, DecodedLen::Exact(data.len() as u32), &stored, 0, &mut output);
        assert_eq!(decoded.is_ok(), is_taken, "{dictionary_bytes}: {decoded:?}");
    }
}

#[test]
fn windows_are_bounded() {
    let data = sample::text(LEN);
    let padding = Padding::None;
    // A single-segment frame: the window is the content.
    let zstd = sample::zstd(&data);
    for (window_log2_max, is_taken) in [(18, true), (31, true), (17, false), (0, false)] {
        check(Encoding::Zstd { padding, window_log2_max }, &zstd, is_taken);
    }
    for (window_log2, is_taken) in [(15, true), (9, true), (16, false)] {
        check(Encoding::Deflate { padding, window_log2 }, &sample::deflate(&data), is_taken);
    }
    let lz4 = encoder_sys::lz4(&data);
    check(Encoding::Lz4 { padding, window_bytes: 65_536 }, &lz4, true);
    check(Encoding::Lz4 { padding, window_bytes: 65_537 }, &lz4, false);
}

#[test]
fn zstd_frames_of_other_kinds_are_refused_by_name() {
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    for (rest, expected) in [
        (&[0x20, 5, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'][..], Ok(5)),
        (&[0x00, 0x00, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'], Ok(5)),
        (
            &[0x00, 0x60, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'],
            Err("not supported: zstd window larger than the image allows"),
        ),
        (&[0x21, 7, 5, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'], Err("not supported: zstd frame with a dictionary")),
        (&[0x20, 6, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'], Err("block decodes to more than its stated length")),
        (&[0x20, 4, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o'], Err("block decodes to less than its stated length")),
        (&[0x20], Err("zstd frame header past the end of its block")),
        (&[0xe0, 0, 0, 0, 0, 0, 0, 0], Err("zstd frame header past the end of its block")),
        (&[0x20, 5, 0x29, 0, 0, b'h', b'e'], Err("stored bytes of a block end early")),
    ] {
        let stored = [&magic[..], rest].concat();
        let encoding = Encoding::Zstd { padding: Padding::None, window_log2_max: 20 };
        let mut output = [0; 5];
        let decoded = Decoder::new().decode(&encoding, DecodedLen::Exact(5), &stored, 0, &mut output);
        assert_eq!(decoded.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{rest:x?}");
    }
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    let encoding = Encoding::Zstd { padding: Padding::None, window_log2_max: 20 };
    let decoded = Decoder::new().decode(&encoding, DecodedLen::AtMost(5), &skippable, 0, &mut [0; 5]);
    assert_eq!(decoded, Err(DecodeError::Corrupt("missing zstd frame")));
}

#[test]
fn oversized_zstd_blocks_are_refused_wherever_reading_starts() {
    let encoding = Encoding::Zstd { padding: Padding::None, window_log2_max: 20 };
    // A run of one byte, with a window of 256 KiB, then of 1 KiB.
    for (window, len, is_taken) in [(0x40_u8, 128_u32 << 10, true), (0x40, (128 << 10) + 1, false), (0, 1025, false)] {
        let block = (len << 3 | 1 << 1 | 1).to_le_bytes();
        let stored = [&[0x28, 0xb5, 0x2f, 0xfd, 0, window][..], &block[..3], b"x"].concat();
        let mut output = vec![0; len as usize];
        for skip in [0, 1, 1000] {
            let output = &mut output[skip..];
            let decoded = Decoder::new().decode(&encoding, DecodedLen::Exact(len), &stored, skip, output);
            assert_eq!(decoded.is_ok(), is_taken, "{window} {len} {skip}: {decoded:?}");
        }
    }
}

#[test]
fn temporary_memory_is_a_window_at_most() {
    let data = sample::text(LEN);
    for (window_bytes, skip, expected) in
        [(65_536, 0, 0), (65_536, 10_000, 10_000), (65_536, 190_000, 65_536), (16_384, 190_000, 16_384)]
    {
        let stored = sample::lz4_windowed(&data, window_bytes as usize);
        let encoding = Encoding::Lz4 { padding: Padding::None, window_bytes };
        let mut decoder = Decoder::new();
        let mut output = vec![0; LEN - skip];
        assert_eq!(
            decoder.decode(&encoding, DecodedLen::Exact(LEN as u32), &stored, skip, &mut output),
            Ok(output.len())
        );
        assert!(output == data[skip..]);
        assert_eq!(decoder.temporary_bytes_last(), expected, "{window_bytes} {skip}");
        assert_eq!(decoder.temporary_bytes_max(), expected, "{window_bytes} {skip}");
    }
    for (encoding, stored) in sample::stored_forms(&data) {
        let mut decoder = Decoder::new();
        decoder.decode(&encoding, DecodedLen::Exact(LEN as u32), &stored, LEN - 1, &mut [0]).unwrap();
        let whole = LEN;
        // Only LZO has to decode the whole block for a part of it.
        let most = if encoding == Encoding::Lzo { whole } else { 65_536 };
        assert!(decoder.temporary_bytes_max() <= most, "{encoding:?}");
    }
}

#[test]
fn the_memory_of_a_decoder_is_bounded_in_advance() {
    let data = sample::text(LEN);
    let decoded_len = DecodedLen::Exact(LEN as u32);
    for (encoding, stored) in sample::stored_forms(&data) {
        let held_max = Decoder::held_bytes_max(&encoding, decoded_len);
        for (skip, len) in [(0, LEN), (0, 100), (100_000, 1000), (LEN - 1, 1)] {
            let mut decoder = Decoder::new();
            decoder.decode(&encoding, decoded_len, &stored, skip, &mut vec![0; len]).expect("sound");
            let held = decoder.held_bytes();
            assert!(held <= held_max, "{encoding:?}, {len} from {skip} on: {held} of {held_max}");
        }
    }
    // A block needs no dictionary larger than itself, whatever the image allows, and the decoder never holds two.
    let stored = encoder_sys::micro_lzma(&data, 1 << 16);
    let encoding = Encoding::MicroLzma { padding: Padding::None, dictionary_bytes: 8 << 20 };
    let mut decoder = Decoder::new();
    for len in [200_000, 100_000, 140_000, 70_000, 200_000] {
        let decoded_len = DecodedLen::AtLeast(len);
        decoder.decode(&encoding, decoded_len, &stored, 0, &mut vec![0; len as usize]).expect("sound");
        let (held, held_max) =
            (decoder.held_bytes(), Decoder::held_bytes_max(&encoding, DecodedLen::Exact(LEN as u32)));
        assert!((1 << 16..=held_max).contains(&held) && held_max < 1 << 19, "{held} of {held_max}");
    }
}
