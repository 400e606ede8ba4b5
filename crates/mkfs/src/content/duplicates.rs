//! Finds files with equal content.

use crate::{
    error::Result,
    memory::zeros,
    options::Options,
    progress::{Phase, Progress, report},
    tree::content::Content,
    workers,
};

/// The read size in bytes.
const READ_LEN: usize = 1 << 20;
/// Files are grouped into jobs until they have this many bytes.
const JOB_BYTES: u64 = 4 << 20;
/// The maximum number of files of a job.
const JOB_FILES: usize = 1024;

/// The files that have the content of earlier ones. Files have their indexes in tree order.
pub(crate) struct Duplicates {
    /// The earlier file for each file, or [`NONE`].
    earlier: Vec<u32>,
}

const NONE: u32 = u32::MAX;

/// The digest of a file, and its index.
type FileDigest = ([u8; 32], u32);

impl Duplicates {
    /// None of this many files is a duplicate.
    pub(super) fn none(count: usize) -> Self {
        Self { earlier: vec![NONE; count] }
    }

    /// Finds the first earlier file with the same content for each file. Only files of equal sizes are read.
    pub(super) fn find<'c>(
        count: usize,
        content: impl Fn(usize) -> Option<&'c Content> + Sync,
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<Self> {
        let candidates = of_equal_sizes(count, &content);
        let size = |place: &u32| content(*place as usize).map_or(0, Content::size);
        let total = candidates.iter().map(size).sum();
        let mut rest = candidates.as_slice();
        let next = || {
            let mut bytes = 0;
            let count = rest.iter().take(JOB_FILES).take_while(|place| {
                let take = bytes < JOB_BYTES;
                bytes += size(place);
                take
            });
            let (job, after) = rest.split_at(count.count());
            rest = after;
            (!job.is_empty()).then_some((job, READ_LEN))
        };
        let worker = || {
            let (content, mut buffer) = (&content, zeros(READ_LEN)?);
            Ok(move |job: &[u32]| -> Result<Vec<FileDigest>> {
                let files = job.iter().filter_map(|place| Some((*place, content(*place as usize)?)));
                files.map(|(place, content)| Ok((content.digest(&mut buffer)?, place))).collect()
            })
        };
        let mut found: Vec<FileDigest> = Vec::with_capacity(candidates.len());
        let mut done = 0;
        workers::run(options.jobs, options.memory_len(), worker, next, |digests: Vec<FileDigest>| {
            done += digests.iter().map(|(_, place)| size(place)).sum::<u64>();
            found.extend(digests);
            report(progress, Phase::Compare, done, total)
        })?;
        let mut duplicates = Self::none(count);
        found.sort_unstable();
        for same in found.chunk_by(|(left, _), (right, _)| left == right) {
            if let [(_, first), others @ ..] = same {
                others.iter().for_each(|(_, place)| duplicates.earlier[*place as usize] = *first);
            }
        }
        Ok(duplicates)
    }

    /// The number of files.
    pub(crate) fn len(&self) -> usize {
        self.earlier.len()
    }

    /// The earlier file with the content of a file.
    pub(crate) fn of(&self, place: usize) -> Option<usize> {
        self.earlier.get(place).filter(|earlier| **earlier != NONE).map(|earlier| *earlier as usize)
    }

    /// Each duplicate with the earlier file, in tree order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.len()).filter_map(|place| Some((place, self.of(place)?)))
    }
}

/// The files whose sizes others have, too.
fn of_equal_sizes<'c>(count: usize, content: &impl Fn(usize) -> Option<&'c Content>) -> Vec<u32> {
    let size = |place: usize| content(place).map(Content::size).filter(|size| *size > 0);
    let mut sizes: Vec<u64> = (0..count).filter_map(size).collect();
    sizes.sort_unstable();
    let is_shared = |size: u64| {
        let first = sizes.partition_point(|other| *other < size);
        sizes.get(first + 1) == Some(&size)
    };
    let candidates = (0..).zip(0..count).filter(|(_, place)| size(*place).is_some_and(is_shared));
    candidates.map(|(number, _)| number).collect()
}
