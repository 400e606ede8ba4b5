//! The data of sparse members.

use super::{
    Archive,
    extensions::{Extensions, decimal},
    header::{self, BLOCK_LEN, BLOCK_SIZE},
};
use crate::{error::Result, tree::run::Run};

/// The longest map of format 1.0, in bytes.
const MAP_LEN_MAX: u64 = 64 << 20;
/// The longest number in a map of format 1.0, in digits.
const NUMBER_LEN_MAX: usize = 20;
/// The largest accepted size of a sparse file, in bytes.
const SIZE_MAX: u64 = 1 << 44;

/// Records that only sparse files have.
const MARKS: [&str; 5] =
    ["GNU.sparse.major", "GNU.sparse.map", "GNU.sparse.numblocks", "GNU.sparse.realsize", "GNU.sparse.size"];

/// The error for an unreadable map.
const NO_NUMBER: &str = "the map of a sparse file has an invalid number";

/// The runs of a file by offset and length, and the position of their data in the archive.
type ListedRuns = (Vec<(u64, u64)>, u64);

/// A sparse member: its runs of data and their location in the archive.
pub(super) struct SparseMap {
    /// The size of the file.
    pub(super) size: u64,
    pub(super) runs: Vec<Run>,
}

impl SparseMap {
    /// Reads the map in a GNU header and its continuation blocks, the first of which is at `position`; returns where
    /// the data begins.
    pub(super) fn of_gnu(
        archive: &Archive,
        header: &tar::GnuHeader,
        mut position: u64,
        path: &[u8],
    ) -> Result<ListedRuns> {
        let Some((mut listed, _)) = header::sparse_runs(&header.sparse) else {
            return Err(archive.unfit(path, NO_NUMBER));
        };
        let mut is_extended = header.isextended[0] != 0;
        while is_extended {
            let mut block = [0; BLOCK_LEN];
            archive.read_at(position, &mut block)?;
            position += BLOCK_SIZE;
            let more = header::sparse_block(&block);
            let Some((more_listed, _)) = header::sparse_runs(more.sparse()) else {
                return Err(archive.unfit(path, NO_NUMBER));
            };
            listed.extend(more_listed);
            is_extended = more.is_extended();
        }
        Ok((listed, position))
    }

    /// Reads the map in pax records; `None` if the member is not sparse. In format 1.0 the map precedes the data, both
    /// within the `stored_len` bytes at `position`; returns where the data begins.
    pub(super) fn of_pax(
        archive: &Archive,
        extensions: &Extensions,
        position: u64,
        stored_len: u64,
        path: &[u8],
    ) -> Result<Option<ListedRuns>> {
        match extensions.text("GNU.sparse.major") {
            Some(b"1") => return Self::of_data(archive, position, stored_len, path).map(Some),
            None | Some(b"0") => {}
            Some(_) => return Err(archive.unfit(path, "the version of its sparse format is unknown")),
        }
        let numbers = if let Some(map) = extensions.text("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = map.split(|byte| *byte == b',').map(decimal).collect();
            numbers
        } else if !extensions.sparse_numbers.is_empty() {
            Some(extensions.sparse_numbers.clone())
        } else if extensions.text("GNU.sparse.numblocks").and_then(decimal) == Some(0) {
            Some(Vec::new())
        } else if MARKS.iter().any(|mark| extensions.has(mark)) {
            return Err(archive.unfit(path, "it is a sparse file without a map"));
        } else {
            return Ok(None);
        };
        let numbers = numbers.filter(|numbers| numbers.len() % 2 == 0);
        let numbers = numbers.ok_or_else(|| archive.unfit(path, NO_NUMBER))?;
        Ok(Some((numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(), position)))
    }

    /// Reads a map of format 1.0: one decimal number per line, first the number of runs, then offset and length of
    /// each.
    fn of_data(archive: &Archive, position: u64, stored_len: u64, path: &[u8]) -> Result<ListedRuns> {
        let (mut numbers, mut line, mut at) = (Vec::new(), Vec::new(), 0);
        let mut wanted = 1;
        while numbers.len() < wanted {
            if at >= stored_len || at >= MAP_LEN_MAX {
                return Err(archive.unfit(path, "the map of a sparse file is truncated"));
            }
            let mut block = [0; BLOCK_LEN];
            archive.read_at(position + at, &mut block)?;
            at += BLOCK_SIZE;
            for byte in block {
                if byte != b'\n' {
                    if line.len() == NUMBER_LEN_MAX {
                        return Err(archive.unfit(path, NO_NUMBER));
                    }
                    line.push(byte);
                    continue;
                }
                let Some(number) = decimal(&line) else { return Err(archive.unfit(path, NO_NUMBER)) };
                line.clear();
                numbers.push(number);
                if numbers.len() == 1 {
                    wanted = usize::try_from(number).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(1);
                }
                if numbers.len() == wanted {
                    break;
                }
            }
        }
        let listed = numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        Ok((listed, position + at))
    }

    /// Validates a map for a file of `size` bytes with `stored_len` bytes of data at `position`.
    pub(super) fn new(
        listed: &[(u64, u64)],
        size: u64,
        position: u64,
        stored_len: u64,
    ) -> std::result::Result<Self, &'static str> {
        if size > SIZE_MAX {
            return Err("a sparse file is larger than 16 TiB");
        }
        let (mut end, mut data_position) = (0, position);
        let mut runs = Vec::with_capacity(listed.len());
        for (offset, len) in listed.iter().copied().filter(|(_, len)| *len > 0) {
            if offset < end {
                return Err("the parts of a sparse file overlap");
            }
            end =
                offset.checked_add(len).filter(|end| *end <= size).ok_or("a part of a sparse file exceeds its end")?;
            runs.push(Run { offset, len, position: data_position });
            data_position += len;
        }
        if data_position - position != stored_len {
            return Err("the parts of a sparse file do not match the length of its data");
        }
        Ok(Self { size, runs })
    }
}
