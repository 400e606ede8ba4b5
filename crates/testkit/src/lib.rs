//! Shared test support of Floe: reference images with manifests, tree walks and comparisons, faulty sources, and
//! generated trees. A dev-dependency only.

mod bounded_sys;
mod container_root;
pub mod corpus;
mod counting_allocator_sys;
mod direct_reader;
mod file_sys;
mod idmap_sys;
mod kernel_caches;
pub mod manifest;
mod mount;
mod peer;
mod random;
mod sample;
pub mod skip;
mod skipped;
mod sources;
mod table;
mod tree;
pub mod walk;

pub use bounded_sys::{BoundedRun, run_bounded, thread_cpu_time, wait_until_caught};
pub use container_root::{CONTAINERD_NODE, ContainerRoot, container_root};
pub use corpus::{target_dir, workspace_root};
pub use counting_allocator_sys::{AllocationCounts, CountingAllocator, LARGE_BYTES};
pub use direct_reader::DirectReader;
pub use file_sys::{GET_LABEL, MappedFile, file_system_label, mapped_bytes};
pub use idmap_sys::mount_idmapped;
pub use kernel_caches::{KernelCaches, drop_kernel_caches, keep_kernel_caches};
pub use mount::KernelMount;
pub use peer::{Versions, copy_program, peer};
pub use random::Random;
pub use sample::sample;
pub use sources::{
    CountingSource, FailingSource, Fault, HalfCachedSource, HeldSource, MemorySource, SlowSource, TruncatedSource,
};
pub use table::check_rows;
pub use tree::Tree;
