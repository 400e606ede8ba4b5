//! The disk cache of remote images, and the verification of their bytes.
//!
//! The crate contains no network code and no async code: it fetches bytes through a [`RangeFetcher`].
#![deny(unsafe_code)]

mod ahead_chunks;
mod ahead_reason;
mod budget;
mod cache;
mod cached_object;
mod counters;
mod digest;
mod digest_table;
mod entry;
mod fetcher;
mod fill;
mod flights;
mod hash_tree;
mod inventory;
mod key;
mod layout;
#[allow(unsafe_code)]
mod locks_sys;
mod notes;
mod prefetch;
mod proven;
mod reach;
mod sequential_readers;
mod source;
mod stored_object;
mod sweep;
mod trusted_directory;
mod trusted_path;
mod verifier;
mod verity;

pub use ahead_reason::{AheadCounts, AheadReason};
pub use cache::{Cache, CacheOptions, Notice};
pub use counters::{ByCause, CacheCounts};
pub(crate) use digest::DIGEST_BYTES;
pub use digest::{Digest, NoDigest};
pub use digest_table::{BadTable, DigestTable, OBJECT_BYTES_MAX, PIECE_BYTES, TableRoot};
pub use entry::BootId;
pub use fetcher::{Cause, FetchError, FetchFault, REQUEST_BYTES_MAX, RangeFetcher, hand_over};
pub use hash_tree::{HashTree, HashTreeBuilder};
pub use inventory::{CheckReport, ObjectReport};
pub use key::{Location, ObjectKey, TreeRoot, Trust, VerityRoot};
pub use layout::{CHUNK_BYTES, SECTION_BYTES, TREE_CHUNK_BYTES};
pub use source::{CachedSource, SourceOptions};
pub use trusted_directory::TrustedDirectory;
pub use verity::{BadVerity, VerityOptions, append_verity, parse_sidecar, sidecar_path, sidecar_text};
