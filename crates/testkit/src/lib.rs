//! Shared test support of Floe: reference images with manifests, tree walks and comparisons, faulty sources, and
//! generated trees. A dev-dependency only.

mod bounded_sys;
pub mod corpus;
mod counting_allocator_sys;
mod counting_source;
mod direct_reader;
mod failing_source;
mod half_cached_source;
mod idmap_sys;
mod label_sys;
pub mod manifest;
mod mapped_sys;
mod memory_source;
mod mount;
mod peer;
mod random;
pub mod skip;
mod slow_source;
mod table;
mod tree;
mod truncated_source;
pub mod walk;
mod workspace;

pub use bounded_sys::{BoundedRun, run_bounded};
pub use counting_allocator_sys::{AllocationCounts, CountingAllocator, LARGE_BYTES};
pub use counting_source::CountingSource;
pub use direct_reader::DirectReader;
pub use failing_source::{FailingSource, Fault};
pub use half_cached_source::HalfCachedSource;
pub use idmap_sys::mount_idmapped;
pub use label_sys::file_system_label;
pub use mapped_sys::mapped_bytes;
pub use memory_source::MemorySource;
pub use mount::KernelMount;
pub use peer::{Versions, peer};
pub use random::Random;
pub use slow_source::SlowSource;
pub use table::check_rows;
pub use tree::Tree;
pub use truncated_source::TruncatedSource;
pub use workspace::{target_dir, workspace_root};
