//! Encoded data decodes again, whole and in part.

use floe_codec::Decoder;
use floe_image::{DecodedLen, Decompressor, Encoding, Padding};

use crate::sample;

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
