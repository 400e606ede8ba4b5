//! What decoding costs on this machine.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use floe_image::{Encoding, StoredBlock};

/// How much of the old figure stays when a new one is learnt, in parts of 16.
const OLD_PARTS_OF_16: u64 = 15;

/// A codec that nothing is known of yet is taken to need this many picoseconds a byte.
const INITIAL_PS_PER_BYTE: [u64; 5] = [100, 500, 2_000, 5_000, 15_000];

/// What decoding costs on this machine, learnt from the decodes so far: picoseconds for each decoded byte, by codec.
#[derive(Debug)]
pub(crate) struct DecodeCosts {
    ps_per_byte: [AtomicU64; 5],
}

impl DecodeCosts {
    pub(crate) fn new() -> Self {
        Self { ps_per_byte: INITIAL_PS_PER_BYTE.map(AtomicU64::new) }
    }

    /// How long `block` will take to decode.
    pub(crate) fn estimate(&self, block: &StoredBlock) -> Duration {
        let ps_per_byte = self.ps_per_byte[class(&block.encoding)].load(Relaxed);
        Duration::from_nanos(u64::from(block.decoded_len.bytes()) * ps_per_byte / 1000)
    }

    /// Learns from a decode of `len` bytes. A thread that was interrupted meanwhile teaches little, since one figure
    /// moves the average by a sixteenth at most of four times itself.
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

/// Codecs whose cost is alike.
fn class(encoding: &Encoding) -> usize {
    match encoding {
        Encoding::Stored => 0,
        Encoding::Lz4 { .. } | Encoding::Lzo => 1,
        Encoding::Zstd { .. } => 2,
        Encoding::Deflate { .. } | Encoding::Zlib => 3,
        Encoding::MicroLzma { .. } | Encoding::LzmaAlone | Encoding::Xz { .. } => 4,
    }
}
