//! A small cache of values that never change.

use floe_sync::Mutex;

/// The number of entries. Requests of the kernel's readahead touch some dozens of files at a time.
const ENTRY_COUNT: usize = 1 << 12;

/// Caches values by number. It is direct-mapped: each number has one possible entry, so a new value replaces an older
/// one there.
pub(crate) struct Recent<V> {
    entries: Vec<Mutex<Option<(u64, V)>>>,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { entries: (0..ENTRY_COUNT).map(|_| Mutex::default()).collect() }
    }
}

impl<V: Copy> Recent<V> {
    /// Returns the cached value of `number`, or that of `compute`, which must return the same value at each call.
    ///
    /// # Errors
    /// As `compute`.
    pub(crate) fn get_or<E>(&self, number: u64, compute: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let Some(entry) = self.entries.get((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize) else {
            return compute();
        };
        let remembered = *entry.lock();
        match remembered {
            Some((other, value)) if other == number => Ok(value),
            _ => {
                let value = compute()?;
                *entry.lock() = Some((number, value));
                Ok(value)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_computed_once_until_others_replace_them() {
        let recent = Recent::default();
        let get = |number: u64| recent.get_or(number, || Ok::<_, ()>(number * 2));
        for number in 0..10 * ENTRY_COUNT as u64 {
            assert_eq!(get(number), Ok(number * 2));
        }
        assert_eq!(recent.get_or(7, || Err("an error is not remembered")), Err("an error is not remembered"));
        assert_eq!(recent.get_or(7, || Ok::<_, ()>(1)), Ok(1));
        assert_eq!(recent.get_or(7, || Err("remembered")), Ok(1));
    }
}
