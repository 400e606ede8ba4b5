//! Encoded extents (docs/format/erofs.md, Encoded extents).

use floe_image::{ByteRange, Error, Place, Result};

use super::pcluster::{Coding, CompressedExtent, Pcluster};
use crate::{
    format::{self, EXTENT_PLEN_FMT_BIT, EXTENT_PLEN_MASK, EXTENT_PLEN_PARTIAL, Extent, MapHeader},
    read::{inode::Inode, length_sums, window::Window},
};

/// The map of a file with a record for each extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::read) struct EncodedExtents {
    /// The position of the first record.
    start: u64,
    form: Form,
    is_interlaced: bool,
    /// The last extent is in the packed inode.
    has_fragment: bool,
}

/// The format of the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// Length only: each extent has `1 << size_log2` bytes, and the pclusters are contiguous from `first` on.
    Lengths { size_log2: u8, first: u64 },
    /// Length and position: each extent has `1 << size_log2` bytes.
    Positions { size_log2: u8 },
    /// Length, position and file offset; sorted.
    FileOffsets { record_len: u64, count: u64 },
}

/// One record.
struct Record {
    plen: u32,
    position: u64,
    range: ByteRange,
    is_last: bool,
}

impl EncodedExtents {
    /// The map of the header that ends at `header_end`.
    ///
    /// # Errors
    /// The position of the first pcluster cannot be read, or the records are past the address space.
    pub(super) fn read(window: &mut Window<'_>, header: &MapHeader, header_end: u64, size_log2: u8) -> Result<Self> {
        let record_len_log2 = 2 + (header.h_advise >> format::ADVISE_EXTRECSZ_BIT & format::ADVISE_EXTRECSZ_MASK);
        let record_len = 1 << record_len_log2;
        let count_hi = u64::from(header.h_clusterbits) << 8 | u64::from(header.h_algorithmtype);
        let start = header_end.checked_next_multiple_of(record_len);
        let past_end = || Error::corrupt("extents past the address space", Place::at(header_end));
        let start =
            start.and_then(|start| start.checked_add(if record_len == 4 { 8 } else { 0 })).ok_or_else(past_end)?;
        Ok(Self {
            start,
            form: match record_len {
                4 => Form::Lengths { size_log2, first: u64::from_le_bytes(window.array(start - 8)?) },
                8 => Form::Positions { size_log2 },
                _ => Form::FileOffsets { record_len, count: count_hi << 32 | u64::from(header.h_u) },
            },
            is_interlaced: header.h_advise & format::ADVISE_INTERLACED_PCLUSTER != 0,
            has_fragment: header.h_advise & format::ADVISE_FRAGMENT_PCLUSTER != 0,
        })
    }

    /// The extent that contains byte `position`, which must be before the end of `inode`.
    ///
    /// # Errors
    /// The records cannot be read or break the format.
    pub(super) fn extent_at(&self, inode: &Inode, window: &mut Window<'_>, position: u64) -> Result<CompressedExtent> {
        let record = match self.form {
            Form::Lengths { size_log2, first } => self.by_length(inode, window, (size_log2, first), position)?,
            Form::Positions { size_log2 } => self.by_place(inode, window, size_log2, position)?,
            Form::FileOffsets { record_len, count } => {
                self.by_beginning(inode, window, (record_len, count), position)?
            }
        };
        Ok(CompressedExtent { range: record.range, source: self.source(&record, window) })
    }

    fn source(&self, record: &Record, window: &Window<'_>) -> Pcluster {
        if record.is_last && self.has_fragment {
            let has_upper = !matches!(self.form, Form::Lengths { .. });
            let upper = if has_upper { record.position << 32 } else { 0 };
            return Pcluster::Fragment { offset: upper | u64::from(record.plen) };
        }
        let len = u64::from(record.plen & EXTENT_PLEN_MASK);
        if len == 0 {
            return Pcluster::None;
        }
        let algorithm = u8::try_from(record.plen >> EXTENT_PLEN_FMT_BIT).unwrap_or(u8::MAX);
        let is_aligned = window.parameters().superblock.block_size.offset_within(record.position | len) == 0;
        let coding = match algorithm.checked_sub(1) {
            Some(number) => Coding::Algorithm(number),
            None if self.is_interlaced && is_aligned => Coding::Interlaced,
            None => Coding::Shifted,
        };
        let is_partial = record.plen & EXTENT_PLEN_PARTIAL != 0;
        Pcluster::Stored { position: record.position, len, inline: None, coding, is_partial }
    }

