//! Prefix sums of stored lengths, for extents whose records consist of a length only.

use floe_image::Nid;
use floe_sync::Mutex;

/// The number of records from one kept sum to the next.
pub(super) const STRIDE: u64 = 1024;
/// The maximum number of files with sums.
const FILES_MAX: usize = 16;
/// The maximum number of sums per file: enough for 67 million extents.
const SUMS_MAX: usize = 1 << 16;

/// The sum of stored lengths before every [`STRIDE`]th extent, for the most recently read files.
///
/// Without the sums, locating an extent reads half of the index on average. The sums take at most 8 MiB.
#[derive(Default)]
pub(super) struct LengthSums {
    /// The most recently used file comes last.
    files: Mutex<Vec<(Nid, Vec<u64>)>>,
}

impl LengthSums {
    /// The last record at or before `number` with a known sum, and that sum; 0 and 0 if there is none.
    pub(super) fn before(&self, nid: Nid, number: u64) -> (u64, u64) {
        let mut files = self.files.lock();
        let Some(at) = files.iter().position(|(file, _)| *file == nid) else { return (0, 0) };
        let file = files.remove(at);
        let wanted = usize::try_from(number / STRIDE).unwrap_or(usize::MAX).min(file.1.len());
        let sum = wanted.checked_sub(1).and_then(|last| file.1.get(last)).copied().unwrap_or(0);
        files.push(file);
        (u64::try_from(wanted).unwrap_or(0) * STRIDE, sum)
    }

    /// Keeps the sum before record `number` if it is the next missing one.
    pub(super) fn keep(&self, nid: Nid, number: u64, sum: u64) {
        let Some(index) = (number / STRIDE).checked_sub(1).filter(|_| number.is_multiple_of(STRIDE)) else { return };
        let mut files = self.files.lock();
        match files.iter_mut().find(|(file, _)| *file == nid) {
            Some((_, sums)) if usize::try_from(index) == Ok(sums.len()) && sums.len() < SUMS_MAX => sums.push(sum),
            Some(_) => {}
            None if index == 0 => {
                if files.len() >= FILES_MAX {
                    files.remove(0);
                }
                files.push((nid, vec![sum]));
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_kept_in_order_and_for_some_files() {
        let sums = LengthSums::default();
        assert_eq!(sums.before(Nid(1), 5000), (0, 0));
        for (number, sum) in [(2048, 9), (1000, 7), (1024, 10), (3072, 99), (2048, 20)] {
            sums.keep(Nid(1), number, sum);
        }
        for (number, expected) in
            [(0, (0, 0)), (1023, (0, 0)), (1024, (1024, 10)), (2048, (2048, 20)), (9999, (2048, 20))]
        {
            assert_eq!(sums.before(Nid(1), number), expected, "{number}");
        }
        for nid in 2..20 {
            sums.keep(Nid(nid), 1024, nid);
        }
        assert_eq!(sums.before(Nid(1), 1024), (0, 0));
        assert_eq!(sums.before(Nid(19), 1024), (1024, 19));
        assert_eq!(sums.files.lock().len(), FILES_MAX);
    }
}
