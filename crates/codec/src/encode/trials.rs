//! Fills an output with codecs that can only compress a complete input.

use super::Fit;

/// If less than one part in this many of the output is free, another trial is not worthwhile.
const SLACK_PARTS: usize = 100;
/// The maximum number of corrections after the first estimate.
const CORRECTIONS_MAX: usize = 4;

/// The input length of a trial and the length of its output.
#[derive(Clone, Copy, Default)]
struct Point {
    len: usize,
    produced: usize,
}

/// Fills `output` with as much of `input` as fits, by an estimate and a few corrections. `compress` writes its complete
/// input into the buffer, or returns `None` if the buffer is too small.
pub(super) fn fit_by_trials(
    input: &[u8],
    output: &mut [u8],
    trial: &mut Vec<u8>,
    expected_len: usize,
    mut compress: impl FnMut(&[u8], &mut [u8]) -> Option<usize>,
) -> Fit {
    let room = output.len();
    // An output slightly beyond the limit shows how much to cut; a mere failure would not.
    trial.resize(room + room / 4 + 64, 0);
    let (mut fits, mut exceeds) = (Point::default(), None::<Point>);
    let mut len = expected_len.clamp(1, input.len());
    for _ in 0..=CORRECTIONS_MAX {
        match compress(&input[..len], trial) {
            Some(produced) if produced <= room => {
                output[..produced].copy_from_slice(&trial[..produced]);
                fits = Point { len, produced };
                if len == input.len() || room - produced <= room / SLACK_PARTS {
                    break;
                }
            }
            Some(produced) => exceeds = Some(Point { len, produced }),
            None => exceeds = Some(Point { len, produced: 0 }),
        }
        let next = next_len(room, fits, exceeds);
        let least = fits.len + 1;
        let most = exceeds.map_or(input.len(), |exceeds| exceeds.len - 1);
        if least > most {
            break;
        }
        len = next.clamp(least, most);
    }
    Fit { consumed: fits.len, produced: fits.produced }
}

fn next_len(room: usize, fits: Point, exceeds: Option<Point>) -> usize {
    match exceeds {
        None => scaled(fits.len, room, fits.produced) * 127 / 128,
        // The trial shows only that this input is far too long.
        Some(exceeds) if exceeds.produced == 0 && fits.len == 0 => (exceeds.len * 5 / 8).min(room * 4),
        Some(exceeds) if exceeds.produced == 0 => fits.len.midpoint(exceeds.len),
        // The last bytes of a block often cost more than its average.
        Some(exceeds) if fits.len == 0 => {
            let surplus = scaled(exceeds.produced - room, exceeds.len, exceeds.produced) * 2;
            exceeds.len.saturating_sub(surplus + exceeds.len / 64)
        }
        Some(exceeds) => {
            let gap = scaled(exceeds.len - fits.len, room - fits.produced, exceeds.produced - fits.produced);
            fits.len + gap - gap / 16
        }
    }
}

/// `len` times `numerator` / `denominator`.
pub(super) fn scaled(len: usize, numerator: usize, denominator: usize) -> usize {
    let scaled = (len as u128) * (numerator as u128) / (denominator.max(1) as u128);
    usize::try_from(scaled).unwrap_or(usize::MAX)
}
