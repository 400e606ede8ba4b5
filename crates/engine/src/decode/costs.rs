//! The measured cost of decoding on this machine.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use floe_image::{Encoding, StoredBlock};

/// The weight of the previous average when a new decode is learnt, in sixteenths.
const OLD_PARTS_OF_16: u64 = 15;

/// The assumed cost of each codec class before its first decode, in picoseconds for each decoded byte.
const INITIAL_PS_PER_BYTE: [u64; 5] = [100, 500, 2_000, 5_000, 15_000];

/// The cost of decoding on this machine, in picoseconds for each decoded byte, as a moving average for each class of
/// codecs.
#[derive(Debug)]
pub(crate) struct DecodeCosts {
    ps_per_byte: [AtomicU64; 5],
}

impl DecodeCosts {
    pub(crate) fn new() -> Self {
        Self { ps_per_byte: INITIAL_PS_PER_BYTE.map(AtomicU64::new) }
    }

    /// Estimates how long `block` takes to decode.
    pub(crate) fn estimate(&self, block: &StoredBlock) -> Duration {
        let ps_per_byte = self.ps_per_byte[class(&block.encoding)].load(Relaxed);
        Duration::from_nanos(u64::from(block.decoded_len.bytes()) * ps_per_byte / 1000)
    }

    /// Learns from a decode of `len` bytes. One sample counts as at most four times the old average, so that a thread
    /// that was interrupted during its decode hardly distorts it.
    pub(crate) fn learn(&self, encoding: &Encoding, len: usize, latency: Duration) {
        if len == 0 {
            return;
        }
        let cell = &self.ps_per_byte[class(encoding)];
        let old = cell.load(Relaxed);
        let seen = (latency.as_nanos() as u64).saturating_mul(1000) / len as u64;
        let seen = seen.min(old.saturating_mul(4).max(1));
        cell.store((old * OLD_PARTS_OF_16 + seen * (16 - OLD_PARTS_OF_16)) / 16, Relaxed);
    }
}

/// The index of an encoding's class.
fn class(encoding: &Encoding) -> usize {
    encoding.effort() as usize
}
