//! Zstandard: flushes shortly before the output is full and fills the rest in small steps.

use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, zstd_sys::ZSTD_EndDirective as Directive};

use super::{
    EncodeError, Encoder, Fit,
    trials::{fit_by_trials, scaled},
    zstd_sys,
};

/// An empty raw block with the last-block flag: 3 bytes, little-endian.
const LAST_BLOCK: [u8; 3] = [1, 0, 0];
/// The first estimate of the compression ratio, before any block is encoded.
const FIRST_RATIO: usize = 3;
/// The maximum number of flushes after the first one; each fills less of the remaining room.
const STEPS_MAX: usize = 5;
/// A step takes one part in this many less input than the estimate for the remaining room. One part in 16 would take a
/// seventh more time, because more steps overshoot and are repeated, and would fill no more.
const STEP_MARGIN_PARTS: usize = 5;
/// Room below this length in bytes, or below one part in [`REST_PARTS`] of the output, stays empty: another block would
/// take more bytes than it encodes.
const REST_MIN: usize = 72;
const REST_PARTS: usize = 700;
/// Empty room of more than one part in this many of the output is worth another pass.
const REDO_PARTS: usize = 80;
/// The maximum number of passes.
const PASSES_MAX: usize = 5;
/// The block size of the codec, in bytes.
const BLOCK_LEN: usize = 128 << 10;
/// Below this output length in bytes, the blocks that flushes create cost too much: complete frames are tried instead.
const STREAM_ROOM_MIN: usize = 24 << 10;

/// Levels use libzstd's parameters for inputs of this length in bytes. libzstd would choose them by the length of each
/// input, or assume unbounded input for streams. These parameters find shorter matches at the lower levels, which saves
/// 1.5 % in pclusters of 64 KiB.
const SETTINGS_BYTES: u64 = 256 << 10;

/// Zstandard.
pub(crate) struct ZstdEncoder {
    context: CCtx<'static>,
    trial: Vec<u8>,
    /// The compression ratio of the last blocks of this input, as input and output bytes.
    ratio: (usize, usize),
}

impl ZstdEncoder {
    /// Creates an encoder of this level (1 to 22) and log2 of the window size in bytes (10 to 20).
    ///
    /// # Errors
    /// The level or the window is out of range.
    pub(crate) fn new(level: u8, window_log2: u8) -> Result<Self, EncodeError> {
        if !(1..=22).contains(&level) {
            return Err(EncodeError::Setting("zstd level must be 1 to 22"));
        }
        if !(10..=20).contains(&window_log2) {
            return Err(EncodeError::Setting("zstd window must be a power of two from 1024 to 1048576 bytes"));
        }
        let mut context = CCtx::try_create().ok_or(EncodeError::NoMemory)?;
        let parameters =
            [CParameter::CompressionLevel(i32::from(level)), CParameter::WindowLog(u32::from(window_log2))];
        for parameter in parameters.into_iter().chain(zstd_sys::settings(level, SETTINGS_BYTES)) {
            context.set_parameter(parameter).map_err(|_| EncodeError::Codec("zstd refused a parameter"))?;
        }
        Ok(Self { context, trial: Vec::new(), ratio: (FIRST_RATIO, 1) })
    }

    /// Estimates how much input takes `room` bytes, from the ratio of the last block.
    fn expected_len(&self, room: usize) -> usize {
        scaled(room, self.ratio.0, self.ratio.1).max(1)
    }

    fn learn(&mut self, fit: Fit) {
        if fit.produced > 64 {
            self.ratio = (fit.consumed, fit.produced);
        }
    }

    fn whole_frame(&mut self, input: &[u8], output: &mut [u8]) -> Option<usize> {
        self.context.compress2(output, input).ok()
    }

    /// Feeds `input` to the open frame and flushes; returns the frame's length so far, or `None` past the end of the
    /// output.
    fn feed(&mut self, input: &[u8], output: &mut [u8], position: usize) -> Option<usize> {
        let mut input = InBuffer::around(input);
        let mut output = OutBuffer::around_pos(output, position);
        loop {
            let left = self.context.compress_stream2(&mut output, &mut input, Directive::ZSTD_e_flush).ok()?;
            if left == 0 {
                return Some(output.pos());
            }
            if output.pos() == output.capacity() {
                return None;
            }
        }
    }

