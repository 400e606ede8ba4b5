//! The decoders of an engine.

use std::sync::{Arc, PoisonError};

use floe_codec::Decoder;
use floe_image::{DecodedLen, Encoding};

use crate::{
    memory::byte_budget::{BudgetCounters, ByteBudget, Permit},
    sync::{Mutex, MutexGuard},
};

/// The decoders of an engine, whose state has one budget of memory: the dictionaries and windows of those in use and of
/// those that are kept for the next decode.
///
/// A decode takes the bytes that its encoding may need before it begins and waits for nothing while it has them, so that
/// those who wait for them get on. One that needs more than there is runs alone. LZ4 blocks, which need no more than a window
/// of 64 KiB, never wait.
pub(crate) struct Decoders {
    in_use: Arc<ByteBudget>,
    idle: Mutex<Idle>,
}

/// What needs no more than this is not counted while it is in use, in bytes: there are never more than threads.
const SMALL_BYTES: usize = 64 << 10;

/// Decoders that nobody uses. The one that was used last stands at the end.
#[derive(Default)]
struct Idle {
    decoders: Vec<Decoder>,
    held_bytes: u64,
}

impl Decoders {
    /// Decoders that hold so many bytes at most.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { in_use: ByteBudget::new(budget_bytes), idle: Mutex::default() }
    }

    /// Runs `decode` with a decoder of its own that may take a block of this encoding.
    pub(crate) fn with<R>(
        &self,
        encoding: &Encoding,
        decoded_len: DecodedLen,
        decode: impl FnOnce(&mut Decoder) -> R,
    ) -> R {
        let (permit, mut decoder) = self.take(encoding, decoded_len);
        let result = decode(&mut decoder);
        self.put_back(decoder, permit);
        result
    }

    pub(crate) fn counters(&self) -> BudgetCounters {
        let mut counters = self.in_use.counters();
        counters.used_bytes += self.lock().held_bytes;
        counters
    }

    /// A decoder for such a block, and the bytes that it will hold; none where they are few.
    fn take(&self, encoding: &Encoding, decoded_len: DecodedLen) -> (Option<Permit>, Decoder) {
        let needed = Decoder::held_bytes_max(encoding, decoded_len);
        if needed <= SMALL_BYTES {
            let decoder = self.lock().pop(|decoder| decoder.held_bytes() <= SMALL_BYTES);
            return (None, decoder.unwrap_or_default());
        }
        let held_after = |decoder: &Decoder| decoder.held_bytes_after(encoding, decoded_len);
        let mut decoder = self.lock().pop(|_| true).unwrap_or_default();
        let permit = match self.in_use.take_now(held_after(&decoder) as u64) {
            Some(permit) => permit,
            None => {
                self.put_back(decoder, None);
                let permit = self.in_use.take(needed as u64);
                decoder = self.lock().pop(|decoder| held_after(decoder) <= needed).unwrap_or_default();
                permit
            }
        };
        self.trim();
        (Some(permit), decoder)
    }

    /// Keeps a decoder for later, if there is room without what it held of the budget.
    fn put_back(&self, decoder: Decoder, permit: Option<Permit>) {
        let mut idle = self.lock();
        idle.held_bytes += decoder.held_bytes() as u64;
        idle.decoders.push(decoder);
        drop(permit);
        drop(idle);
        self.trim();
    }

    /// Lets those go for which there is no room beside those in use.
    fn trim(&self) {
        let gone = self.lock().trim(self.in_use.budget_bytes().saturating_sub(self.in_use.used_bytes()));
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    /// The decoder that was used last of those that fit.
    fn pop(&mut self, fits: impl Fn(&Decoder) -> bool) -> Option<Decoder> {
        let decoder = self.decoders.remove(self.decoders.iter().rposition(fits)?);
        self.held_bytes -= decoder.held_bytes() as u64;
        Some(decoder)
    }

    /// Takes out those that were not used for longest, until the others hold no more than so many bytes.
    fn trim(&mut self, held_bytes_max: u64) -> Vec<Decoder> {
        let mut count = 0;
        while self.held_bytes > held_bytes_max
            && let Some(decoder) = self.decoders.get(count)
        {
            self.held_bytes -= decoder.held_bytes() as u64;
            count += 1;
        }
        self.decoders.drain(..count).collect()
    }
}
