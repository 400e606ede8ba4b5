//! The moving share of events with some property.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The share of recent events that have some property: an exponential moving average. Events that threads note at the
/// same time may be lost.
#[derive(Debug)]
pub struct MovingShare {
    share: AtomicU32,
    /// The weight of one event, of [`MovingShare::WHOLE`].
    weight: u32,
}

impl MovingShare {
    /// The fixed-point representation of 1.
    pub const WHOLE: u32 = 1 << 16;

    /// Creates an average over about `event_count` events, which begins at `share`.
    pub const fn new(event_count: u32, share: u32) -> Self {
        Self { share: AtomicU32::new(share), weight: Self::WHOLE / event_count }
    }

    /// Notes an event.
    pub fn note(&self, is_so: bool) {
        self.note_weighted(self.weight, is_so);
    }

    /// Notes an event of another weight, of [`MovingShare::WHOLE`]; at most the whole.
    pub(crate) fn note_weighted(&self, weight: u32, is_so: bool) {
        let (old, weight, whole) = (u64::from(self.share.load(Relaxed)), u64::from(weight), u64::from(Self::WHOLE));
        let target = if is_so { whole } else { 0 };
        // Rounded towards the event, so that equal events lead to the whole or to 0.
        let rounding = if is_so { whole - 1 } else { 0 };
        self.share.store(((old * (whole - weight) + target * weight + rounding) / whole) as u32, Relaxed);
    }

    /// The share, in units of 1 / [`MovingShare::WHOLE`].
    pub fn get(&self) -> u32 {
        self.share.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_events_lead_to_the_bounds_and_half_of_them_to_one_half() {
        let share = MovingShare::new(16, 0);
        (0..16).for_each(|_| share.note(true));
        assert!((MovingShare::WHOLE / 2..MovingShare::WHOLE / 4 * 3).contains(&share.get()), "{}", share.get());
        (0..1000).for_each(|_| share.note(true));
        assert_eq!(share.get(), MovingShare::WHOLE);
        (0..1000).for_each(|number| share.note(number % 2 == 0));
        assert!(share.get().abs_diff(MovingShare::WHOLE / 2) < MovingShare::WHOLE / 16, "{}", share.get());
        (0..1000).for_each(|_| share.note(false));
        assert_eq!(share.get(), 0);
        share.note_weighted(MovingShare::WHOLE, true);
        assert_eq!(share.get(), MovingShare::WHOLE);
    }
}
