//! Decoded blocks that wait to be given away.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::cache::block_cache::Key;

/// Which decoded blocks are held until they were given to somebody: each is counted once, for however many it is held.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    blocks: HashMap<Key, HeldBlock>,
    /// The sum of their lengths.
    bytes: u64,
}

#[derive(Debug)]
struct HeldBlock {
    /// For how many it is held.
    holders: usize,
    /// How many bytes it had when it was first held: a block of which more was wanted later has more then.
    len: u64,
}

/// The holding of a block, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    blocks: Arc<HeldBlocks>,
    key: Key,
    is_first: bool,
}

impl HeldBlocks {
    /// Holds the block of `key`, which has `len` bytes; `None` if it is not the only one, and all that are held would
    /// then be more than `len_max`.
    pub(crate) fn hold(self: &Arc<Self>, key: Key, len: u64, len_max: u64) -> Option<Held> {
        let state = &mut *self.state();
        let is_first = state.blocks.is_empty();
        match state.blocks.get_mut(&key) {
            Some(block) => block.holders += 1,
            None if state.bytes > 0 && state.bytes.saturating_add(len) > len_max => return None,
            None => {
                state.blocks.insert(key, HeldBlock { holders: 1, len });
                state.bytes += len;
            }
        }
        Some(Held { blocks: Arc::clone(self), key, is_first })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Whether no block was held before this one.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let state = &mut *self.blocks.state();
        let Some(block) = state.blocks.get_mut(&self.key) else { return };
        block.holders -= 1;
        if block.holders == 0 {
            state.bytes -= block.len;
            state.blocks.remove(&self.key);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use floe_image::{DecodedLen, DeviceId, Encoding, StoredBlock, StoredLen};

    use super::*;

    fn key(offset: u64) -> Key {
        Key::of(&StoredBlock {
            device: DeviceId(0),
            offset,
            stored_len: StoredLen::Known(1),
            decoded_len: DecodedLen::Exact(1),
            encoding: Encoding::Stored,
        })
    }

    #[test]
    fn a_block_counts_once_and_until_its_last_holder_is_gone() {
        let blocks = Arc::new(HeldBlocks::default());
        let first = blocks.hold(key(0), 60, 100).expect("room");
        let second = blocks.hold(key(0), 60, 100).expect("the same block takes no more room");
        assert!(first.is_first() && !second.is_first());
        assert!(blocks.hold(key(1), 60, 100).is_none());
        assert!(blocks.hold(key(1), u64::MAX, 100).is_none());
        drop(first);
        assert!(blocks.hold(key(1), 60, 100).is_none());
        let other = blocks.hold(key(2), 40, 100).expect("room");
        drop(second);
        drop(blocks.hold(key(1), 60, 100).expect("room"));
        drop(other);
        assert!(blocks.hold(key(1), 101, 100).expect("one may be too large").is_first());
        assert_eq!(blocks.state().bytes, 0);
        assert!(blocks.state().blocks.is_empty());
    }

    #[test]
    fn a_block_that_grows_while_it_is_held_counts_as_it_was() {
        let blocks = Arc::new(HeldBlocks::default());
        let short = blocks.hold(key(0), 10, 100).expect("room");
        let long = blocks.hold(key(0), 60, 100).expect("the same block");
        drop(short);
        drop(long);
        assert_eq!(blocks.state().bytes, 0);
    }
}