    /// The extent of index `number` if extents have a fixed size.
    fn fixed_range(inode: &Inode, size_log2: u8, number: u64) -> (ByteRange, bool) {
        let range = ByteRange::new(number << size_log2, 1 << size_log2);
        (range.intersection(ByteRange::new(0, inode.size)), range.end() >= inode.size)
    }

    fn by_length(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        (size_log2, first): (u8, u64),
        position: u64,
    ) -> Result<Record> {
        let number = position >> size_log2;
        let position_of = |number: u64| self.start.saturating_add(number.saturating_mul(4));
        // Fails before the scan if the last record is missing.
        window.read(position_of(number), 4)?;
        let sums = &window.parameters().length_sums;
        let (mut at, mut sum) = sums.before(inode.nid, number).max(window.length_sum_before(number));
        while at < number {
            let plen = u32::from_le_bytes(window.array(position_of(at))?);
            sum = sum.wrapping_add(u64::from(plen & EXTENT_PLEN_MASK));
            at += 1;
            if at % length_sums::STRIDE == 0 {
                sums.keep(inode.nid, at, sum);
            }
        }
        let plen = u32::from_le_bytes(window.array(position_of(number))?);
        window.keep_length_sum(number, sum);
        let (range, is_last) = Self::fixed_range(inode, size_log2, number);
        Ok(Record { plen, position: first.wrapping_add(sum), range, is_last })
    }

    fn by_place(&self, inode: &Inode, window: &mut Window<'_>, size_log2: u8, position: u64) -> Result<Record> {
        let number = position >> size_log2;
        let record: [u8; 8] = window.array(self.start.saturating_add(number.saturating_mul(8)))?;
        let record = u64::from_le_bytes(record);
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let (range, is_last) = Self::fixed_range(inode, size_log2, number);
        Ok(Record { plen: low(record), position: record >> 32, range, is_last })
    }

    /// The last record that begins at or before `position`. A hole precedes the first record.
    ///
    /// # Errors
    /// The records that the search compares are not sorted, or begin past the end of the file. Without this test, a
    /// search for another byte of the resulting range could find another record.
    fn by_beginning(
        &self,
        inode: &Inode,
        window: &mut Window<'_>,
        (record_len, count): (u64, u64),
        position: u64,
    ) -> Result<Record> {
        let (mut low, mut high) = (0, count);
        let mut found = Record { plen: 0, position: 0, range: ByteRange::new(0, 0), is_last: false };
        let (mut start, mut end) = (0, inode.size);
        while low < high {
            let middle = low + (high - low) / 2;
            let (record, beginning) = self.beginning(window, record_len, middle)?;
            if beginning < start || beginning > end {
                let rule = "extents are not sorted, or begin past the end of the file";
                return Err(Error::corrupt(rule, Place::inode_at(inode.nid, position)));
            }
            if beginning > position {
                (high, end) = (middle, beginning);
            } else {
                (low, start) = (middle + 1, beginning);
                found = Record { plen: record.plen, position: wide(record.pstart_hi, record.pstart_lo), ..found };
            }
        }
        found.is_last = low == count && count != 0;
        found.range = ByteRange::between(start, end);
        Ok(found)
    }

    fn beginning(&self, window: &mut Window<'_>, record_len: u64, number: u64) -> Result<(Extent, u64)> {
        let position = self.start.saturating_add(number.saturating_mul(record_len));
        let len = usize::try_from(record_len).unwrap_or(Extent::SIZE).min(Extent::SIZE);
        let mut bytes = [0; Extent::SIZE];
        for (byte, stored) in bytes.iter_mut().zip(window.read(position, len)?) {
            *byte = *stored;
        }
        let record = Extent::from_prefix(&bytes).unwrap_or_default();
        Ok((record, wide(record.lstart_hi, record.lstart_lo)))
    }
}

fn wide(hi: u32, lo: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}
