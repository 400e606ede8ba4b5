//! The decoded bytes of an LZ4 block of which only a part is kept.

/// Copies up to this length are made without asking how long they are, where there is room.
const SHORT_LEN_MAX: usize = 32;
/// What is copied in one step of those.
const STEP_LEN: usize = 16;
/// How many bytes of the ring are saved at a time before they are written over.
const SAVED_LEN: usize = 1024;

/// What is decoded: byte `n` of the block is at `n` modulo its length in the ring where it precedes `skip`, and in the
/// output otherwise.
pub(crate) struct Decoded<'a> {
    /// As long as the window, or, where that is less, as `skip`.
    ring: &'a mut [u8],
    /// Where the next byte goes in the ring, as long as it goes there.
    ring_at: usize,
    skip: usize,
    output: &'a mut [u8],
    /// How many bytes of the block are decoded.
    len: usize,
    /// Short copies may write too much, up to here in the ring. What stood there is the oldest of the window; from the
    /// second round on it is still wanted, so it is saved.
    slack_end: usize,
    /// Where in the ring the saved bytes stood, which end at `slack_end`.
    saved_at: usize,
    saved: [u8; SAVED_LEN],
}

impl<'a> Decoded<'a> {
    /// Nothing decoded yet.
    pub(crate) fn new(ring: &'a mut [u8], skip: usize, output: &'a mut [u8]) -> Self {
        // In the first round there is nothing to save.
        let slack_end = ring.len();
        Self { ring, ring_at: 0, skip, output, len: 0, slack_end, saved_at: slack_end, saved: [0; SAVED_LEN] }
    }

    /// How many bytes of the block are decoded.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the first `len` bytes of `bytes`, for which there is room.
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

    /// Adds literals, for which there is room.
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

    /// Adds `len` bytes, for which there is room, that are the same as those `distance` before them. As many bytes are
    /// decoded at least, and the window is as long.
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
                // The ring stands still at `skip`; what is `back` before it is there.
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

    /// Saves what is written over next, where that is not done yet.
    fn save(&mut self) {
        let end = self.ring.len().min(self.ring_at + SAVED_LEN);
        if self.slack_end >= end {
            return;
        }
        // What is saved already may be written over already.
        let kept = self.slack_end.saturating_sub(self.ring_at);
        let kept_at = self.slack_end - kept - self.saved_at;
        self.saved.copy_within(kept_at..kept_at + kept, 0);
        self.saved_at = self.ring_at;
        self.saved[kept..end - self.saved_at].copy_from_slice(&self.ring[self.saved_at + kept..end]);
        self.slack_end = end;
    }
}

/// Repeats up to [`SHORT_LEN_MAX`] bytes, and writes that many whatever `len` is. `false` and nothing done where there is no
/// room for that, or the bytes overlap closely.
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

/// Fills `len` bytes from `to` on with those from `from` on, which is before it, where they overlap again and again.
#[inline]
fn repeat_within(bytes: &mut [u8], from: usize, to: usize, len: usize) {
    let distance = to - from;
    if distance >= len {
        bytes.copy_within(from..from + len, to);
        return;
    }
    let mut done = 0;
    while done < len {
        // All from `from` up to `to + done` has the period `distance` now, and is a multiple of it long.
        let now = (len - done).min(distance + done);
        bytes.copy_within(from..from + now, to + done);
        done += now;
    }
}
