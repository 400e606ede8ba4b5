//! Sample data, encoded in every encoding.

use floe_image::{Encoding, Padding};
use libdeflater::{CompressionLvl, Compressor};

use crate::encoder_sys;

/// A window and a dictionary that cover every sample.
pub(crate) const WINDOW_BYTES: u32 = 65_536;
pub(crate) const DICTIONARY_BYTES: u32 = 1 << 20;
pub(crate) const WINDOW_LOG2: u8 = 20;

/// Text-like data that compresses to about a third; deterministic for each length.
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

/// Encodes data.
pub(crate) type Encode = fn(&[u8]) -> Vec<u8>;

/// Every encoding without padding, with its encoder.
pub(crate) const ENCODERS: [(Encoding, Encode); 11] = [
    (Encoding::Stored, |data| data.to_vec()),
    (Encoding::Lz4 { padding: Padding::None, window_bytes: WINDOW_BYTES }, encoder_sys::lz4),
    (Encoding::MicroLzma { padding: Padding::None, dictionary_bytes: DICTIONARY_BYTES }, |data| {
        encoder_sys::micro_lzma(data, DICTIONARY_BYTES)
    }),
    (Encoding::Deflate { padding: Padding::None, window_log2: 15 }, deflate),
    (Encoding::Zstd { padding: Padding::None, window_log2_max: WINDOW_LOG2 }, zstd),
    (Encoding::Zlib, zlib),
    (Encoding::LzmaAlone, |data| encoder_sys::lzma_alone(data, DICTIONARY_BYTES)),
    (Encoding::LzmaAlone, |data| with_known_len(encoder_sys::lzma_alone(data, DICTIONARY_BYTES), data.len())),
    (Encoding::Lzo, |data| lzokay::compress::compress(data).unwrap()),
    (Encoding::Xz { dictionary_bytes: DICTIONARY_BYTES }, |data| encoder_sys::xz(data, DICTIONARY_BYTES, &[])),
    (Encoding::Xz { dictionary_bytes: DICTIONARY_BYTES }, |data| {
        encoder_sys::xz(data, DICTIONARY_BYTES, &[liblzma_sys::LZMA_FILTER_X86])
    }),
];

/// `data` in every encoding.
pub(crate) fn stored_forms(data: &[u8]) -> impl Iterator<Item = (Encoding, Vec<u8>)> {
    ENCODERS.iter().map(move |(encoding, encode)| (*encoding, encode(data)))
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

/// A .lzma stream that states its length, as mksquashfs writes it, instead of an end marker.
fn with_known_len(mut stored: Vec<u8>, len: usize) -> Vec<u8> {
    stored[5..13].copy_from_slice(&(len as u64).to_le_bytes());
    stored
}

/// An LZ4 block without match distances above `window_bytes`.
pub(crate) fn lz4_windowed(data: &[u8], window_bytes: usize) -> Vec<u8> {
    let mut stored = Vec::new();
    let mut literals_at = 0;
    let mut at = 0;
    let mut last_seen = std::collections::HashMap::new();
    let push_len = |stored: &mut Vec<u8>, len: usize| {
        if let Some(mut rest) = len.checked_sub(15) {
            while rest >= 255 {
                stored.push(255);
                rest -= 255;
            }
            stored.push(rest as u8);
        }
    };
    while at + 16 < data.len() {
        let key: [u8; 4] = data[at..at + 4].try_into().unwrap();
        let seen = last_seen.insert(key, at);
        let Some(from) = seen.filter(|from| at - from <= window_bytes.min(65_535)) else {
            at += 1;
            continue;
        };
        let room = data.len() - 5 - at;
        let len = (0..room).take_while(|n| data[from + n] == data[at + n]).count();
        if len < 4 {
            at += 1;
            continue;
        }
        let literals = &data[literals_at..at];
        stored.push((literals.len().min(15) << 4 | (len - 4).min(15)) as u8);
        push_len(&mut stored, literals.len());
        stored.extend_from_slice(literals);
        stored.extend_from_slice(&((at - from) as u16).to_le_bytes());
        push_len(&mut stored, len - 4);
        at += len;
        literals_at = at;
    }
    let literals = &data[literals_at..];
    stored.push((literals.len().min(15) << 4) as u8);
    push_len(&mut stored, literals.len());
    stored.extend_from_slice(literals);
    stored
}
