use std::num::NonZeroU32;

use floe_image::{DecodedLen, Decompressor, Encoding, Padding};
use proptest::prelude::*;

use super::*;
use crate::Decoder;

fn window(bytes: u32) -> NonZeroU32 {
    NonZeroU32::new(bytes).expect("windows are not empty")
}

fn all() -> Vec<Compression> {
    let mut all = vec![
        Compression::Lz4 { window_bytes: LZ4_WINDOW_MAX },
        Compression::MicroLzma { level: 0, dictionary_bytes: 4096 },
        Compression::MicroLzma { level: 6, dictionary_bytes: 1 << 20 },
        Compression::MicroLzma { level: 103, dictionary_bytes: 65536 },
    ];
    for window_bytes in [4096, 16384, 32768].map(window) {
        all.push(Compression::Lz4 { window_bytes });
        all.extend([1, 6, 9, 12].map(|level| Compression::Lz4High { level, window_bytes }));
    }
    all.extend([1, 9, 12].map(|level| Compression::Lz4High { level, window_bytes: LZ4_WINDOW_MAX }));
    all.extend([1, 6, 12].map(|level| Compression::Deflate { level }));
    all.extend(
        [(1, 10), (3, 17), (3, 19), (19, 20)].map(|(level, window_log2)| Compression::Zstd { level, window_log2 }),
    );
    all
}

fn encoding(compression: Compression) -> Encoding {
    let padding = Padding::None;
    match compression {
        Compression::Lz4 { .. } | Compression::Lz4High { .. } => Encoding::Lz4 { padding, window_bytes: 65536 },
        Compression::MicroLzma { dictionary_bytes, .. } => Encoding::MicroLzma { padding, dictionary_bytes },
        Compression::Deflate { .. } => Encoding::Deflate { padding, window_log2: 15 },
        Compression::Zstd { window_log2, .. } => Encoding::Zstd { padding, window_log2_max: window_log2 },
    }
}

/// The largest match distance of a block. Also checks the rules for the end of a block.
fn distance_max(block: &[u8], decoded_len: usize) -> usize {
    let (mut at, mut written, mut distance_max) = (0, 0, 0);
    let mut last_match = None;
    loop {
        let token = usize::from(block[at]);
        at += 1;
        let length = |nibble: usize, at: &mut usize| {
            let mut len = nibble;
            while len >= 15 {
                let byte = usize::from(block[*at]);
                *at += 1;
                len += byte;
                if byte < 255 {
                    break;
                }
            }
            len
        };
        let literals_len = length(token >> 4, &mut at);
        at += literals_len;
        written += literals_len;
        if at == block.len() {
            if let Some(start) = last_match {
                assert!(literals_len >= 5 && decoded_len - start >= 12, "the end of a block is literals");
            }
            assert_eq!(written, decoded_len);
            return distance_max;
        }
        let distance = usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
        at += 2;
        assert!(distance > 0 && distance <= written);
        distance_max = distance_max.max(distance);
        last_match = Some(written);
        written += length(token & 15, &mut at) + 4;
    }
}

/// Encodes `input` into blocks of up to `room` bytes, decodes each, and returns the number of blocks.
fn check(compression: Compression, input: &[u8], room: usize) -> Result<usize, String> {
    let mut encoder = compression.encoder().map_err(|error| error.to_string())?;
    let mut decoder = Decoder::new();
    let mut output = vec![0xEE; room + 16];
    let (mut at, mut blocks) = (0, 0);
    encoder.restart();
    while at < input.len() {
        let fit = encoder.encode_to_fit(&input[at..], &mut output[..room]).map_err(|error| error.to_string())?;
        if fit.produced == 0 {
            break;
        }
        let block = &output[..fit.produced];
        if fit.produced > room || output[room..].iter().any(|byte| *byte != 0xEE) {
            return Err(format!("{} bytes for a room of {room}", fit.produced));
        }
        if block[0] == 0 {
            return Err("the first byte is zero".into());
        }
        let mut decoded = vec![0; fit.consumed];
        let len = fit.consumed;
        let exact = DecodedLen::Exact(u32::try_from(len).expect("inputs are small"));
        let result = decoder.decode(&encoding(compression), exact, block, 0, &mut decoded);
        if result.as_ref() != Ok(&len) || decoded != input[at..at + len] {
            return Err(format!("a block of {} bytes for {len} at {at} decodes to {result:?}", fit.produced));
        }
        if let Compression::Lz4 { window_bytes } | Compression::Lz4High { window_bytes, .. } = compression {
            let distance = distance_max(block, len);
            if distance > window_bytes.get() as usize {
                return Err(format!("a distance of {distance}"));
            }
        }
        at += len;
        blocks += 1;
    }
    Ok(blocks)
}

/// Data of medium entropy: words of a small vocabulary, some noise, some runs.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words: Vec<Vec<u8>> =
        (0..600).map(|_| (0..2 + random() % 9).map(|_| b'a' + (random() % 23) as u8).collect()).collect();
    let mut bytes = Vec::with_capacity(len + 300);
    while bytes.len() < len {
        match random() % 40 {
            0 => bytes.extend((0..random() % 40).map(|_| (random() >> 9) as u8)),
            1 => bytes.extend(std::iter::repeat_n(b' ', (random() % 300) as usize)),
            _ => bytes.extend(&words[(random() % 600) as usize % (1 + (random() % 600) as usize)]),
        }
    }
    bytes.truncate(len);
    bytes
}

