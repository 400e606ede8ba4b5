//! The cost of a miss at the source of an image.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::prefetch::thresholds::{
    FAR_LATENCY, FAR_WINDOW_MAX, TRANSFER_BYTES_MIN, TRANSFER_PS_INITIAL, TRANSFER_PS_MIN, WAITED_MIN,
};

/// The cost of a read that waits for the source: a latency and a time for each byte, learnt from reads that waited. The
/// latency is about 100 µs for a local disk and 80 ms for a registry.
#[derive(Debug)]
pub(crate) struct MissCost {
    /// Zero until it is known.
    latency_ns: AtomicU64,
    ps_per_byte: AtomicU64,
}

impl Default for MissCost {
    fn default() -> Self {
        Self { latency_ns: AtomicU64::new(0), ps_per_byte: AtomicU64::new(TRANSFER_PS_INITIAL) }
    }
}

impl MissCost {
    /// Learns from a read of `len` bytes that were not requested before. `asked_len` further bytes were requested with them,
    /// and may be transferred first.
    pub(crate) fn learn(&self, len: usize, asked_len: u64, waited: Duration) {
        if waited < WAITED_MIN {
            return;
        }
        let (waited_ns, latency_ns) = (waited.as_nanos() as u64, self.latency_ns.load(Relaxed));
        let ps_per_byte = self.ps_per_byte.load(Relaxed);
        if len < TRANSFER_BYTES_MIN || latency_ns == 0 {
            let transfer_ns = (len as u64 + asked_len) * ps_per_byte / 1000;
            let seen_ns = waited_ns.saturating_sub(transfer_ns).max(waited_ns / 2);
            self.latency_ns.store(average(latency_ns, seen_ns), Relaxed);
        } else {
            let seen_ps = waited_ns.saturating_sub(latency_ns) * 1000 / len as u64;
            self.ps_per_byte.store(average(ps_per_byte, seen_ps).max(TRANSFER_PS_MIN), Relaxed);
        }
    }

    /// The number of bytes that a far source transfers during the latency of a miss; 0 for a near source.
    pub(crate) fn window_bytes(&self) -> u64 {
        let latency_ns = self.latency_ns.load(Relaxed);
        if latency_ns < FAR_LATENCY.as_nanos() as u64 {
            return 0;
        }
        (latency_ns * 1000 / self.ps_per_byte.load(Relaxed)).min(FAR_WINDOW_MAX)
    }
}

/// A moving average that falls faster than it rises: a long wait may be a wait for a CPU, and then says little about the
/// source.
fn average(old: u64, seen: u64) -> u64 {
    match seen {
        _ if old == 0 => seen,
        seen if seen < old => old - (old - seen) / 4,
        seen => old + (seen - old) / 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_sizes_follow_latency_and_transfer_rate() {
        const MIB: u64 = 1 << 20;
        for (name, latency_us, bytes_per_us, expected) in [
            ("a local disk", 100, 1000, 0..=0),
            ("a busy disk", 900, 200, 0..=0),
            ("a near server", 4_000, 100, 300 << 10..=500 << 10),
            ("a registry", 80_000, 50, 3 * MIB..=5 * MIB),
            ("a fast registry", 80_000, 1000, 8 * MIB..=8 * MIB),
            ("a slow link", 80_000, 1, 40 << 10..=200 << 10),
        ] {
            let cost = MissCost::default();
            for len in [4 << 10, 128 << 10, 16 << 10, 512 << 10].repeat(30) {
                cost.learn(len, 0, Duration::from_micros(latency_us + len as u64 / bytes_per_us));
            }
            let window = cost.window_bytes();
            assert!(expected.contains(&window), "{name}: {window}");
        }
    }

    #[test]
    fn the_first_wait_counts_and_outliers_are_soon_forgotten() {
        let cost = MissCost::default();
        assert_eq!(cost.window_bytes(), 0);
        cost.learn(4096, 0, Duration::from_millis(80));
        assert!(cost.window_bytes() > 4 << 20);
        cost.learn(4096, 0, Duration::from_micros(10));
        assert!(cost.window_bytes() > 4 << 20, "the read did not wait");
        let near = MissCost::default();
        (0..10).for_each(|_| near.learn(4096, 0, Duration::from_micros(150)));
        near.learn(4096, 0, Duration::from_millis(20));
        assert_eq!(near.window_bytes(), 0);
    }
}
