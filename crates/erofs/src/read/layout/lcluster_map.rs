//! From lclusters to extents (docs/format/erofs.md, Lclusters).

use floe_image::{ByteRange, Error, Place, Result};

use super::{
    Head, HeadKind, Lcluster, Loaded,
    compact_index::CompactIndex,
    full_index,
    pcluster::{Coding, CompressedExtent, Pcluster},
};
use crate::{
    format::{self, MapHeader, PCLUSTER_MAX_DSIZE},
    read::{inode::Inode, window::Window},
};

/// The violated rule of an extent above 12 MiB. The limit also bounds the search for the head of an extent.
const DECODES_TO_TOO_MUCH: &str = "pcluster decodes to more than 12 MiB";

/// The least distance that the entries of a longer fragment lead back on average. They state at least 2,047 where the head is
/// farther away.
const LONG_STEP_MIN: u64 = 1024;

/// The violated rule of a block count elsewhere than in the entry after a head. Reads that begin there would use it.
const MISPLACED_BLOCK_COUNT: &str = "block count that does not follow the head of an extent";

/// Why the kernel refuses a fragment after a head of uncompressed data: it compares the length with that of the pcluster, 0.
const PLAIN_FRAGMENT: &str = "fragment is marked as uncompressed data: the kernel refuses to read it";

/// Why the kernel refuses the last lcluster of a file: it does not cut the extent at the file's end.
const PLAIN_PAST_END: &str =
    "uncompressed data is shorter than the lclusters of its extent: the kernel refuses to read the last one";

/// The lcluster index of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) enum Index {
    /// 8-byte records.
    Full { start: u64, counts_blocks: bool },
    /// Packs.
    Compact(CompactIndex),
}

/// The map of a file with an lcluster index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct LclusterMap {
    pub(super) index: Index,
    pub(super) lcluster_size_log2: u8,
    /// Whether pclusters of the first and of the second algorithm may have several blocks.
    pub(super) has_big_pclusters: [bool; 2],
    /// The numbers of the first and of the second algorithm.
    pub(super) algorithms: [u8; 2],
    pub(super) is_interlaced: bool,
    /// The last extent, if it has no pcluster in the data area.
    pub(super) tail: Option<Tail>,
}

/// The last extent of a file, if it has no pcluster in the data area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct Tail {
    /// The lcluster in which it begins.
    head: u64,
    /// Whether its head is that of uncompressed data.
    is_plain: bool,
    place: TailPlace,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TailPlace {
    /// Inline, after the index.
    Inline { position: u64, len: u64 },
    /// In the packed inode.
    Fragment { offset: u64 },
}

/// The head of an extent, with the results of the search for it.
struct ExtentHead {
    head: Head,
    number: u64,
    /// The block count of the pcluster, if the search read the entry that states it.
    block_count: Option<u64>,
    /// An lcluster after the position, at or before the next head.
    next: Next,
}

enum Next {
    /// The extent ends at this byte.
    End(u64),
    /// The next head is in this lcluster or later.
    From(u64),
}

impl LclusterMap {
    /// Adds the tail that `header` describes.
    ///
    /// # Errors
    /// The index of the last lcluster cannot be read or breaks the format.
    pub(super) fn with_tail(self, inode: &Inode, header: &MapHeader, window: &mut Window<'_>) -> Result<Self> {
        let is_fragment = header.h_advise & format::ADVISE_FRAGMENT_PCLUSTER != 0;
        let inline_len = match header.h_advise & format::ADVISE_INLINE_PCLUSTER {
            0 => 0,
            _ => u64::from(header.h_u >> 16),
        };
        let Some(last) = inode.size.checked_sub(1).filter(|_| is_fragment || inline_len != 0) else { return Ok(self) };
        let record_end = self.load(inode, window, last >> self.lcluster_size_log2)?.record_end;
        let found = self.head_of(inode, window, last, is_fragment)?;
        let place = if is_fragment {
            let upper = if matches!(self.index, Index::Full { .. }) { found.head.block << 32 } else { 0 };
            TailPlace::Fragment { offset: upper | u64::from(header.h_u) }
        } else {
            let block_size = window.parameters().superblock.block_size;
            if block_size.offset_within(record_end) + inline_len > block_size.bytes() {
                let place = Place::inode_at(inode.nid, record_end);
                return Err(Error::corrupt("inline pcluster crosses a block's end", place));
            }
            TailPlace::Inline { position: record_end, len: inline_len }
        };
        let is_plain = found.head.kind == HeadKind::Plain;
        Ok(Self { tail: Some(Tail { head: found.number, is_plain, place }), ..self })
    }

