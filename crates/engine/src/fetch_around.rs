//! Bytes of a source that stand around those that had to be waited for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use floe_image::{ByteRange, DeviceId};

/// How many windows are remembered as asked for.
const REMEMBERED_COUNT: usize = 4096;

/// Has the source bring what stands around bytes that had to be waited for, with the same wait.
///
/// What a device takes to bring some tens of KiB is hardly more than what it takes to bring one block, and what a
/// program wants next mostly stands near: so does the kernel when a mapped file is touched. A window is asked for once;
/// what memory lets go of it later comes back piece by piece.
pub(crate) struct FetchAround {
    window_bytes: u64,
    asked: Box<[AtomicU64]>,
}

impl FetchAround {
    /// Windows of so many bytes, aligned to that; none if it is zero.
    pub(crate) fn new(window_bytes: u64) -> Self {
        let count = if window_bytes == 0 { 0 } else { REMEMBERED_COUNT };
        Self { window_bytes, asked: (0..count).map(|_| AtomicU64::new(u64::MAX)).collect() }
    }

    /// What to ask for before `wanted` is read: its window, unless that was asked for, or is no more than is wanted.
    pub(crate) fn window(&self, device: DeviceId, wanted: ByteRange) -> Option<ByteRange> {
        if wanted.len() >= self.window_bytes || self.window_bytes == 0 {
            return None;
        }
        let number = wanted.offset() / self.window_bytes;
        let key = number ^ (u64::from(device.0) << 48);
        let asked = self.asked.get(key as usize % REMEMBERED_COUNT)?;
        (asked.swap(key, Relaxed) != key).then(|| ByteRange::new(number * self.window_bytes, self.window_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_asked_for_once() {
        let around = FetchAround::new(65536);
        let window = |offset, len| around.window(DeviceId(0), ByteRange::new(offset, len));
        assert_eq!(window(70_000, 4096), Some(ByteRange::new(65536, 65536)));
        assert_eq!(window(65536, 4096), None, "it was asked for");
        assert_eq!(window(0, 65536), None, "that is a window by itself");
        assert_eq!(window(1 << 40, 1), Some(ByteRange::new(1 << 40, 65536)));
        assert_eq!(around.window(DeviceId(1), ByteRange::new(65536, 4096)), Some(ByteRange::new(65536, 65536)));
        assert_eq!(FetchAround::new(0).window(DeviceId(0), ByteRange::new(0, 1)), None);
    }
}
