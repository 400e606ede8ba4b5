//! Writes the seed corpora of the codecs' fuzz targets, and the valid blocks that the targets decode between inputs.
//!
//! `cargo run -p floe-codec --example fuzz_seeds -- fuzz`

#[allow(dead_code)]
#[path = "../tests/decoder/encoder_sys.rs"]
mod encoder_sys;
#[allow(dead_code)]
#[path = "../tests/decoder/sample.rs"]
mod sample;

use std::{error::Error, fs, path::PathBuf};

use floe_image::Encoding;

/// Length in bytes of the valid block that a target decodes after each fuzz input.
const SOUND_LEN: usize = 3000;

fn main() -> Result<(), Box<dyn Error>> {
    let fuzz = PathBuf::from(std::env::args().nth(1).ok_or("name the folder of the fuzz targets")?);
    fs::create_dir_all(fuzz.join("sound"))?;
    let sound = sample::text(SOUND_LEN);
    fs::write(fuzz.join("sound/data"), &sound)?;
    let samples = [("text", sample::text(700)), ("byte", vec![b'x']), ("zeros", vec![0; 150_000])];
    for (index, (encoding, encode)) in sample::ENCODERS.iter().enumerate() {
        let name = match encoding {
            Encoding::Lz4 { .. } => "lz4",
            Encoding::MicroLzma { .. } => "micro_lzma",
            Encoding::Deflate { .. } => "deflate",
            Encoding::Zstd { .. } => "zstd",
            Encoding::Zlib => "zlib",
            Encoding::LzmaAlone => "lzma_alone",
            Encoding::Lzo => "lzo",
            Encoding::Xz { .. } => "xz",
            Encoding::Stored => continue,
        };
        fs::write(fuzz.join("sound").join(name), encode(&sound))?;
        let corpus = fuzz.join("corpus").join(format!("codec_{name}"));
        fs::create_dir_all(&corpus)?;
        for (sample_name, data) in &samples {
            for (bound, bound_name) in ["exact", "at-least", "at-most"].iter().enumerate() {
                // In the form that the targets expect: within all limits, and the requested part is the middle third.
                let limit = match encoding {
                    Encoding::Zstd { .. } => 20_u32,
                    Encoding::Lz4 { .. } => 65_536,
                    _ => (1 << 20) - 1,
                };
                let mut seed = vec![bound as u8];
                seed.extend_from_slice(&limit.to_le_bytes());
                for number in [data.len(), data.len() / 3, data.len() / 3] {
                    seed.extend_from_slice(&u32::try_from(number)?.to_le_bytes()[..3]);
                }
                seed.extend_from_slice(&encode(data));
                let seed_name = format!("{sample_name}-{bound_name}-{index}");
                fs::write(corpus.join(&seed_name), &seed)?;
                if matches!(encoding, Encoding::Lz4 { .. }) {
                    let in_place = fuzz.join("corpus/codec_lz4_in_place");
                    fs::create_dir_all(&in_place)?;
                    fs::write(in_place.join(&seed_name), &seed)?;
                }
            }
        }
    }
    Ok(())
}
