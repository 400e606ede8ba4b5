//! The encoders of whole blocks: what they make decodes again, and what does not fit is left out.

use floe_codec::{Decoder, encode::BlockCompression};
use floe_image::{DecodedLen, Decompressor, Encoding, Padding};

use crate::sample;

const XZ: Encoding = Encoding::Xz { dictionary_bytes: 1 << 20 };
const LZ4: Encoding = Encoding::Lz4 { padding: Padding::None, window_bytes: sample::WINDOW_BYTES };
const ZSTD: Encoding = Encoding::Zstd { padding: Padding::None, window_log2_max: 20 };

const ROWS: [(BlockCompression, Encoding); 11] = [
    (BlockCompression::Gzip { level: 9, window_log2: 15, strategies: 0 }, Encoding::Zlib),
    (BlockCompression::Gzip { level: 1, window_log2: 15, strategies: 1 }, Encoding::Zlib),
    (BlockCompression::Gzip { level: 6, window_log2: 8, strategies: 0b11111 }, Encoding::Zlib),
    (BlockCompression::Lzma, Encoding::LzmaAlone),
    (BlockCompression::Lzo, Encoding::Lzo),
    (BlockCompression::Xz { dictionary_bytes: 1 << 20, filters: 0 }, XZ),
    (BlockCompression::Xz { dictionary_bytes: 8 << 10, filters: 0b1111_1111 }, XZ),
    (BlockCompression::Lz4 { is_high: false }, LZ4),
    (BlockCompression::Lz4 { is_high: true }, LZ4),
    (BlockCompression::Zstd { level: 15 }, ZSTD),
    (BlockCompression::Zstd { level: -10 }, ZSTD),
];

#[test]
fn blocks_decode_again_and_fit_or_are_left_out() {
    let mut decoder = Decoder::new();
    for (compression, encoding) in ROWS {
        let mut encoder = compression.encoder().expect("the settings are valid");
        // One encoder for all lengths: it keeps memory, but nothing of earlier blocks.
        for len in [8192, 131_072, 1000, 1 << 20, 4096, 131_072] {
            let data = sample::text(len);
            let mut output = vec![0; len];
            let stored_len = encoder.encode(&data, &mut output).expect("it works").expect("text shrinks");
            assert!(stored_len < len, "{compression:?} {len}");
            let mut decoded = vec![0xaa; len];
            let exact = DecodedLen::Exact(len as u32);
            let found = decoder.decode(&encoding, exact, &output[..stored_len], 0, &mut decoded);
            assert_eq!(found, Ok(len), "{compression:?} {len}");
            assert!(decoded == data, "{compression:?} {len}");
            if len > 131_072 {
                continue;
            }

            let mut again = vec![0; len];
            assert_eq!(encoder.encode(&data, &mut again).expect("it works"), Some(stored_len), "{compression:?} {len}");
            assert!(again[..stored_len] == output[..stored_len], "{compression:?} {len}: another result");
            let room = &mut again[..stored_len / 2];
            assert_eq!(encoder.encode(&data, room).expect("it works"), None, "{compression:?} {len}");
        }
        let mut state = 1u64;
        let noise: Vec<u8> = (0..10_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        let found = encoder.encode(&noise, &mut vec![0; noise.len() - 1]).expect("it works");
        assert_eq!(found, None, "{compression:?}");
    }
}
