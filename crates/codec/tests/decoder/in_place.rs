//! In-place decoding.

use floe_codec::Decoder;
use floe_image::{DecodeError, Decompressor, Encoding, Padding};

use crate::{encoder_sys, sample};

const LZ4: Encoding = Encoding::Lz4 { padding: Padding::Leading, window_bytes: 65_536 };

#[test]
fn with_the_margin_a_block_is_decoded_over_itself() {
    let mut random = sample::text(3000);
    random.iter_mut().enumerate().for_each(|(at, byte)| *byte = byte.wrapping_mul(167).wrapping_add((at * at) as u8));
    let samples = [sample::text(1), sample::text(100), sample::text(300_000), vec![7; 300_000], random];
    for data in samples {
        let block = encoder_sys::lz4(&data);
        for zeros in [0, 1, 3000] {
            let stored = [&vec![0; zeros], &block[..]].concat();
            let margin = Decoder::new().in_place_margin(&LZ4, stored.len()).unwrap();
            assert_eq!(margin, (stored.len() >> 8) + 32);
            for (slack, is_done) in [(margin, true), (margin + 1, true), (margin + 5000, true), (margin - 1, false)] {
                if data.len() + slack < stored.len() {
                    continue;
                }
                let mut buffer = vec![0x33; data.len() + slack - stored.len()];
                buffer.extend_from_slice(&stored);
                let before = buffer.clone();
                let done = Decoder::new().decode_in_place(&LZ4, data.len(), stored.len(), &mut buffer);
                assert_eq!(done, Ok(is_done), "{} {zeros} {slack}", data.len());
                if is_done {
                    assert!(buffer[..data.len()] == data, "{} {zeros} {slack}", data.len());
                } else {
                    assert!(buffer == before, "the buffer is unchanged");
                }
            }
        }
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let data = sample::text(5000);
    let stored = encoder_sys::lz4(&data);
    for (decoded_len, expected) in [(4999, false), (5001, false), (5000, true), (0, false)] {
        let mut buffer = vec![0; 6000];
        buffer.extend_from_slice(&stored);
        let decoded = Decoder::new().decode_in_place(&LZ4, decoded_len, stored.len(), &mut buffer);
        assert_eq!(decoded.is_ok(), expected, "{decoded:?}");
    }
    for (stored_len, decoded_len, len) in [(100, 10, 50), (usize::MAX, 10, 50), (10, usize::MAX, 50)] {
        assert_eq!(Decoder::new().decode_in_place(&LZ4, decoded_len, stored_len, &mut vec![0; len]), Ok(false));
    }
    let nothing = Decoder::new().decode_in_place(&LZ4, 10, 10, &mut [0; 100]);
    assert!(matches!(nothing, Err(DecodeError::Corrupt(_))), "{nothing:?}");
}

#[test]
fn only_lz4_with_a_known_end_decodes_in_place() {
    for (encoding, _) in sample::stored_forms(b"abc") {
        let can = matches!(encoding, Encoding::Lz4 { .. });
        assert_eq!(Decoder::new().in_place_margin(&encoding, 1000).is_some(), can, "{encoding:?}");
    }
    let trailing = Encoding::Lz4 { padding: Padding::Trailing, window_bytes: 65_536 };
    assert_eq!(Decoder::new().in_place_margin(&trailing, 1000), None);
    assert_eq!(Decoder::new().decode_in_place(&trailing, 10, 10, &mut [1; 1000]), Ok(false));
}
