//! Keeps a window and the requested part of the decoded bytes of an LZ4 block.

/// Copies of up to this length, in bytes, are made in fixed steps that may write past their end.
const SHORT_LEN_MAX: usize = 32;
/// The length of such a step, in bytes.
const STEP_LEN: usize = 16;
/// The number of ring bytes that are saved at a time before they are overwritten.
const SAVED_LEN: usize = 1024;

/// The decoded bytes of a block. Byte `n` of the block is in the ring, at `n` modulo its length, if `n` is below
/// `skip`, and otherwise in the output.
pub(crate) struct Decoded<'a> {
    /// As long as the window, or as `skip` if that is less.
    ring: &'a mut [u8],
    /// The position of the next byte in the ring, until `skip` bytes are decoded.
    ring_at: usize,
    skip: usize,
    output: &'a mut [u8],
    /// The number of decoded bytes of the block.
    len: usize,
    /// Short copies may write past their end, up to this position in the ring. They overwrite the oldest bytes of the
    /// window. From the second round on, those bytes are still needed, so they are saved first.
    slack_end: usize,
    /// The position in the ring of the saved bytes, which end at `slack_end`.
    saved_at: usize,
    saved: [u8; SAVED_LEN],
}

impl<'a> Decoded<'a> {
    /// Creates the state before the first byte.
    pub(crate) fn new(ring: &'a mut [u8], skip: usize, output: &'a mut [u8]) -> Self {
        // In the first round, no byte needs saving.
        let slack_end = ring.len();
        Self { ring, ring_at: 0, skip, output, len: 0, slack_end, saved_at: slack_end, saved: [0; SAVED_LEN] }
    }

    /// The number of decoded bytes of the block.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Appends the first `len` bytes of `bytes`. There must be room for them.
    #[inline]
    pub(crate) fn put_ahead(&mut self, len: usize, bytes: &[u8]) {
        if len <= STEP_LEN
            && let Some(step) = bytes.first_chunk::<STEP_LEN>()
        {
            if self.len + len <= self.skip {
                let to = self.ring_at;
                if to + STEP_LEN > self.slack_end {
                    self.save();
                }
                if to + STEP_LEN <= self.slack_end
                    && let Some(room) = self.ring[to..].first_chunk_mut::<STEP_LEN>()
                {
                    *room = *step;
                    self.advance_in_ring(len);
                    return;
                }
            } else if let Some(at) = self.len.checked_sub(self.skip)
                && let Some(room) = self.output[at..].first_chunk_mut::<STEP_LEN>()
            {
                *room = *step;
                self.len += len;
                return;
            }
        }
        self.put(&bytes[..len]);
    }

    /// Appends literals. There must be room for them.
    pub(crate) fn put(&mut self, mut literals: &[u8]) {
        while self.len < self.skip && !literals.is_empty() {
            let room = (self.skip - self.len).min(self.ring.len() - self.ring_at);
            let (now, later) = literals.split_at(literals.len().min(room));
            self.ring[self.ring_at..][..now.len()].copy_from_slice(now);
            self.advance_in_ring(now.len());
            literals = later;
        }
        if !literals.is_empty() {
            self.output[self.len - self.skip..][..literals.len()].copy_from_slice(literals);
            self.len += literals.len();
        }
    }

    /// Appends a match: `len` bytes equal to those `distance` before them. There must be room for them, and `distance`
    /// must not exceed the window or the number of decoded bytes.
    #[inline]
    pub(crate) fn repeat(&mut self, distance: usize, len: usize) {
        if len <= SHORT_LEN_MAX {
            if self.len + len <= self.skip {
                let to = self.ring_at;
                if to + SHORT_LEN_MAX > self.slack_end {
                    self.save();
                }
                let from = if distance <= to { to - distance } else { to + self.ring.len() - distance };
                let is_unsaved = from < to || from >= self.slack_end;
                if to + SHORT_LEN_MAX <= self.slack_end && is_unsaved && repeat_short(self.ring, from, to, len) {
                    self.advance_in_ring(len);
                    return;
                }
            } else if let Some(to) = self.len.checked_sub(self.skip)
                && distance <= to
                && repeat_short(self.output, to - distance, to, len)
            {
                self.len += len;
                return;
            }
        }
        self.repeat_any(distance, len);
    }

