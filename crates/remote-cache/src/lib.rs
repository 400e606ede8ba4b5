//! The disk cache of remote images, and their verification. No network and no async here: bytes come from a
//! [`RangeFetcher`].
#![deny(unsafe_code)]

mod digest;
mod digest_table;
mod fetcher;
mod key;

pub use digest::{DIGEST_BYTES, Digest, NoDigest};
pub use digest_table::{BadTable, DigestTable, PIECE_BYTES};
pub use fetcher::{Cause, FetchError, FetchFault, REQUEST_BYTES_MAX, RangeFetcher};
pub use key::{Location, OBJECT_BYTES_MAX, ObjectKey, Trust, VerityRoot};
