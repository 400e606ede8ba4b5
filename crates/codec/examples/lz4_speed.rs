//! Measures the LZ4 decoders over the contents of the given files.
//!
//! `cargo run --release -p floe-codec --example lz4_speed -- FILE…`

#[allow(dead_code)]
#[path = "../tests/decoder/encoder_sys.rs"]
mod encoder_sys;

use std::{error::Error, fs, time::Instant};

use floe_codec::Decoder;
use floe_image::{DecodedLen, Decompressor, Encoding, Padding};

/// Blocks that decode to these lengths take about 4 KiB and 64 KiB stored.
const DECODED_LENS: [usize; 2] = [10 * 1024, 200 * 1024];
const WINDOW_BYTES: u32 = 64 * 1024;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args().skip(1) {
        let data = fs::read(&path)?;
        for decoded_len in DECODED_LENS {
            let blocks: Vec<_> = data.chunks_exact(decoded_len).map(encoder_sys::lz4).collect();
            let stored_len = blocks.iter().map(Vec::len).sum::<usize>() / blocks.len().max(1);
            println!("{path}: {} blocks of {stored_len} bytes stored, {decoded_len} decoded", blocks.len());
            for (name, skip) in
                [("from the beginning", 0), ("the last half", decoded_len / 2), ("the last byte", decoded_len - 1)]
            {
                measure(name, &blocks, decoded_len, skip);
            }
        }
    }
    Ok(())
}

/// Prints the best of several rounds over all blocks.
fn measure(name: &str, blocks: &[Vec<u8>], decoded_len: usize, skip: usize) {
    let encoding = Encoding::Lz4 { padding: Padding::None, window_bytes: WINDOW_BYTES };
    let mut decoder = Decoder::new();
    let mut output = vec![0; decoded_len - skip];
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for stored in blocks {
            let decoded = decoder.decode(&encoding, DecodedLen::Exact(decoded_len as u32), stored, skip, &mut output);
            assert_eq!(decoded, Ok(output.len()));
        }
        best = best.min(begun.elapsed().as_secs_f64());
    }
    let each_us = best * 1e6 / blocks.len() as f64;
    let rate = (decoded_len * blocks.len()) as f64 / best / 1e6;
    println!("  {name:20} {rate:6.0} MB/s {each_us:8.2} µs a block, temporary {}", decoder.temporary_bytes_max());
}
