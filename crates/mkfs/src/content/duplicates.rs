//! Finds files with equal content.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

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
/// Windows of this length in bytes that are all zeros are not hashed.
const WINDOW_LEN: usize = 64 << 10;
/// Files are grouped into jobs until they have this many bytes.
const JOB_BYTES: u64 = 4 << 20;

/// For each file, the first earlier file with the same content, if any; both as indexes into `files`. Only files of
/// equal sizes are read.
pub(crate) fn duplicates(
    files: &[Option<&Content>],
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Vec<Option<usize>>> {
    let mut by_size: HashMap<u64, usize> = HashMap::new();
    for content in files.iter().flatten() {
        *by_size.entry(content.size()).or_default() += 1;
    }
    let candidates: Vec<(usize, &Content)> = files
        .iter()
        .enumerate()
        .filter_map(|(place, content)| Some((place, (*content)?)))
        .filter(|(_, content)| content.size() > 0 && by_size.get(&content.size()).is_some_and(|count| *count > 1))
        .collect();
    let total = candidates.iter().map(|(_, content)| content.size()).sum();
    let mut rest = candidates.as_slice();
    let next = || {
        let mut bytes = 0;
        let count = rest.iter().take_while(|(_, content)| {
            let take = bytes < JOB_BYTES;
            bytes += content.size();
            take
        });
        let (job, after) = rest.split_at(count.count());
        rest = after;
        (!job.is_empty()).then_some((job, READ_LEN))
    };
    let worker = || {
        let mut buffer = zeros(READ_LEN)?;
        Ok(move |job: &[(usize, &Content)]| {
            job.iter().map(|(place, content)| Ok((*place, content.size(), digest(content, &mut buffer)?))).collect()
        })
    };
    let mut first: HashMap<[u8; 32], usize> = HashMap::new();
    let mut duplicate_of = vec![None; files.len()];
    let mut done = 0;
    workers::run(options.jobs, options.memory_len(), worker, next, |digests: Vec<(usize, u64, [u8; 32])>| {
        for (place, size, digest) in digests {
            done += size;
            let earlier = *first.entry(digest).or_insert(place);
            duplicate_of[place] = (earlier != place).then_some(earlier);
        }
        report(progress, Phase::Compare, done, total)
    })?;
    Ok(duplicate_of)
}

fn digest(content: &Content, buffer: &mut [u8]) -> Result<[u8; 32]> {
    let open = content.open()?;
    let mut hasher = Sha256::new();
    // Trailing zeros are not hashed, so the size is included.
    hasher.update(content.size().to_le_bytes());
    for range in content.data_ranges(WINDOW_LEN as u64)? {
        let mut offset = range.start;
        while offset < range.end {
            let len = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(buffer.len());
            open.read_at(offset, &mut buffer[..len])?;
            for window in buffer[..len].chunks(WINDOW_LEN) {
                // Zeros count as equal whether or not they are a hole.
                if window.iter().any(|byte| *byte != 0) {
                    hasher.update(offset.to_le_bytes());
                    hasher.update(window);
                }
                offset += window.len() as u64;
            }
        }
    }
    open.check_unchanged()?;
    Ok(hasher.finalize().into())
}
