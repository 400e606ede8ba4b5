//! The keys of the caches.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use floe_image::{DeviceId, Encoding, StoredBlock, StoredLen};

/// The identity of a source in the caches: the number of the volume or content that it belongs to, and its device number.
/// Numbers of volumes and contents are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SourceId(u64);

/// The identity of a block: all of a [`StoredBlock`] but the decoded length, which its users may know in part only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    source: SourceId,
    offset: u64,
    stored_len: StoredLen,
    encoding: Encoding,
}

/// The numbers under which the caches know the sources of a volume. Volumes of equal content share its devices; the sources
/// that a format derived are those of its volume alone.
#[derive(Debug)]
pub(crate) struct SourceNumbers {
    content: u64,
    volume: u64,
    /// The least device number of a derived source.
    derived_min: AtomicU32,
}

/// The number of bits of a device number.
const DEVICE_BITS: u32 = u16::BITS;

impl SourceId {
    /// The number of the volume or content.
    pub(crate) fn owner(self) -> u64 {
        self.0 >> DEVICE_BITS
    }
}

impl Key {
    pub(crate) fn of(source: SourceId, block: &StoredBlock) -> Self {
        let StoredBlock { offset, stored_len, encoding, .. } = *block;
        Self { source, offset, stored_len, encoding }
    }

    pub(crate) fn source(&self) -> SourceId {
        self.source
    }
}

impl SourceNumbers {
    /// The numbers of volume `volume`, whose content has the number `content`.
    pub(crate) fn new(content: u64, volume: u64) -> Self {
        Self { content, volume, derived_min: AtomicU32::new(u32::from(u16::MAX) + 1) }
    }

    /// The number of the volume.
    pub(crate) fn volume(&self) -> u64 {
        self.volume
    }

    pub(crate) fn id(&self, device: DeviceId) -> SourceId {
        let owner = if self.is_derived(device) { self.volume } else { self.content };
        SourceId(owner << DEVICE_BITS | u64::from(device.0))
    }

    /// Notes that a format derived the source with this number from other ones.
    pub(crate) fn note_derived(&self, device: DeviceId) {
        self.derived_min.fetch_min(device.0.into(), Relaxed);
    }

    /// Whether a format derived this source from other ones.
    pub(crate) fn is_derived(&self, device: DeviceId) -> bool {
        u32::from(device.0) >= self.derived_min.load(Relaxed)
    }

    /// Whether there are derived sources.
    pub(crate) fn has_derived(&self) -> bool {
        self.is_derived(DeviceId(u16::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_equal_content_share_its_devices_alone() {
        let volumes = [1, 2].map(|volume| SourceNumbers::new(7, volume));
        let ids = |device| volumes.each_ref().map(|numbers| numbers.id(DeviceId(device)));
        assert!(ids(0)[0] == ids(0)[1] && ids(0) != ids(1) && !volumes[0].has_derived());
        volumes.iter().for_each(|numbers| numbers.note_derived(DeviceId(u16::MAX)));
        assert_eq!(ids(u16::MAX).map(SourceId::owner), [1, 2]);
        assert_eq!(ids(u16::MAX - 1).map(SourceId::owner), [7, 7]);
    }
}
