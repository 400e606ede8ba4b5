//! Stored bytes that were decoded and will hardly be wanted again.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use floe_image::{ByteRange, DeviceId};

/// Sources are watched in regions of so many bytes.
const REGION_BYTES: u64 = 1 << 20;

/// How many regions are told apart at one time.
const REGION_COUNT: usize = 1024;

/// A region is spent once so many bytes of it were read: what lies between the blocks of a file is never read.
const SPENT_BYTES: u64 = REGION_BYTES - REGION_BYTES / 8;

/// How many spent regions are kept still, for readers that come a little later, and because the kernel lets only those
/// pages go at once that no CPU has just touched.
const KEPT_COUNT: usize = 4;

/// Which regions of the sources have been read as a whole.
///
/// What was decoded is in the kernel's page cache from then on, as data. To keep it there a second time, as stored
/// bytes, would take memory from others, and each new page of memory costs time. A reader that jumps about spends no
/// region, or all of a small image after a long time.
pub(crate) struct Spent {
    state: Mutex<State>,
}

struct State {
    regions: Vec<Region>,
    spent: VecDeque<(DeviceId, u64)>,
}

#[derive(Clone, Copy)]
struct Region {
    device: DeviceId,
    number: u64,
    read_bytes: u64,
}

impl Spent {
    pub(crate) fn new() -> Self {
        let empty = Region { device: DeviceId(0), number: u64::MAX, read_bytes: 0 };
        Self { state: Mutex::new(State { regions: vec![empty; REGION_COUNT], spent: VecDeque::new() }) }
    }

    /// Notes bytes that were read to be decoded; gives what may be let go.
    pub(crate) fn note(&self, device: DeviceId, range: ByteRange) -> Option<(DeviceId, ByteRange)> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut position = range.offset();
        while position < range.end() {
            let number = position / REGION_BYTES;
            let end = range.end().min((number + 1) * REGION_BYTES);
            let region = &mut state.regions[number as usize % REGION_COUNT];
            if region.number != number || region.device != device {
                *region = Region { device, number, read_bytes: 0 };
            }
            region.read_bytes += end - position;
            if region.read_bytes >= SPENT_BYTES {
                region.read_bytes = 0;
                state.spent.push_back((device, number));
            }
            position = end;
        }
        if state.spent.len() <= KEPT_COUNT {
            return None;
        }
        let (device, number) = state.spent.pop_front()?;
        Some((device, ByteRange::new(number * REGION_BYTES, REGION_BYTES)))
    }
}
