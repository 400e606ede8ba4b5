//! The layout of the virtual image.

use floe_erofs::format::INODE_SLOT_SIZE;

/// The block size of the virtual image.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// log2 of [`BLOCK_BYTES`].
pub(crate) const BLOCK_LOG2: u8 = 12;

/// The first block of the metadata area. Nids count from it and have 64 bits. Data addresses have 32 bits, and
/// erofs-utils interpret the highest one as a sign, so data ends here.
pub(crate) const META_BLOCK: u32 = 0x7fff_f000;

/// The first byte of the metadata area.
pub(crate) const META_START: u64 = (META_BLOCK as u64) << BLOCK_LOG2;

/// The first block of the placeholder for directories that cannot be read: an entry that no program accepts, and then
/// blocks that cannot be read.
pub(crate) const BROKEN_DIRECTORY_BLOCK: u32 = 128;

/// The size of that placeholder. With three blocks, every lookup begins in the second.
pub(crate) const BROKEN_DIRECTORY_BYTES: u64 = 3 * BLOCK_BYTES;

/// The blocks from this one up to [`DATA_BLOCK`] can never be read.
pub(crate) const DEAD_BLOCK: u32 = 192;

/// The first block for data.
pub(crate) const DATA_BLOCK: u32 = 256;

/// The first block of the large file in block numbers that cover both files. All blocks of the virtual image are before
/// it.
pub(crate) const LARGE_BLOCK: u64 = 1 << 51;

/// The first byte of the large file in addresses that cover both files.
pub(crate) const LARGE_START: u64 = LARGE_BLOCK << BLOCK_LOG2;

/// The number of blocks in the large file.
pub(crate) const LARGE_BLOCK_COUNT: u32 = META_BLOCK;

/// The device number of the large file in chunk maps.
pub(crate) const LARGE_DEVICE: u16 = 1;

/// The maximum size of an inode with the data that follows it: 64 bytes of inode, 256 KiB of attributes, and two million chunks.
pub(crate) const HUGE_BYTES: u64 = 8 << 20;

/// The maximum size of the metadata area.
const META_BYTES_MAX: u64 = 1 << 62;

/// The class of an inode. The metadata area has one area per class, in which inodes are placed at the stride of the class in
/// the order of the original's inode numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// The root alone, so that its nid fits into the 16 bits of the superblock's field.
    Root,
    /// The placeholder for inodes that cannot be read.
    BrokenFile,
    /// The inode alone.
    Dense,
    /// An inode with little data behind it: a few attributes, the target of a symbolic link.
    Medium,
    /// An inode with a block of its own: a directory, a large file, a file with holes.
    Page,
    /// Placeholders for directories that cannot be read.
    BrokenDirectory,
    /// An inode with much data behind it.
    Huge,
}

impl Class {
    /// The distance between inodes of this class in bytes: a divisor or a multiple of [`BLOCK_BYTES`].
    pub(crate) const fn stride(self) -> u64 {
        match self {
            Self::Dense | Self::BrokenDirectory => 64,
            Self::Medium => 256,
            Self::Page | Self::BrokenFile => BLOCK_BYTES,
            Self::Root | Self::Huge => HUGE_BYTES,
        }
    }
}

/// The place of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) class: Class,
    /// The inode number in the original; 0 for a class with one inode.
    pub(crate) number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Area {
    class: Class,
    start: u64,
    end: u64,
}

/// Where each area begins. Offsets count from [`META_START`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    number_max: u64,
    areas: [Area; 7],
}

impl Geometry {
    /// The areas for an image whose largest inode number is `number_max`; `None` if that is too large.
    pub(crate) fn new(number_max: u64) -> Option<Self> {
        let count = number_max.checked_add(1)?;
        let mut start = 0u64;
        let mut area = |class: Class, count: u64| {
            let len = count.checked_mul(class.stride())?.checked_next_multiple_of(BLOCK_BYTES)?;
            let end = start.checked_add(len).filter(|end| *end <= META_BYTES_MAX)?;
            let area = Area { class, start, end };
            start = end;
            Some(area)
        };
        let areas = [
            area(Class::Root, 1)?,
            area(Class::BrokenFile, 1)?,
            area(Class::Dense, count)?,
            area(Class::Medium, count)?,
            area(Class::Page, count)?,
            area(Class::BrokenDirectory, count)?,
            area(Class::Huge, count)?,
        ];
        Some(Self { number_max, areas })
    }

    /// The largest inode number of the original.
    pub(crate) fn number_max(&self) -> u64 {
        self.number_max
    }

    /// The length of the virtual image.
    pub(crate) fn image_len(&self) -> u64 {
        META_START + self.areas.iter().map(|area| area.end).max().unwrap_or(0)
    }

    /// The nid of an inode at `within` bytes from the start of `slot`.
    pub(crate) fn nid(&self, slot: Slot, within: u64) -> u64 {
        (self.offset(slot) + within) / INODE_SLOT_SIZE
    }

    /// The offset of `slot`.
    pub(crate) fn offset(&self, slot: Slot) -> u64 {
        let start = self.areas.iter().find(|area| area.class == slot.class).map_or(0, |area| area.start);
        start + slot.number * slot.class.stride()
    }

    /// The block with the inode `nid` if inodes share it; `None` if the inode has a block of its own.
    pub(crate) fn shared_block_of(&self, nid: u64) -> Option<u64> {
        let offset = nid * INODE_SLOT_SIZE;
        let (slot, _) = self.slot_at(offset)?;
        matches!(slot.class, Class::Dense | Class::Medium).then(|| u64::from(META_BLOCK) + offset / BLOCK_BYTES)
    }

    /// The slot that contains byte `offset`, and the distance from the start of the slot; `None` past the last.
    pub(crate) fn slot_at(&self, offset: u64) -> Option<(Slot, u64)> {
        let area = self.areas.iter().find(|area| area.start <= offset && offset < area.end)?;
        let (past, stride) = (offset - area.start, area.class.stride());
        Some((Slot { class: area.class, number: past / stride }, past % stride))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_at_their_offsets() {
        for number_max in [0, 1, 63, 64, 1_000_000, 1 << 38] {
            let geometry = Geometry::new(number_max).expect("there is room");
            for class in [Class::Dense, Class::Medium, Class::Page, Class::BrokenDirectory, Class::Huge] {
                for number in [0, number_max / 2, number_max] {
                    let slot = Slot { class, number };
                    let offset = geometry.offset(slot);
                    assert_eq!(geometry.slot_at(offset + 63), Some((slot, 63)), "{number_max} {slot:?}");
                    assert_eq!(geometry.nid(slot, 0) * 32, offset);
                    assert!(META_START + offset < geometry.image_len());
                }
            }
            assert!(geometry.nid(Slot { class: Class::Root, number: 0 }, 4032) <= u64::from(u16::MAX));
            assert_eq!(geometry.slot_at(geometry.image_len() - META_START), None);
        }
        assert!(Geometry::new(u64::MAX).is_none() && Geometry::new(1 << 40).is_none());
    }
}
