//! Statistics of an image.

use floe_image::FileType;

use super::{ExtentPlace, ExtentReport, InodeReport};

/// A histogram with bins 0, 1, 2 to 3, 4 to 7 and so on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: [u64; 65],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; 65] }
    }
}

impl Histogram {
    /// Counts a number.
    pub fn add(&mut self, number: u64) {
        let bits = usize::try_from(u64::BITS - number.leading_zeros()).unwrap_or(0);
        if let Some(count) = self.counts.get_mut(bits) {
            *count += 1;
        }
    }

    /// The smallest number of each bin and the count in it, from the first to the last nonempty bin.
    pub fn steps(&self) -> Vec<(u64, u64)> {
        let steps = self.counts.iter().zip(0u32..).map(|(count, bits)| match bits.checked_sub(1) {
            None => (0, *count),
            Some(shift) => (1 << shift, *count),
        });
        let steps: Vec<(u64, u64)> = steps.skip_while(|(_, count)| *count == 0).collect();
        let len = steps.iter().rposition(|(_, count)| *count != 0).map_or(0, |last| last + 1);
        steps.into_iter().take(len).collect()
    }
}

/// Statistics of a whole image. Each path counts, so a file with two names counts twice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Regular files.
    pub regular_files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Character devices.
    pub character_devices: u64,
    /// Block devices.
    pub block_devices: u64,
    /// Named pipes.
    pub fifos: u64,
    /// Sockets.
    pub sockets: u64,
    /// Inodes with compressed data, including those without a path.
    pub compressed: u64,
    /// Inodes with uncompressed data or without data.
    pub uncompressed: u64,
    /// The total size of all regular files, in bytes.
    pub original_bytes: u64,
    /// The space that they take in the image, in bytes.
    pub stored_bytes: u64,
    /// The sizes of regular files.
    pub file_sizes: Histogram,
    /// The space that regular files take in the image.
    pub stored_sizes: Histogram,
    /// The sizes of file extents, without holes.
    pub extent_sizes: Histogram,
    /// The space that encoded extents take in the image.
    pub pcluster_sizes: Histogram,
    /// The number of holes.
    pub holes: u64,
    /// The number of extents in the packed inode.
    pub fragments: u64,
}

impl Statistics {
    /// Counts an inode under one of its paths.
    pub fn add(&mut self, report: &InodeReport) {
        let count = match report.attr.file_type {
            FileType::Regular => &mut self.regular_files,
            FileType::Directory => &mut self.directories,
            FileType::Symlink => &mut self.symlinks,
            FileType::CharacterDevice => &mut self.character_devices,
            FileType::BlockDevice => &mut self.block_devices,
            FileType::Fifo => &mut self.fifos,
            FileType::Socket => &mut self.sockets,
        };
        *count += 1;
        if report.attr.file_type == FileType::Regular {
            self.original_bytes = self.original_bytes.saturating_add(report.attr.size);
            self.file_sizes.add(report.attr.size);
            self.add_special(report);
        } else {
            self.add_layout(report);
        }
    }

    /// Counts the space of an inode without a path: the packed or the metabox inode.
    pub fn add_special(&mut self, report: &InodeReport) {
        self.add_layout(report);
        self.stored_bytes = self.stored_bytes.saturating_add(report.stored_len);
        self.stored_sizes.add(report.stored_len);
    }

    fn add_layout(&mut self, report: &InodeReport) {
        *(if report.is_compressed() { &mut self.compressed } else { &mut self.uncompressed }) += 1;
    }

    /// Counts an extent.
    pub fn add_extent(&mut self, report: &ExtentReport) {
        match report.place {
            ExtentPlace::Hole => self.holes += 1,
            ExtentPlace::Fragment { .. } => self.fragments += 1,
            ExtentPlace::Stored { len, algorithm, .. } => {
                self.extent_sizes.add(report.range.len());
                if algorithm.is_some() {
                    self.pcluster_sizes.add(len);
                }
            }
        }
    }

    /// The number of paths counted.
    pub fn path_count(&self) -> u64 {
        let devices = self.character_devices + self.block_devices;
        self.regular_files + self.directories + self.symlinks + devices + self.fifos + self.sockets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_step_by_powers_of_two() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.steps(), []);
        for number in [1, 2, 3, 4, 7, 8, 1 << 20] {
            histogram.add(number);
        }
        let steps = histogram.steps();
        assert_eq!(&steps[..4], [(1, 1), (2, 2), (4, 2), (8, 1)]);
        assert_eq!((steps.len(), steps.last()), (21, Some(&(1 << 20, 1))));
        histogram.add(0);
        histogram.add(u64::MAX);
        assert_eq!((histogram.steps().first(), histogram.steps().last()), (Some(&(0, 1)), Some(&(1 << 63, 1))));
    }
}
