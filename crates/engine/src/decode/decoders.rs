//! The decoders of an engine and their memory budget.

use std::sync::Arc;

use floe_codec::Decoder;
use floe_image::{DecodedLen, Encoding};

use crate::{
    memory::byte_budget::{BudgetCounters, BudgetShare, ByteBudget, Reservation},
    sync::{Mutex, MutexGuard},
};

/// The decoders of an engine. One memory budget covers the dictionaries and windows of the decoders in use and of those
/// kept for later decodes.
///
/// A decode takes its reservation for the bytes that its encoding may need before it begins, and waits for nothing while it
/// holds them; so waiting decodes always make progress. A decode that needs more than the whole budget runs alone. LZ4
/// blocks, which need a window of at most 64 KiB, never wait.
pub(crate) struct Decoders {
    in_use: Arc<BudgetShare>,
    idle: Mutex<Idle>,
}

/// Decodes that need no more than this many bytes take no reservation: their number is bounded by the number of threads.
const SMALL_BYTES: usize = 64 << 10;

/// Decoders that are not in use, the most recently used one last.
#[derive(Default)]
struct Idle {
    decoders: Vec<Decoder>,
    held_bytes: u64,
}

impl Decoders {
    /// Creates decoders that hold at most `budget_bytes` in total.
    pub(crate) fn new(budget_bytes: u64) -> Self {
        Self { in_use: ByteBudget::whole(budget_bytes), idle: Mutex::default() }
    }

    /// Runs `decode` with exclusive use of a decoder that fits blocks of this encoding.
    pub(crate) fn with<R>(
        &self,
        encoding: &Encoding,
        decoded_len: DecodedLen,
        decode: impl FnOnce(&mut Decoder) -> R,
    ) -> R {
        let (reservation, mut decoder) = self.take(encoding, decoded_len);
        let result = decode(&mut decoder);
        self.put_back(decoder, reservation);
        result
    }

    pub(crate) fn counters(&self) -> BudgetCounters {
        let mut counters = self.in_use.budget().counters();
        counters.used_bytes += self.lock().held_bytes;
        counters
    }

    /// Takes a decoder for such a block, with a reservation for the bytes that it will hold unless they are few.
    fn take(&self, encoding: &Encoding, decoded_len: DecodedLen) -> (Option<Reservation>, Decoder) {
        let needed = Decoder::held_bytes_max(encoding, decoded_len);
        if needed <= SMALL_BYTES {
            let decoder = self.lock().pop(|decoder| decoder.held_bytes() <= SMALL_BYTES);
            return (None, decoder.unwrap_or_default());
        }
        let held_after = |decoder: &Decoder| decoder.held_bytes_after(encoding, decoded_len);
        let mut decoder = self.lock().pop(|_| true).unwrap_or_default();
        let reservation = match self.in_use.take_now(held_after(&decoder) as u64) {
            Some(reservation) => reservation,
            None => {
                self.put_back(decoder, None);
                let reservation = self.in_use.take(needed as u64);
                decoder = self.lock().pop(|decoder| held_after(decoder) <= needed).unwrap_or_default();
                reservation
            }
        };
        self.trim();
        (Some(reservation), decoder)
    }

    /// Keeps a decoder for later decodes. It is dropped again if the budget has no room for it.
    fn put_back(&self, decoder: Decoder, reservation: Option<Reservation>) {
        let mut idle = self.lock();
        idle.held_bytes += decoder.held_bytes() as u64;
        idle.decoders.push(decoder);
        drop(reservation);
        drop(idle);
        self.trim();
    }

    /// Drops idle decoders that do not fit into the budget together with those in use.
    fn trim(&self) {
        let budget = self.in_use.budget();
        let gone = self.lock().trim(budget.budget_bytes().saturating_sub(budget.used_bytes()));
        drop(gone);
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock()
    }
}

impl Idle {
    /// Removes the most recently used decoder for which `fits` holds.
    fn pop(&mut self, fits: impl Fn(&Decoder) -> bool) -> Option<Decoder> {
        let decoder = self.decoders.remove(self.decoders.iter().rposition(fits)?);
        self.held_bytes -= decoder.held_bytes() as u64;
        Some(decoder)
    }

    /// Removes the least recently used decoders until the others hold no more than `held_bytes_max`.
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