    fn repeat_any(&mut self, distance: usize, mut len: usize) {
        while self.len < self.skip && len > 0 {
            let to = self.ring_at;
            let room = len.min(self.skip - self.len).min(self.ring.len() - to);
            let now = if distance <= to {
                repeat_within(self.ring, to - distance, to, room);
                room
            } else {
                let from = to + self.ring.len() - distance;
                if from < self.slack_end {
                    let now = room.min(self.slack_end - from);
                    let saved_from = from - self.saved_at;
                    self.ring[to..to + now].copy_from_slice(&self.saved[saved_from..saved_from + now]);
                    now
                } else {
                    let now = room.min(self.ring.len() - from).min(distance);
                    self.ring.copy_within(from..from + now, to);
                    now
                }
            };
            self.advance_in_ring(now);
            len -= now;
        }
        while len > 0 {
            let to = self.len - self.skip;
            let now = if distance <= to {
                repeat_within(self.output, to - distance, to, len);
                len
            } else {
                // The ring is frozen at `skip`; it contains the byte that precedes `skip` by `back`.
                let back = distance - to;
                if back <= self.ring_at {
                    let from = self.ring_at - back;
                    let now = len.min(back);
                    self.output[to..to + now].copy_from_slice(&self.ring[from..from + now]);
                    now
                } else {
                    let from = self.ring_at + self.ring.len() - back;
                    let (oldest, end) = if from < self.slack_end {
                        (&self.saved[from - self.saved_at..], self.slack_end)
                    } else {
                        (&self.ring[from..], self.ring.len())
                    };
                    let now = len.min(end - from);
                    self.output[to..to + now].copy_from_slice(&oldest[..now]);
                    now
                }
            };
            self.len += now;
            len -= now;
        }
    }

    #[inline]
    fn advance_in_ring(&mut self, len: usize) {
        self.len += len;
        self.ring_at += len;
        if self.ring_at == self.ring.len() {
            self.ring_at = 0;
            self.slack_end = 0;
            self.saved_at = 0;
        }
    }

    /// Saves the ring bytes that are overwritten next, unless they are saved already.
    fn save(&mut self) {
        let end = self.ring.len().min(self.ring_at + SAVED_LEN);
        if self.slack_end >= end {
            return;
        }
        // The saved part may already be overwritten in the ring.
        let kept = self.slack_end.saturating_sub(self.ring_at);
        let kept_at = self.slack_end - kept - self.saved_at;
        self.saved.copy_within(kept_at..kept_at + kept, 0);
        self.saved_at = self.ring_at;
        self.saved[kept..end - self.saved_at].copy_from_slice(&self.ring[self.saved_at + kept..end]);
        self.slack_end = end;
    }
}

/// Copies up to [`SHORT_LEN_MAX`] bytes in whole steps, so that bytes past `len` are written too. Returns false and
/// copies nothing if there is no room for the steps, or if source and target overlap within a step.
#[inline]
fn repeat_short(bytes: &mut [u8], from: usize, to: usize, len: usize) -> bool {
    let is_close = from < to && to - from < STEP_LEN;
    if is_close || from.max(to) + SHORT_LEN_MAX > bytes.len() {
        return false;
    }
    for step in 0..len.div_ceil(STEP_LEN) {
        let start = from + step * STEP_LEN;
        let mut copy = [0; STEP_LEN];
        copy.copy_from_slice(&bytes[start..start + STEP_LEN]);
        bytes[to + step * STEP_LEN..][..STEP_LEN].copy_from_slice(&copy);
    }
    true
}

/// Copies `len` bytes from `from` to `to`, which is greater. If the ranges overlap, the bytes repeat with the period
/// `to - from`.
#[inline]
fn repeat_within(bytes: &mut [u8], from: usize, to: usize, len: usize) {
    let distance = to - from;
    if distance >= len {
        bytes.copy_within(from..from + len, to);
        return;
    }
    let mut done = 0;
    while done < len {
        // The bytes from `from` to `to + done` have the period `distance`, and their number is a multiple of it.
        let now = (len - done).min(distance + done);
        bytes.copy_within(from..from + now, to + done);
        done += now;
    }
}
