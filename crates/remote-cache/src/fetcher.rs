//! Where bytes come from that the cache does not hold.

use std::{error::Error, fmt, io};

use bytes::Bytes;
use floe_image::ByteRange;

/// The most bytes that one request asks for, whatever a fetcher wishes.
pub const REQUEST_BYTES_MAX: u64 = 8 << 20;

/// Random access to one remote object. Many threads call it at once; it does its own retries, timeouts and limits.
///
/// An object does not change while it is open. A fetcher that finds it replaced fails with [`FetchFault::Gone`].
pub trait RangeFetcher: Send + Sync {
    /// How many bytes the object has.
    fn len(&self) -> u64;

    /// Whether there is no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What errors and status call the object: its URL, without credentials.
    fn name(&self) -> String;

    /// The bytes of `range`, all of them. May wait.
    ///
    /// # Errors
    /// A [`FetchError`] inside an [`io::Error`] (made by `From`), which says what kind of failure it is. Any
    /// other error counts as [`FetchFault::Outage`].
    fn fetch(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes>;

    /// As [`RangeFetcher::fetch`], from another mirror than the last time, if there is one: the bytes of `range` that came
    /// last were wrong.
    ///
    /// # Errors
    /// As [`RangeFetcher::fetch`].
    fn fetch_elsewhere(&self, range: ByteRange, cause: Cause) -> io::Result<Bytes> {
        self.fetch(range, cause)
    }

    /// Says that a reader now waits for `range`, which is being fetched for [`Cause::Prefetch`]. A hint: it does
    /// not wait and cannot fail.
    fn hurry(&self, range: ByteRange) {
        let _ = range;
    }

    /// How many bytes a request for `cause` should ask for at present, where more than one chunk is missing. The answer may
    /// change as bandwidth and round trips are measured. At most [`REQUEST_BYTES_MAX`] are asked for.
    fn request_bytes(&self, cause: Cause) -> u64 {
        let _ = cause;
        1 << 20
    }

    /// How many requests may be under way in the background at present.
    fn connections(&self) -> usize {
        4
    }
}

/// The fetcher of an object that is not to be reached: what the cache holds of it can be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offline {
    /// What errors and status call the object.
    pub name: String,
    /// How many bytes it has.
    pub len: u64,
}

impl RangeFetcher for Offline {
    fn len(&self) -> u64 {
        self.len
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn fetch(&self, range: ByteRange, _cause: Cause) -> io::Result<Bytes> {
        let message = format!("{}, bytes {range}: not in the cache, and there is no connection", self.name);
        Err(FetchError::new(FetchFault::Outage, message).into())
    }
}

/// Why bytes are fetched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A reader waits for them.
    Demand,
    /// Somebody will probably want them.
    Prefetch,
    /// They describe the image, and many reads will need them.
    Metadata,
    /// They are hashes that verify other bytes.
    Tree,
}

impl Cause {
    /// All causes, in the order of [`Cause::index`].
    pub const ALL: [Self; 4] = [Self::Demand, Self::Prefetch, Self::Metadata, Self::Tree];

    /// Its place in [`Cause::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Demand => 0,
            Self::Prefetch => 1,
            Self::Metadata => 2,
            Self::Tree => 3,
        }
    }

    /// Its name in counters: one lower-case word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demand => "demand",
            Self::Prefetch => "prefetch",
            Self::Metadata => "metadata",
            Self::Tree => "tree",
        }
    }
}

/// What kind of failure a fetch met.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FetchFault {
    /// The object cannot be reached at present, or not by these credentials. The same fetch may succeed later.
    Outage,
    /// The bytes that came are not those of the object: a wrong digest, a wrong length, another range.
    WrongBytes,
    /// The object is no longer there, or another one is in its place. No fetch of it will succeed again.
    Gone,
}

/// A fetch that failed, with the kind of failure. It travels inside an [`io::Error`].
#[derive(Clone, Debug)]
pub struct FetchError {
    fault: FetchFault,
    message: String,
}

impl FetchError {
    /// A failure of this kind; `message` names the URL, the place and what is wrong.
    pub fn new(fault: FetchFault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into() }
    }

    /// What kind of failure it is.
    pub const fn fault(&self) -> FetchFault {
        self.fault
    }

    /// The kind of failure inside `error`; [`FetchFault::Outage`] where it does not say.
    pub fn fault_of(error: &io::Error) -> FetchFault {
        Self::inside(error).map_or(FetchFault::Outage, |error| error.fault)
    }

    /// The fetch error that `error` carries.
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
