//! The layout of the virtual image.

use std::ops::Range;

use floe_erofs::format::INODE_SLOT_SIZE;
use floe_image::{FileSystem, Nid};

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

/// The first block for directories and symbolic links that do not fit behind their inodes. File data ends here.
pub(crate) const LISTING_BLOCK: u32 = 0x7000_0000;

/// The first block of the large file in block numbers that cover both files. All blocks of the virtual image are before
/// it.
pub(crate) const LARGE_BLOCK: u64 = 1 << 51;

/// The first byte of the large file in addresses that cover both files.
pub(crate) const LARGE_START: u64 = LARGE_BLOCK << BLOCK_LOG2;

/// The number of blocks in the large file.
pub(crate) const LARGE_BLOCK_COUNT: u32 = META_BLOCK;

/// The device number of the large file in chunk maps, and its name.
pub(crate) const LARGE_DEVICE: u16 = 1;
pub(crate) const LARGE_NAME: &str = "large";

/// The first block of the metadata area of a kept image, which begins with the header.
pub(crate) const KEPT_META_BLOCK: u32 = 1;

/// The first block of the addresses that a kept image gives to the data of small files. All of its own blocks are before it.
pub(crate) const KEPT_DATA_BLOCK: u32 = 0x1000_0000;

/// The first block of the addresses that a kept image gives to the original itself, up to [`META_BLOCK`].
pub(crate) const KEPT_PLAIN_BLOCK: u32 = 0x4000_0000;

/// The maximum size of an inode with the data that follows it: 64 bytes of inode, 256 KiB of attributes, and two million chunks.
pub(crate) const HUGE_BYTES: u64 = 8 << 20;

/// The space for a misnumbered inode: a block for the inode and its attributes, and one for the rest of a chunk map.
const MISNUMBERED_BYTES: u64 = 2 * BLOCK_BYTES;

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
    /// An inode that is not found by its number.
    Misnumbered,
}

impl Class {
    /// The distance between inodes of this class in bytes: a divisor or a multiple of [`BLOCK_BYTES`].
    pub(crate) const fn stride(self) -> u64 {
        match self {
            Self::Dense | Self::BrokenDirectory => 64,
            Self::Medium => 256,
            Self::Page | Self::BrokenFile => BLOCK_BYTES,
            Self::Misnumbered => MISNUMBERED_BYTES,
            Self::Root | Self::Huge => HUGE_BYTES,
        }
    }
}

/// The place of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) class: Class,
    /// The number of the inode; 0 for a class with one inode.
    pub(crate) number: u64,
}

#[derive(Clone, Debug)]
struct Area {
    class: Class,
    numbers: Range<u64>,
    start: u64,
    end: u64,
}

/// Where each area begins. Offsets count from [`META_START`].
///
/// It also numbers the inodes. The number of an inode is its inode number in the original, as long as the original finds the
/// inode by it. A misnumbered inode has a larger number, which follows from its nid. So different inodes never have the same
/// number, even in an original where they do.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    number_max: u64,
    misnumbered_nid_max: Option<Nid>,
    areas: [Area; 9],
}

impl Geometry {
    /// The areas for `original`; `None` if it can have too many inodes.
    pub(crate) fn of(original: &dyn FileSystem) -> Option<Self> {
        Self::new(original.inode_number_max(), original.misnumbered_nid_max())
    }

