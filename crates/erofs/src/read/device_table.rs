//! The extra devices of an image (docs/format/erofs.md, Devices).

use floe_image::{BlockReader, ByteRange, DeviceId, Error, Place, Result};

use super::superblock::{BlockSize, Superblock, SuperblockChecksum};
use crate::format;

/// A device table entry of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSlot {
    /// The identification of the device without padding: a digest or a file name; often empty.
    pub tag: Vec<u8>,
    /// The number of blocks.
    pub blocks: u64,
    /// The device's first block in the unified address space; 0 if it is not mapped there.
    pub uniaddr: u64,
}

/// The extra devices that the image in `reader` needs, in the order in which a reader must number them: the first is
/// [`DeviceId`] 1.
///
/// # Errors
/// The image is not EROFS, or its superblock or its device table breaks the format.
pub fn extra_devices(reader: &dyn BlockReader, checksum: SuperblockChecksum) -> Result<Vec<DeviceSlot>> {
    read_slots(reader, &Superblock::read(reader, checksum)?)
}

/// How many slots one read covers.
const SLOTS_AT_ONCE: usize = 4096;

pub(super) fn read_slots(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Vec<DeviceSlot>> {
    let raw = &superblock.raw;
    if !superblock.features.has(format::FEATURE_INCOMPAT_DEVICE_TABLE) || raw.extra_devices == 0 {
        return Ok(Vec::new());
    }
    let is_48bit = superblock.features.has(format::FEATURE_INCOMPAT_48BIT);
    let wide = |hi: u16, lo: u32| if is_48bit { u64::from(hi) << 32 | u64::from(lo) } else { u64::from(lo) };
    let slot_len = u64::try_from(format::DeviceSlot::SIZE).unwrap_or(u64::MAX);
    let start = u64::from(raw.devt_slotoff) * slot_len;
    let end = start + u64::from(raw.extra_devices) * slot_len;
    if end > reader.device_len(DeviceId(0))? {
        return Err(Error::corrupt("device table past the end of the image", Place::at(start)));
    }
    let (mut slots, mut position) = (Vec::new(), start);
    while position < end {
        let room = usize::try_from(end - position).unwrap_or(usize::MAX);
        let bytes = reader.stored(DeviceId(0), position, room.min(SLOTS_AT_ONCE * format::DeviceSlot::SIZE))?;
        slots.extend(bytes.chunks(format::DeviceSlot::SIZE).filter_map(format::DeviceSlot::from_prefix).map(|slot| {
            let tag_len = slot.tag.iter().position(|byte| *byte == 0).unwrap_or(slot.tag.len());
            DeviceSlot {
                tag: slot.tag.into_iter().take(tag_len).collect(),
                blocks: wide(slot.blocks_hi, slot.blocks_lo),
                uniaddr: wide(slot.uniaddr_hi, slot.uniaddr_lo),
            }
        }));
        position += u64::try_from(bytes.len()).unwrap_or(u64::MAX).max(slot_len);
    }
    Ok(slots)
}

/// The devices of an open image.
#[derive(Clone, Debug)]
pub(super) struct Devices {
    slots: Vec<DeviceSlot>,
    /// The extra devices follow the image in the same source, because none was given separately.
    is_flat: bool,
    block_size: BlockSize,
}

impl Devices {
    /// Reads the devices of `superblock`.
    ///
    /// # Errors
    /// The device table breaks the format, or `reader` has neither the image alone nor all of its devices.
    pub(super) fn read(reader: &dyn BlockReader, superblock: &Superblock) -> Result<Self> {
        let slots = read_slots(reader, superblock)?;
        let given = usize::from(reader.device_count()).saturating_sub(1);
        if given != 0 && given != slots.len() {
            let needed = slots.len();
            return Err(Error::unsupported(format!("{given} extra devices for an image that has {needed}")));
        }
        Ok(Self { is_flat: given == 0, slots, block_size: superblock.block_size })
    }

    /// The extra devices.
    pub(super) fn slots(&self) -> &[DeviceSlot] {
        &self.slots
    }

    /// Whether there are extra devices.
    pub(super) fn has_any(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The number of blocks of all extra devices.
    pub(super) fn block_count(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.blocks))
    }

    /// The source and offset of byte `position` of the unified address space.
    pub(super) fn resolve(&self, position: u64) -> (DeviceId, u64) {
        if self.is_flat {
            return (DeviceId(0), position);
        }
        for (slot, id) in self.slots.iter().zip(1u16..) {
            let start = self.block_size.position(slot.uniaddr);
            let past = start.and_then(|start| position.checked_sub(start));
            let Some(past) = past.filter(|_| slot.uniaddr != 0) else { continue };
            if self.block_size.position(slot.blocks).is_none_or(|len| past < len) {
                return (DeviceId(id), past);
            }
        }
        (DeviceId(0), position)
    }

    /// Whether `range` of the unified address space belongs to an extra device.
    pub(super) fn is_mapped(&self, range: ByteRange) -> bool {
        self.slots.iter().filter(|slot| slot.uniaddr != 0).any(|slot| {
            let (start, len) = (self.block_size.position(slot.uniaddr), self.block_size.position(slot.blocks));
            let end = start.zip(len).and_then(|(start, len)| start.checked_add(len));
            start.zip(end).is_some_and(|(start, end)| ByteRange::between(start, end).contains(range))
        })
    }

    /// The source and offset of byte `position` of the device that a chunk refers to; `None` if there is no such
    /// device.
    pub(super) fn resolve_on(&self, stored_id: u16, position: u64) -> Option<(DeviceId, u64)> {
        let mask = u16::try_from((self.slots.len() + 1).next_power_of_two() - 1).unwrap_or(u16::MAX);
        let id = if self.slots.is_empty() { 0 } else { stored_id & mask };
        let Some(index) = usize::from(id).checked_sub(1) else { return Some(self.resolve(position)) };
        let slot = self.slots.get(index)?;
        match self.is_flat {
            true => Some((DeviceId(0), self.block_size.position(slot.uniaddr)?.checked_add(position)?)),
            false => Some((DeviceId(id), position)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(is_flat: bool) -> Devices {
        let slot = |uniaddr, blocks| DeviceSlot { tag: Vec::new(), blocks, uniaddr };
        let block_size = BlockSize::from_log2(12).expect("4096 is a block size");
        Devices { slots: vec![slot(100, 10), slot(0, 5), slot(200, 1)], is_flat, block_size }
    }

    #[test]
    fn unified_addresses_find_their_device() {
        for (block, expected) in
            [(0, (0, 0)), (99, (0, 99)), (100, (1, 0)), (109, (1, 9)), (110, (0, 110)), (200, (3, 0))]
        {
            let (device, offset) = devices(false).resolve(block * 4096 + 7);
            assert_eq!((device.0, offset), (expected.0, expected.1 * 4096 + 7), "block {block}");
            assert_eq!(devices(true).resolve(block * 4096), (DeviceId(0), block * 4096));
        }
    }

    #[test]
    fn mapped_devices_contain_whole_ranges() {
        for (first, last, expected) in
            [(99, 100, false), (100, 109, true), (105, 110, false), (110, 110, false), (200, 200, true), (0, 4, false)]
        {
            let range = ByteRange::between(first * 4096, (last + 1) * 4096);
            assert_eq!(devices(true).is_mapped(range), expected, "blocks {first} to {last}");
        }
    }

    #[test]
    fn chunks_name_devices_by_masked_numbers() {
        for (stored, expected) in [(0, Some((0, 8))), (1, Some((1, 8))), (3, Some((3, 8))), (0xff02, Some((2, 8)))] {
            let found = devices(false).resolve_on(stored, 8);
            assert_eq!(found, expected.map(|(device, offset)| (DeviceId(device), offset)), "{stored:#x}");
        }
        assert_eq!(devices(true).resolve_on(3, 8), Some((DeviceId(0), 200 * 4096 + 8)));
        let mut two = devices(false);
        two.slots.pop();
        assert_eq!(two.resolve_on(3, 8), None);
    }
}
