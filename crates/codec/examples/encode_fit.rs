//! Measures how fast an encoder fills outputs of a fixed size, and how close it comes to the best possible fill:
//! `encode_fit FILE OUTPUT_BYTES CODEC,LEVEL[,WINDOW] [exact]`.

use std::{env, error::Error, fs, num::NonZeroU32, time::Instant};

use floe_codec::encode::{Compression, Encoder, Fit, LZ4_WINDOW_MAX, Lz4WindowEncoder};

/// The input is encoded in independent segments of this length, in bytes.
const SEGMENT_LEN: usize = 4 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [path, room, codec, rest @ ..] = arguments.as_slice() else {
        return Err("FILE OUTPUT_BYTES CODEC,LEVEL[,WINDOW] [exact]".into());
    };
    let data = fs::read(path)?;
    let mut output = vec![0; room.parse()?];
    let mut encoder = encoder(codec)?;
    let begin = Instant::now();
    let (mut blocks, mut plain, mut count) = (0, 0, 0u64);
    for segment in data.chunks(SEGMENT_LEN) {
        encoder.restart();
        let mut rest_of_segment = segment;
        while !rest_of_segment.is_empty() {
            let fit = if rest.is_empty() {
                encoder.encode_to_fit(rest_of_segment, &mut output)?
            } else {
                exact(&mut *encoder, rest_of_segment, &mut output)?
            };
            let stored = fit.produced.div_ceil(4096);
            count += 1;
            let consumed = if fit.produced == 0 || stored * 4096 >= fit.consumed {
                plain += 1;
                blocks += output.len() / 4096;
                rest_of_segment.len().min(output.len())
            } else {
                blocks += stored;
                fit.consumed
            };
            rest_of_segment = &rest_of_segment[consumed..];
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{codec} into {room}: {:.1} MB/s, {count} pclusters ({plain} plain), {blocks} blocks, {:.3} %",
        data.len() as f64 / 1e6 / seconds,
        (blocks * 4096) as f64 * 100.0 / data.len() as f64
    );
    Ok(())
}

fn encoder(codec: &str) -> Result<Box<dyn Encoder>, Box<dyn Error>> {
    let words: Vec<&str> = codec.split(',').collect();
    let level: u8 = words.get(1).unwrap_or(&"1").parse()?;
    let window: Option<u32> = words.get(2).map(|window| window.parse()).transpose()?;
    let window_bytes = window.and_then(NonZeroU32::new).unwrap_or(LZ4_WINDOW_MAX);
    let compression = match words[0] {
        "lz4" => Compression::Lz4 { window_bytes },
        "lz4hc" => Compression::Lz4High { level, window_bytes },
        "own" => return Ok(Box::new(Lz4WindowEncoder::high(level, window_bytes)?)),
        "lzma" => Compression::MicroLzma { level, dictionary_bytes: window.unwrap_or(4 << 20) },
        "deflate" => Compression::Deflate { level },
        "zstd" => Compression::Zstd { level, window_log2: u8::try_from(window.unwrap_or(1 << 19).ilog2())? },
        other => return Err(format!("unknown codec {other}").into()),
    };
    Ok(compression.encoder()?)
}

/// Finds the longest input that fits, by bisection.
fn exact(encoder: &mut dyn Encoder, input: &[u8], output: &mut [u8]) -> Result<Fit, Box<dyn Error>> {
    let (mut fits, mut exceeds) = (Fit::default(), input.len() + 1);
    let mut len = (output.len() * 4).min(input.len());
    while len > fits.consumed && len < exceeds {
        match encoder.encode_whole(&input[..len], output)? {
            Some(produced) => {
                fits = Fit { consumed: len, produced };
                len = len.saturating_add((len * (output.len() - produced)).div_ceil(produced)).max(len + 1);
                len = len.min(exceeds - 1);
            }
            None => {
                exceeds = len;
                len = fits.consumed.midpoint(exceeds);
            }
        }
    }
    Ok(fits)
}