    fn new(number_max: u64, misnumbered_nid_max: Option<Nid>) -> Option<Self> {
        let count = number_max.checked_add(1)?;
        let misnumbered_count = misnumbered_nid_max.map_or(Some(0), |nid| nid.0.checked_add(1))?;
        let misnumbered = count..count.checked_add(misnumbered_count)?;
        let mut start = 0u64;
        let mut area = |class: Class, numbers: Range<u64>| {
            let count = numbers.end - numbers.start;
            let len = count.checked_mul(class.stride())?.checked_next_multiple_of(BLOCK_BYTES)?;
            let end = start.checked_add(len).filter(|end| *end <= META_BYTES_MAX)?;
            let area = Area { class, numbers, start, end };
            start = end;
            Some(area)
        };
        let areas = [
            area(Class::Root, 0..1)?,
            area(Class::BrokenFile, 0..1)?,
            area(Class::Dense, 0..count)?,
            area(Class::Medium, 0..count)?,
            area(Class::Page, 0..count)?,
            area(Class::BrokenDirectory, 0..count)?,
            area(Class::Huge, 0..count)?,
            area(Class::Misnumbered, misnumbered.clone())?,
            area(Class::BrokenDirectory, misnumbered)?,
        ];
        Some(Self { number_max, misnumbered_nid_max, areas })
    }

    /// The largest inode number of the original.
    pub(crate) fn number_max(&self) -> u64 {
        self.number_max
    }

    /// The number of a misnumbered inode. `None` if there is no such inode, or if the format finds all inodes by their numbers.
    pub(crate) fn misnumbered(&self, nid: Nid) -> Option<u64> {
        let nid = self.misnumbered_nid_max.filter(|max| nid <= *max).map(|_| nid.0)?;
        Some(self.number_max + 1 + nid)
    }

    /// The misnumbered inode with this number; `None` if the number is an inode number of the original.
    pub(crate) fn misnumbered_nid(&self, number: u64) -> Option<Nid> {
        number.checked_sub(self.number_max)?.checked_sub(1).map(Nid)
    }

    /// The place of directory `number`, if it needs one block.
    pub(crate) fn directory_slot(&self, number: u64) -> Slot {
        let class = if number > self.number_max { Class::Misnumbered } else { Class::Page };
        Slot { class, number }
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
        let is_its = |area: &&Area| area.class == slot.class && area.numbers.contains(&slot.number);
        let area = self.areas.iter().find(is_its);
        area.map_or(0, |area| area.start + (slot.number - area.numbers.start) * slot.class.stride())
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
        Some((Slot { class: area.class, number: area.numbers.start + past / stride }, past % stride))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_found_at_their_offsets() {
        for number_max in [0, 1, 63, 64, 1_000_000, 1 << 38] {
            let geometry = Geometry::new(number_max, None).expect("there is room");
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
        assert!(Geometry::new(u64::MAX, None).is_none() && Geometry::new(1 << 40, None).is_none());
        assert!(Geometry::new(1, Some(Nid(u64::MAX))).is_none());
    }

    #[test]
    fn misnumbered_inodes_have_places_of_their_own() {
        let references = (1 << 48) - 1;
        for (number_max, nid_max) in [(0, 0), (7, references), (u64::from(u32::MAX), references)] {
            let geometry = Geometry::new(number_max, Some(Nid(nid_max))).expect("there is room");
            let plain = Geometry::new(number_max, None).expect("there is room");
            let mut places = Vec::new();
            for nid in [0, nid_max / 2, nid_max] {
                let number = geometry.misnumbered(Nid(nid)).expect("a nid of the image");
                assert_eq!(geometry.misnumbered_nid(number), Some(Nid(nid)));
                for class in [Class::Misnumbered, Class::BrokenDirectory] {
                    let slot = Slot { class, number };
                    let offset = geometry.offset(slot);
                    assert_eq!(geometry.slot_at(offset + 63), Some((slot, 63)), "{number_max} {slot:?}");
                    assert!(META_START + offset >= plain.image_len() && META_START + offset < geometry.image_len());
                    places.push((nid, offset));
                }
            }
            places.sort_unstable_by_key(|(_, offset)| *offset);
            places.dedup();
            let is_apart = |pair: &[(u64, u64)]| pair[0].0 == pair[1].0 || pair[0].1 + 64 <= pair[1].1;
            assert!(places.windows(2).all(is_apart), "{places:?}");
            assert_eq!(geometry.misnumbered_nid(number_max), None);
            assert_eq!((geometry.misnumbered(Nid(nid_max + 1)), plain.misnumbered(Nid(0))), (None, None));
        }
    }
}
