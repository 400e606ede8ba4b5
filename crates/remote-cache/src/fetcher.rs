//! The interface for fetching bytes that are not in the cache.

use std::{error::Error, fmt, io};

use bytes::Bytes;
use floe_image::ByteRange;
use serde::{Deserialize, Serialize};

/// The maximum number of bytes in one request. It limits [`RangeFetcher::request_bytes`].
pub const REQUEST_BYTES_MAX: u64 = 8 << 20;

/// Random access to one remote object. Many threads call it at the same time. It handles retries, timeouts and limits
/// itself.
///
/// An object does not change while it is open. A fetcher that finds it replaced fails with [`FetchFault::Gone`].
pub trait RangeFetcher: Send + Sync {
    /// The length of the object in bytes.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the object in errors and status: its URL, without credentials.
    fn name(&self) -> String;

    /// Fetches all bytes of `range`. May block.
    ///
    /// # Errors
    /// A [`FetchError`] inside an [`io::Error`] (converted by `From`), which states the kind of failure. Any other
    /// error counts as [`FetchFault::Outage`].
    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes>;

    /// Like [`RangeFetcher::fetch`], from another mirror than the last time, if there is one, because the bytes of
    /// `range` were wrong.
    ///
    /// # Errors
    /// As [`RangeFetcher::fetch`].
    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.fetch(range, cause)
    }

    /// Like [`RangeFetcher::fetch`], but hands over the bytes as they arrive: each call of `arrived` receives the next
    /// `part_bytes` of the range, and the last one the rest.
    ///
    /// # Errors
    /// As [`RangeFetcher::fetch`]. Parts that were handed over before remain valid.
    fn fetch_in_parts(
        &self,
        range: ByteRange,
        part_bytes: u64,
        cause: Cause,
        arrived: &mut dyn FnMut(Bytes),
    ) -> io::Result<()> {
        hand_over(self.fetch(range, cause)?, part_bytes, arrived);
        Ok(())
    }

    /// Raises the fetches of parts of `range` for [`Cause::Prefetch`] that are in progress to the priority of demand, because a
    /// reader now waits for them. Neither blocks nor fails.
    fn promote(&self, range: ByteRange) {
        let _ = range;
    }

    /// The preferred size of a request for `cause`, in bytes, when several chunks are missing. It may change as
    /// bandwidth and latency are measured. At most [`REQUEST_BYTES_MAX`] are requested.
    fn request_bytes(&self, cause: Cause) -> u64 {
        let _ = cause;
        1 << 20
    }

    /// The size to which requests of readers that wait are rounded, in bytes: as many as cost little beside the wait itself. It may
    /// change as bandwidth and latency are measured.
    fn unit_bytes(&self) -> u64 {
        16 << 10
    }

    /// How many background requests may be in flight at present.
    fn connections(&self) -> usize {
        4
    }
}

/// Hands over `bytes` in parts of `part_bytes`, at least 1; the last part has the rest.
pub fn hand_over(mut bytes: Bytes, part_bytes: u64, arrived: &mut dyn FnMut(Bytes)) {
    let part_bytes = usize::try_from(part_bytes).unwrap_or(usize::MAX).max(1);
    while !bytes.is_empty() {
        arrived(bytes.split_to(part_bytes.min(bytes.len())));
    }
}

/// Why bytes are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A reader waits for them.
    Demand,
    /// A reader will probably need them.
    Prefetch,
    /// They describe the image, and many reads will need them.
    Metadata,
    /// They are hashes that verify other bytes.
    Tree,
}

impl Cause {
    /// All causes, in the order of [`Cause::index`].
    pub const ALL: [Self; 4] = [Self::Demand, Self::Prefetch, Self::Metadata, Self::Tree];

    /// The index in [`Cause::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in counters: one lower-case word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
            Self::Metadata => "metadata",
            Self::Tree => "tree",
        }
    }
}

/// The kind of a failed fetch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FetchFault {
    /// The object cannot be reached at present, or not with these credentials. The same fetch may succeed later.
    Outage,
    /// The answer does not contain the bytes of the object: a wrong digest, a wrong length, another range.
    WrongBytes,
    /// The object no longer exists, or was replaced. No fetch of it will succeed again.
    Gone,
}

/// A failed fetch with the kind of failure. It is transported inside an [`io::Error`].
#[derive(Clone, Debug)]
pub struct FetchError {
    fault: FetchFault,
    message: String,
}

impl FetchError {
    /// Creates an error of this kind; `message` names the URL, the place and the fault.
    pub fn new(fault: FetchFault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into() }
    }

    /// The kind of failure.
    pub const fn fault(&self) -> FetchFault {
        self.fault
    }

    /// The kind of failure inside `error`; [`FetchFault::Outage`] if it states none.
    pub fn fault_of(error: &io::Error) -> FetchFault {
        Self::inside(error).map_or(FetchFault::Outage, |error| error.fault)
    }

    /// The fetch error inside `error`, if there is one.
    pub fn inside(error: &io::Error) -> Option<&Self> {
        error.get_ref().and_then(|error| error.downcast_ref())
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl Error for FetchError {}

impl From<FetchError> for io::Error {
    fn from(error: FetchError) -> Self {
        let kind = match error.fault {
            FetchFault::Outage => io::ErrorKind::NotConnected,
            FetchFault::WrongBytes => io::ErrorKind::InvalidData,
            FetchFault::Gone => io::ErrorKind::NotFound,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_travel_inside_io_errors() {
        for fault in [FetchFault::Outage, FetchFault::WrongBytes, FetchFault::Gone] {
            let error = io::Error::from(FetchError::new(fault, "https://example.org/a, byte 7: x"));
            assert_eq!(FetchError::fault_of(&error), fault);
            assert_eq!(error.to_string(), "https://example.org/a, byte 7: x");
        }
        assert_eq!(FetchError::fault_of(&io::ErrorKind::PermissionDenied.into()), FetchFault::Outage);
    }

    #[test]
    fn causes_know_their_index() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), index, "{}", cause.name());
        }
    }
}
