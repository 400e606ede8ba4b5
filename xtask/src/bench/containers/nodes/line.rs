//! A simulated network line out of a server: its bandwidth is shared by all connections, and each byte arrives with a delay.

use std::{
    collections::VecDeque,
    io::{self, Write},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use floe_sync::Mutex;

/// The number of bytes that one connection sends before the next one may.
const PIECE_BYTES: usize = 32 << 10;

/// A line. Slow start and loss are not simulated.
pub(super) struct Line {
    bytes_per_s: f64,
    round_trip: Duration,
    /// The time at which the line has carried all bytes so far.
    busy_until: Mutex<Instant>,
    bytes: AtomicU64,
    requests: AtomicU64,
}

/// The traffic of a line.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Traffic {
    pub(super) bytes: u64,
    pub(super) requests: u64,
}

impl Traffic {
    /// The traffic since an earlier time.
    pub(super) const fn since(self, earlier: Self) -> Self {
        Self { bytes: self.bytes - earlier.bytes, requests: self.requests - earlier.requests }
    }

    /// The traffic of several lines.
    pub(super) fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            bytes: sum.bytes + one.bytes,
            requests: sum.requests + one.requests,
        })
    }
}

impl Line {
    /// A line with this bandwidth and this round trip time.
    pub(super) fn new(bytes_per_s: f64, round_trip: Duration) -> Self {
        let busy_until = Mutex::new(Instant::now());
        Self { bytes_per_s, round_trip, busy_until, bytes: AtomicU64::new(0), requests: AtomicU64::new(0) }
    }

    /// The traffic so far.
    pub(super) fn traffic(&self) -> Traffic {
        Traffic { bytes: self.bytes.load(Relaxed), requests: self.requests.load(Relaxed) }
    }

    /// Waits as long as a request of a client takes to arrive. The first one of a connection comes after a handshake.
    pub(super) fn receive(&self, is_first: bool) {
        self.requests.fetch_add(1, Relaxed);
        thread::sleep(self.round_trip / 2 + if is_first { self.round_trip } else { Duration::ZERO });
    }

    /// Sends bytes to a client, at the times at which they arrive.
    ///
    /// # Errors
    /// The client has closed the connection.
    pub(super) fn send(&self, mut client: impl Write, bytes: &[u8]) -> io::Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let (mut pieces, mut carried) = (VecDeque::<(Instant, Range<usize>)>::new(), 0);
        loop {
            // As with a window for acknowledgements, no more than a round trip is on the way.
            let window = Instant::now() + self.round_trip;
            while carried < bytes.len() && pieces.back().is_none_or(|(arrival, _)| *arrival <= window) {
                let piece = carried..bytes.len().min(carried + PIECE_BYTES);
                carried = piece.end;
                pieces.push_back((self.carry(piece.len()), piece));
            }
            let Some((arrival, piece)) = pieces.pop_front() else { return Ok(()) };
            thread::sleep(arrival.saturating_duration_since(Instant::now()));
            client.write_all(bytes.get(piece).unwrap_or_default())?;
        }
    }

    /// Lets the line carry so many bytes after all others. Returns when they arrive.
    fn carry(&self, len: usize) -> Instant {
        let mut busy_until = self.busy_until.lock();
        *busy_until = (*busy_until).max(Instant::now()) + Duration::from_secs_f64(len as f64 / self.bytes_per_s);
        *busy_until + self.round_trip / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_arrive_in_order_and_not_too_early() {
        let line = Line::new(1e6, Duration::from_millis(10));
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| number.to_le_bytes()[0]).collect();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| line.send(&mut first, &bytes).expect("written"));
            scope.spawn(|| line.send(&mut second, &bytes).expect("written"));
        });
        assert!(first == bytes && second == bytes);
        assert!(began.elapsed() >= Duration::from_millis(205), "{:?}", began.elapsed());
        assert_eq!(line.traffic().bytes, 200_000);
    }
}