    /// The extent that contains byte `position`, which must be before the end of `inode`.
    ///
    /// # Errors
    /// The index cannot be read or breaks the format.
    pub(super) fn extent_at(&self, inode: &Inode, window: &mut Window<'_>, position: u64) -> Result<CompressedExtent> {
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(inode.nid, position));
        let has_fragment = self.tail.is_some_and(|tail| matches!(tail.place, TailPlace::Fragment { .. }));
        let found = self.head_of(inode, window, position, has_fragment)?;
        let is_fragment = has_fragment && self.tail_at(found.number).is_some();
        if !is_fragment && position.saturating_sub(self.start_of(found.number)) > PCLUSTER_MAX_DSIZE {
            return Err(corrupt(DECODES_TO_TOO_MUCH));
        }
        let start = self.start_of(found.number) + found.head.offset;
        let end = match found.next {
            Next::End(end) => end,
            Next::From(_) if is_fragment => inode.size,
            Next::From(next) => self.next_head(inode, window, found.number, next)?,
        };
        let range = ByteRange::between(start, end.min(inode.size));
        if position < start || position >= range.end() {
            return Err(corrupt("index has a gap between extents"));
        }
        if let Some(Tail { place: TailPlace::Fragment { offset }, .. }) = self.tail_at(found.number) {
            return Ok(CompressedExtent { range, source: Pcluster::Fragment { offset } });
        }
        let (position, len, inline) = match self.tail_at(found.number) {
            Some(Tail { place: TailPlace::Inline { position, len }, .. }) => (position, len, Some(inode.space)),
            _ => match self.block_count(inode, window, &found)? {
                0 => return Ok(CompressedExtent { range, source: Pcluster::None }),
                count => {
                    let block_size_log2 = window.parameters().superblock.block_size.log2();
                    let place = found.head.block.checked_mul(1 << block_size_log2);
                    let place = place.ok_or(corrupt("pcluster past the address space"))?;
                    (place, count << block_size_log2, None)
                }
            },
        };
        let [first, second] = self.algorithms;
        let coding = match found.head.kind {
            HeadKind::Plain if self.is_interlaced => Coding::Interlaced,
            HeadKind::Plain => Coding::Shifted,
            HeadKind::First => Coding::Algorithm(first),
            HeadKind::Second => Coding::Algorithm(second),
        };
        let source = Pcluster::Stored { position, len, inline, coding, is_partial: found.head.is_partial };
        Ok(CompressedExtent { range, source })
    }

    /// Checks the index entries inside an extent: each must lead to the extent's head. Reads that start inside an
    /// extent rely on these entries, but [`LclusterMap::extent_at`] skips most of them if `position` is the extent's
    /// first byte. Returns the number of entries.
    ///
    /// # Errors
    /// The index cannot be read or contradicts itself.
    pub(super) fn check_extent(&self, inode: &Inode, window: &mut Window<'_>, range: ByteRange) -> Result<u64> {
        let head = range.offset() >> self.lcluster_size_log2;
        let last = range.end().saturating_sub(1) >> self.lcluster_size_log2;
        // The head of the next extent is in the lcluster in which this one ends. The last extent may state any distance.
        let next = if range.end() < inode.size { range.end() >> self.lcluster_size_log2 } else { u64::MAX };
        let is_fragment = matches!(self.tail_at(head), Some(Tail { place: TailPlace::Fragment { .. }, .. }));
        if !is_fragment && last.saturating_sub(head) << self.lcluster_size_log2 > PCLUSTER_MAX_DSIZE {
            return Err(Error::corrupt(DECODES_TO_TOO_MUCH, Place::inode_at(inode.nid, range.offset())));
        }
        for number in head.saturating_add(1)..=last {
            let rule = match self.load(inode, window, number)?.lcluster {
                // The head belongs to the next extent, which may begin at the end of the file.
                Lcluster::Head(found) if self.start_of(number) + found.offset >= range.end() => continue,
                Lcluster::Head(_) => "head of an extent within another extent",
                Lcluster::NonHead { block_count: Some(_), .. } if number != head + 1 => MISPLACED_BLOCK_COUNT,
                Lcluster::NonHead { to_head, .. } if to_head == 0 || to_head > number - head => {
                    "wrong distance to the head of an extent"
                }
                Lcluster::NonHead { to_next_head, .. } if to_next_head > next - number => {
                    "wrong distance to the head of the next extent"
                }
                Lcluster::NonHead { .. } => continue,
            };
            return Err(Error::corrupt(rule, Place::inode_at(inode.nid, self.start_of(number))));
        }
        Ok(last.saturating_sub(head))
    }

    /// Why the kernel refuses to read `extent`, although it breaks no rule that reads rely on.
    ///
    /// # Errors
    /// The index of the last lcluster cannot be read or breaks the format.
    pub(super) fn kernel_refusal(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        extent: &CompressedExtent,
    ) -> Result<Option<&'static str>> {
        match extent.source {
            Pcluster::Fragment { .. } => Ok(self.tail.filter(|tail| tail.is_plain).map(|_| PLAIN_FRAGMENT)),
            Pcluster::Stored { len, inline: None, coding: Coding::Shifted | Coding::Interlaced, .. }
                if extent.range.end() == inode.size =>
            {
                let last = (inode.size - 1) >> self.lcluster_size_log2;
                let end = match self.load(inode, window, last)?.lcluster {
                    // mkfs.erofs writes a head at the end of the file.
                    Lcluster::Head(head) if self.start_of(last) + head.offset >= inode.size => inode.size,
                    _ => self.start_of(last + 1),
                };
                Ok((end - extent.range.offset() > len).then_some(PLAIN_PAST_END))
            }
            _ => Ok(None),
        }
    }

    fn tail_at(&self, head: u64) -> Option<Tail> {
        self.tail.filter(|tail| tail.head == head)
    }

    /// The position of lcluster `number`, which must begin before the file's end.
    fn start_of(&self, number: u64) -> u64 {
        number << self.lcluster_size_log2
    }

    /// Decodes the entry of lcluster `number` and checks it in isolation.
    fn load(&self, inode: &Inode, window: &mut Window<'_>, number: u64) -> Result<Loaded> {
        let (loaded, counts_blocks) = match &self.index {
            Index::Full { start, counts_blocks } => (full_index::load(window, *start, number)?, *counts_blocks),
            Index::Compact(index) => {
                (index.load(window, number).map_err(|error| error.for_inode(inode.nid))?, index.counts_blocks)
            }
        };
        let corrupt = |rule| Err(Error::corrupt(rule, Place::inode_at(inode.nid, loaded.record_end)));
        match loaded.lcluster {
            Lcluster::Head(head) if head.offset >> self.lcluster_size_log2 != 0 => {
                corrupt("extent begins past its lcluster")
            }
            Lcluster::NonHead { block_count: Some(_), .. } if !counts_blocks => {
                corrupt("block count without big pclusters")
            }
            _ => Ok(loaded),
        }
    }

    /// Finds the head of the extent that contains byte `position`. An extent of more than 12 MiB is an error, unless it
    /// `may_be_fragment`.
    fn head_of(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        position: u64,
        may_be_fragment: bool,
    ) -> Result<ExtentHead> {
        let number = position >> self.lcluster_size_log2;
        let (mut back, mut block_count, next) = match self.load(inode, window, number)?.lcluster {
            Lcluster::Head(head) => {
                let start = self.start_of(number) + head.offset;
                if position >= start {
                    return Ok(ExtentHead {
                        head,
                        number,
                        block_count: None,
                        next: Next::From(number.saturating_add(1)),
                    });
                }
                (1, None, Next::End(start))
            }
            Lcluster::NonHead { to_head, to_next_head, block_count } => {
                (to_head, block_count, Next::From(number.saturating_add(to_next_head.max(1))))
            }
        };
        let corrupt = |rule| Error::corrupt(rule, Place::inode_at(inode.nid, position));
        let limit = PCLUSTER_MAX_DSIZE >> self.lcluster_size_log2;
        let (mut at, mut step_count) = (number, 0_u64);
        loop {
            if back == 0 {
                return Err(corrupt("distance of zero to the head of an extent"));
            }
            at = at.checked_sub(back).ok_or(corrupt("head of an extent before the start of the file"))?;
            step_count += 1;
            let (distance, is_slow) = (number - at, step_count > limit + (number - at) / LONG_STEP_MIN);
            if distance > limit && (!may_be_fragment || is_slow) {
                return Err(corrupt(DECODES_TO_TOO_MUCH));
            }
            match self.load(inode, window, at)?.lcluster {
                Lcluster::Head(head) => return Ok(ExtentHead { head, number: at, block_count, next }),
                Lcluster::NonHead { .. } if block_count.is_some() => return Err(corrupt(MISPLACED_BLOCK_COUNT)),
                Lcluster::NonHead { to_head, block_count: known, .. } => (back, block_count) = (to_head, known),
            }
        }
    }

    /// Finds the end of the extent whose head is in lcluster `head`: the next head, searched from lcluster `next` on.
    fn next_head(&self, inode: &Inode, window: &mut Window<'_>, head: u64, mut next: u64) -> Result<u64> {
        loop {
            if next > (inode.size - 1) >> self.lcluster_size_log2 {
                return Ok(inode.size);
            }
            if (next - head - 1) << self.lcluster_size_log2 > PCLUSTER_MAX_DSIZE {
                let place = Place::inode_at(inode.nid, self.start_of(head));
                return Err(Error::corrupt(DECODES_TO_TOO_MUCH, place));
            }
            match self.load(inode, window, next)?.lcluster {
                Lcluster::Head(found) => return Ok(self.start_of(next) + found.offset),
                // Early releases of mkfs.erofs wrote a distance of 0 instead of 1.
                Lcluster::NonHead { to_next_head, .. } => next = next.saturating_add(to_next_head.max(1)),
            }
        }
    }

    /// The block count of an extent's pcluster; 0 for a hole.
    fn block_count(&self, inode: &Inode, window: &mut Window<'_>, found: &ExtentHead) -> Result<u64> {
        let [first_is_big, second_is_big] = self.has_big_pclusters;
        let is_big = if found.head.kind == HeadKind::First { first_is_big } else { second_is_big };
        let behind = found.number.saturating_add(1);
        if found.head.is_hole {
            return Ok(0);
        }
        // Without big pclusters for its algorithm, an extent has one block, whatever an entry says.
        if !is_big || behind > (inode.size - 1) >> self.lcluster_size_log2 {
            return Ok(1);
        }
        if let Some(count) = found.block_count {
            return Ok(count);
        }
        let rule = match self.load(inode, window, behind)?.lcluster {
            Lcluster::Head(_) => return Ok(1),
            Lcluster::NonHead { to_head: 1, block_count: Some(count), .. } => return Ok(count),
            Lcluster::NonHead { to_head: 1, .. } => "pcluster without a block count",
            Lcluster::NonHead { .. } => "wrong distance after the head of an extent",
        };
        Err(Error::corrupt(rule, Place::inode_at(inode.nid, self.start_of(found.number))))
    }
}
