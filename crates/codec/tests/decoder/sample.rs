//! Data and its stored forms, in every encoding.

use floe_image::{Encoding, Padding};
use libdeflater::{CompressionLvl, Compressor};

use crate::encoder_sys;

/// A window and a dictionary that hold every sample.
pub(crate) const WINDOW_BYTES: u32 = 65_536;
pub(crate) const DICTIONARY_BYTES: u32 = 1 << 20;
pub(crate) const WINDOW_LOG2: u8 = 20;

/// Text-like data that compresses to about a third, the same for the same length.
pub(crate) fn text(len: usize) -> Vec<u8> {
    let words = ["pcluster", "lcluster", "inode ", "block", "\n", " the ", "of", "image", "=0x", "42", "window"];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut data = Vec::with_capacity(len + 16);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(words[(state % words.len() as u64) as usize].as_bytes());
        if state & 0x700 == 0 {
            data.extend_from_slice(&state.to_le_bytes());
        }
    }
    data.truncate(len);
    data
}

/// `data` in every encoding, without padding.
pub(crate) fn stored_forms(data: &[u8]) -> Vec<(Encoding, Vec<u8>)> {
    let padding = Padding::None;
    let bcj = [liblzma_sys::LZMA_FILTER_X86];
    vec![
        (Encoding::Stored, data.to_vec()),
        (Encoding::Lz4 { padding, window_bytes: WINDOW_BYTES }, encoder_sys::lz4(data)),
        (
            Encoding::MicroLzma { padding, dictionary_bytes: DICTIONARY_BYTES },
            encoder_sys::micro_lzma(data, DICTIONARY_BYTES),
        ),
        (Encoding::Deflate { padding, window_log2: 15 }, deflate(data)),
        (Encoding::Zstd { padding, window_log2_max: WINDOW_LOG2 }, zstd(data)),
        (Encoding::Zlib, zlib(data)),
        (Encoding::LzmaAlone, encoder_sys::lzma_alone(data, DICTIONARY_BYTES)),
        (Encoding::LzmaAlone, with_known_len(encoder_sys::lzma_alone(data, DICTIONARY_BYTES), data.len())),
        (Encoding::Lzo, lzokay::compress::compress(data).unwrap()),
        (Encoding::Xz { dictionary_bytes: DICTIONARY_BYTES }, encoder_sys::xz(data, DICTIONARY_BYTES, &[])),
        (Encoding::Xz { dictionary_bytes: DICTIONARY_BYTES }, encoder_sys::xz(data, DICTIONARY_BYTES, &bcj)),
    ]
}

pub(crate) fn deflate(data: &[u8]) -> Vec<u8> {
    let mut compressor = Compressor::new(CompressionLvl::default());
    let mut stored = vec![0; compressor.deflate_compress_bound(data.len())];
    let len = compressor.deflate_compress(data, &mut stored).unwrap();
    stored.truncate(len);
    stored
}

pub(crate) fn zlib(data: &[u8]) -> Vec<u8> {
    let mut compressor = Compressor::new(CompressionLvl::default());
    let mut stored = vec![0; compressor.zlib_compress_bound(data.len())];
    let len = compressor.zlib_compress(data, &mut stored).unwrap();
    stored.truncate(len);
    stored
}

pub(crate) fn zstd(data: &[u8]) -> Vec<u8> {
    let mut stored = vec![0; zstd_safe::compress_bound(data.len())];
    let len = zstd_safe::compress(&mut stored[..], data, 3).unwrap();
    stored.truncate(len);
    stored
}

/// A .lzma stream that says its length, as mksquashfs makes them, rather than that its end marker tells.
fn with_known_len(mut stored: Vec<u8>, len: usize) -> Vec<u8> {
    stored[5..13].copy_from_slice(&(len as u64).to_le_bytes());
    stored
}