#[test]
fn every_encoder_output_decodes_to_the_input() {
    let inputs = [
        text(300_000, 7),
        vec![0; 1_000_000],
        (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
        b"abcabcabcabcabcabcabcabcabcabcabcabc".to_vec(),
        b"x".to_vec(),
    ];
    for compression in all() {
        for (number, input) in inputs.iter().enumerate() {
            for room in [512, 4096, 65536] {
                let result = check(compression, input, room);
                assert!(result.is_ok(), "{compression:?}, input {number}, room {room}: {result:?}");
            }
        }
    }
}

#[test]
fn encoders_fill_the_output_space() {
    let input = text(2_000_000, 3);
    for compression in all() {
        for room in [4096, 65536] {
            let mut encoder = compression.encoder().expect("the settings are valid");
            encoder.restart();
            let mut output = vec![0; room];
            let (mut at, mut produced, mut blocks) = (0, 0, 0);
            while blocks < 4 && at < input.len() * 3 / 4 {
                let fit = encoder.encode_to_fit(&input[at..], &mut output).expect("encoding succeeds");
                (at, produced, blocks) = (at + fit.consumed, produced + fit.produced, blocks + 1);
            }
            let least = match compression {
                Compression::Deflate { .. } => 94,
                Compression::Zstd { .. } => 97,
                _ => 99,
            };
            let used = produced * 100 / (blocks * room);
            assert!(used >= least, "{compression:?} uses {used} % of {room}");
        }
    }
}

#[test]
fn earlier_input_does_not_change_the_output() {
    let input = text(1_500_000, 5);
    for compression in all() {
        let is_thorough_lz4 = matches!(compression, Compression::Lz4High { window_bytes: LZ4_WINDOW_MAX, .. });
        // liblz4's positions restart after 1 GiB.
        let rounds = if is_thorough_lz4 { 1200 } else { 3 };
        let mut used = compression.encoder().expect("the settings are valid");
        let mut outputs = [vec![0; 4096], vec![0; 4096]];
        for round in 0..rounds {
            let input = &input[round * 311..];
            used.restart();
            let fit = used.encode_to_fit(input, &mut outputs[0]).expect("encoding succeeds");
            if round % 40 < 2 || (950..1100).contains(&round) {
                let mut fresh = compression.encoder().expect("the settings are valid");
                fresh.restart();
                let expected = fresh.encode_to_fit(input, &mut outputs[1]).expect("encoding succeeds");
                assert_eq!(fit, expected, "{compression:?}, round {round}");
                assert!(outputs[0][..fit.produced] == outputs[1][..fit.produced], "{compression:?}, round {round}");
            }
        }
    }
}

#[test]
fn small_windows_cost_little_in_the_thorough_method() {
    let input = text(1_000_000, 11);
    let ratio = |compression: Compression| {
        let mut encoder = compression.encoder().expect("the settings are valid");
        let mut output = vec![0; 4096];
        let (mut at, mut blocks) = (0, 0);
        while at < input.len() {
            at += encoder.encode_to_fit(&input[at..], &mut output).expect("encoding succeeds").consumed;
            blocks += 1;
        }
        blocks
    };
    let whole = ratio(Compression::Lz4High { level: 9, window_bytes: LZ4_WINDOW_MAX });
    let small = ratio(Compression::Lz4High { level: 9, window_bytes: window(16384) });
    assert!(small * 50 <= whole * 51, "{small} blocks with 16 KiB, {whole} with 64 KiB");
}

#[test]
fn settings_out_of_range_are_refused() {
    for compression in [
        Compression::Lz4High { level: 0, window_bytes: LZ4_WINDOW_MAX },
        Compression::Lz4High { level: 13, window_bytes: window(4096) },
        Compression::MicroLzma { level: 10, dictionary_bytes: 65536 },
        Compression::MicroLzma { level: 6, dictionary_bytes: 4095 },
        Compression::Deflate { level: 13 },
        Compression::Zstd { level: 23, window_log2: 17 },
        Compression::Zstd { level: 3, window_log2: 21 },
    ] {
        let error = compression.encoder().err();
        assert!(matches!(error, Some(EncodeError::Setting(_))), "{compression:?}: {error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_input_fits_any_output_space(
        pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 1..40), 1usize..60), 1..60),
        room in 1usize..6000,
    ) {
        let input: Vec<u8> = pieces.iter().flat_map(|(piece, count)| piece.repeat(*count)).collect();
        for compression in all() {
            let result = check(compression, &input, room);
            prop_assert!(result.is_ok(), "{:?}, room {}: {:?}", compression, room, result);
        }
    }
}

#[test]
fn encoders_accept_the_valid_levels_and_no_others() {
    for compressor in &COMPRESSORS {
        for level in 0..=u8::MAX {
            let settings = CompressorSettings {
                level: Some(level),
                dictionary_bytes: None,
                lz4_window_bytes: LZ4_WINDOW_MAX,
                pcluster_bytes: 4096,
            };
            let is_valid = compressor.levels.is_empty() || compressor.has_level(level);
            let is_accepted = compressor.compression(&settings).encoder().is_ok();
            assert_eq!(is_accepted, is_valid, "{} {level}", compressor.name);
        }
        assert!(compressor.levels.is_empty() || compressor.has_level(compressor.level_default));
    }
}
