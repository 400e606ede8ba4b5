//! Runs of requests: along the image, or along the listings.

use std::{collections::VecDeque, ops::Range};

/// The maximum number of runs of a kind that are followed at a time.
const RUNS_MAX: usize = 16;

/// The first window of a run or a walk, in blocks, including the marker.
pub(super) const WINDOW_MIN: u64 = 2;

/// The largest window, in blocks.
pub(super) const WINDOW_MAX: u64 = 256;

/// Requests along the image, or along the listings.
#[derive(Debug)]
struct Run {
    id: u64,
    /// The last request.
    reader: u64,
    /// The newest window. Until the second request, it is empty and begins at the block that continues the run.
    newest: Range<u64>,
    /// Whether the first block of the window is its marker.
    has_marker: bool,
    window: u64,
}

/// The runs that are followed.
#[derive(Default)]
pub(super) struct Runs {
    runs: VecDeque<Run>,
    last_id: u64,
}

impl Runs {
    /// Notes a request for a block, and returns the id of its run and the blocks to read ahead, if there are any. Only blocks
    /// before `end` are known. A request may skip up to `skipped_max` blocks and still continue a run.
    pub(super) fn note(&mut self, block: u64, end: u64, skipped_max: u64) -> Option<(u64, Range<u64>)> {
        let continues = |run: &Run| run.newest.start <= block && block <= run.newest.end + skipped_max;
        let continued = self.runs.iter().position(continues);
        let Some(mut run) = continued.and_then(|index| self.runs.remove(index)) else {
            self.last_id += 1;
            let (id, newest) = (self.last_id, block + 1..block + 1);
            self.runs.push_front(Run { id, reader: block, newest, has_marker: false, window: 0 });
            self.runs.truncate(RUNS_MAX);
            return None;
        };
        run.reader = block;
        // A reader inside the window is faster than the readahead, which then continues ahead of the reader.
        let is_marker = run.has_marker && block == run.newest.start;
        let is_inside = run.newest.contains(&block) && !is_marker;
        self.runs.push_front(run);
        let run = self.runs.front_mut().filter(|_| !is_inside)?;
        Some((run.id, run.extend(block, end))).filter(|(_, range)| !range.is_empty())
    }

    /// The block that was asked for last in a run.
    pub(super) fn reader(&self, id: u64) -> Option<u64> {
        self.runs.iter().find(|run| run.id == id).map(|run| run.reader)
    }
}

impl Run {
    /// Begins the next window, and returns its blocks without the marker. A window up to `end` has no marker: what follows is
    /// listed later, and the request for its first block continues the run.
    fn extend(&mut self, block: u64, end: u64) -> Range<u64> {
        let start = self.newest.end.max(block + 1);
        if start >= end {
            return start..start;
        }
        self.window = (2 * self.window).clamp(WINDOW_MIN, WINDOW_MAX);
        self.has_marker = end - start > self.window;
        self.newest = start..end.min(start + self.window);
        start + u64::from(self.has_marker)..self.newest.end
    }
}