    /// Fills a large output: encodes as many full blocks as certainly fit, flushes, and fills the remaining room in
    /// smaller and smaller steps. If a step overshoots and leaves much space, another pass starts from the better
    /// estimate.
    fn fit_by_flushes(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        let room = output.len().saturating_sub(LAST_BLOCK.len());
        let mut trial = std::mem::take(&mut self.trial);
        trial.resize(room + room / 2 + 1024, 0);
        let mut first_len = self.expected_len(room);
        first_len -= first_len / 20;
        if first_len > BLOCK_LEN {
            // The codec ends a block at this length in any case.
            first_len -= first_len % BLOCK_LEN;
        }
        let mut best = Fit::default();
        for _ in 0..PASSES_MAX {
            self.restart_frame()?;
            first_len = first_len.min(input.len());
            if first_len == 0 {
                break;
            }
            let (reached, better_len) = self.pass(input, &mut trial, room, first_len);
            if reached.consumed > best.consumed {
                output[..reached.produced].copy_from_slice(&trial[..reached.produced]);
                best = reached;
            }
            match better_len {
                Some(len) => first_len = len,
                None => break,
            }
        }
        if best.produced > 0 {
            output[best.produced..best.produced + LAST_BLOCK.len()].copy_from_slice(&LAST_BLOCK);
            best.produced += LAST_BLOCK.len();
        }
        self.trial = trial;
        self.restart_frame()?;
        Ok(best)
    }

    /// Makes one pass that begins with `first_len` bytes. Returns what fits, and the first length of another pass if
    /// one is worthwhile.
    fn pass(&mut self, input: &[u8], trial: &mut [u8], room: usize, first_len: usize) -> (Fit, Option<usize>) {
        let mut reached = match self.feed(&input[..first_len], trial, 0) {
            Some(len) if len <= room => Fit { consumed: first_len, produced: len },
            Some(len) => return (Fit::default(), Some(scaled(room, first_len, len) * 31 / 32)),
            None => return (Fit::default(), Some((first_len / 2).min(room * 4))),
        };
        for _ in 0..STEPS_MAX {
            let rest = room - reached.produced;
            if rest < REST_MIN.max(room / REST_PARTS) || reached.consumed == input.len() {
                break;
            }
            let expected = scaled(rest, reached.consumed, reached.produced);
            let step = (expected - expected / STEP_MARGIN_PARTS).max(64);
            let end = input.len().min(reached.consumed.saturating_add(step));
            match self.feed(&input[reached.consumed..end], trial, reached.produced) {
                Some(len) if len <= room => reached = Fit { consumed: end, produced: len },
                Some(len) if rest > room / REDO_PARTS => {
                    let more = scaled(end - reached.consumed, rest, len - reached.produced);
                    return (reached, Some(reached.consumed + more - more / 16 - first_len / 512));
                }
                None if rest > room / REDO_PARTS => {
                    return (reached, Some(reached.consumed.midpoint(end)));
                }
                _ => break,
            }
        }
        (reached, None)
    }

    fn restart_frame(&mut self) -> Result<(), EncodeError> {
        let reset = self.context.reset(ResetDirective::SessionOnly);
        reset.map(|_| ()).map_err(|_| EncodeError::Codec("zstd could not be reset"))
    }
}

impl Encoder for ZstdEncoder {
    fn restart(&mut self) {
        self.ratio = (FIRST_RATIO, 1);
    }

    fn encode_to_fit(&mut self, input: &[u8], output: &mut [u8]) -> Result<Fit, EncodeError> {
        if input.is_empty() || output.is_empty() {
            return Ok(Fit::default());
        }
        let expected = self.expected_len(output.len());
        if input.len() <= expected.saturating_add(expected / 4)
            && let Some(produced) = self.whole_frame(input, output)
        {
            return Ok(Fit { consumed: input.len(), produced });
        }
        let fit = if output.len() < STREAM_ROOM_MIN {
            let Self { context, trial, .. } = self;
            fit_by_trials(input, output, trial, expected, |input, trial| context.compress2(trial, input).ok())
        } else {
            self.fit_by_flushes(input, output)?
        };
        self.learn(fit);
        Ok(fit)
    }

    fn encode_whole(&mut self, input: &[u8], output: &mut [u8]) -> Result<Option<usize>, EncodeError> {
        Ok(self.whole_frame(input, output))
    }
}
