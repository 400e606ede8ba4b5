//! A decoder that has decoded a block of an encoding allocates nothing for the next one, and no decoder allocates more
//! than its limit.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod counting_allocator_sys;
#[path = "../decoder/encoder_sys.rs"]
mod encoder_sys;
#[allow(dead_code)]
#[path = "../decoder/sample.rs"]
mod sample;

use counting_allocator_sys::allocations;
use floe_codec::Decoder;
use floe_image::{DecodedLen, Decompressor, Encoding, Padding};

const LEN: usize = 100_000;

#[test]
fn the_allocator_counts_rust_and_c() {
    let (count, largest) = allocations(|| drop(Vec::<u8>::with_capacity(12_345)));
    assert_eq!((count, largest), (1, 12_345));
    let (count, _) = allocations(|| drop(encoder_sys::micro_lzma(b"abc", 4096)));
    assert!(count > 3, "{count}");
}

#[test]
fn a_warm_decoder_does_not_allocate() {
    let (short, long) = (sample::text(5000), sample::text(LEN));
    for (encoding, encode) in sample::ENCODERS {
        let blocks = [(&short, encode(&short)), (&long, encode(&long))];
        let mut decoder = Decoder::new();
        let mut output = vec![0; LEN];
        let mut round = |decoder: &mut Decoder| {
            for (data, stored) in &blocks {
                for (skip, len) in [(0, data.len()), (0, 100), (4000, 1000), (data.len() - 1, 1)] {
                    let decoded_len = DecodedLen::Exact(data.len() as u32);
                    assert_eq!(decoder.decode(&encoding, decoded_len, stored, skip, &mut output[..len]), Ok(len));
                }
            }
        };
        round(&mut decoder);
        let (count, _) = allocations(|| (0..140).for_each(|_| round(&mut decoder)));
        assert_eq!(count, 0, "{encoding:?}");
    }
}

#[test]
fn changing_filters_does_not_allocate() {
    let data = sample::text(LEN);
    let filters: [&[u64]; 3] =
        [&[], &[liblzma_sys::LZMA_FILTER_X86], &[liblzma_sys::LZMA_FILTER_ARM, liblzma_sys::LZMA_FILTER_SPARC]];
    let blocks = filters.map(|filters| encoder_sys::xz(&data, 1 << 18, filters));
    let mut decoder = Decoder::new();
    let mut output = vec![0; LEN];
    let mut round = || {
        for stored in &blocks {
            let encoding = Encoding::Xz { dictionary_bytes: 1 << 18 };
            assert_eq!(decoder.decode(&encoding, DecodedLen::Exact(LEN as u32), stored, 0, &mut output), Ok(LEN));
        }
    };
    round();
    round();
    let (count, _) = allocations(|| (0..20).for_each(|_| round()));
    assert_eq!(count, 0);
}

#[test]
fn limits_bound_allocations() {
    let padding = Padding::None;
    let data = sample::text(LEN);
    let large = 1 << 30;
    let mut alone = encoder_sys::lzma_alone(&data, 1 << 16);
    alone[1..5].copy_from_slice(&(large as u32).to_le_bytes());
    // A frame whose header asks for a window of 2 GiB, although its content does not need it.
    let mut zstd = sample::zstd(&data);
    zstd.splice(4..5, [zstd[4] & !0x20, 21 << 3]);
    let lzma = encoder_sys::micro_lzma(&data, 1 << 16);
    for (encoding, stored, largest_max) in [
        // The block may be as long as the largest dictionary.
        (Encoding::LzmaAlone, &alone, 9 << 20),
        (Encoding::Xz { dictionary_bytes: 1 << 16 }, &encoder_sys::xz(&data, 1 << 22, &[]), 1 << 17),
        (Encoding::Zstd { padding, window_log2_max: 16 }, &zstd, 1 << 18),
        (Encoding::Zstd { padding, window_log2_max: 31 }, &zstd, 1 << 18),
        (Encoding::MicroLzma { padding, dictionary_bytes: 1 << 16 }, &lzma, 1 << 17),
        // The largest possible window, because matches exceed the stated one.
        (Encoding::Lz4 { padding, window_bytes: 4096 }, &encoder_sys::lz4(&data), 1 << 16),
        (Encoding::Lzo, &lzokay::compress::compress(&data).unwrap(), 1 << 20),
    ] {
        for (decoded_len, skip) in [(LEN, 0), (LEN, LEN - 10), (large, 0), (large, large - 10)] {
            let decoded_len = DecodedLen::Exact(decoded_len as u32);
            let mut output = [0; 10];
            let (_, largest) = allocations(|| {
                let _ = Decoder::new().decode(&encoding, decoded_len, stored, skip, &mut output);
            });
            assert!(largest <= largest_max, "{encoding:?} {decoded_len:?} {skip}: {largest}");
        }
    }
}
