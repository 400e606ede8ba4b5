//! Snapshots for containerd, as a proxy plugin (`containerd.services.snapshots.v1`).
//!
//! Layers that are EROFS images are mounted by Floe, out of the registry or from a file, and are ready at once. Ordinary layers are
//! directories that containerd unpacks into, as those of its own overlayfs snapshotter. Containers get `bind` and `overlay` mounts.
//!
//! If the options say so, `snapshotter/conversion` makes images of these directories in the background.
//!
//! `server` listens and translates requests (`messages`, `methods`); `snapshotter` has the operations, without gRPC; `snapshot_directories`
//! has their directories and mounts layers, `ahead` several at a time; `records` keeps what is known about snapshots on disk, one file for each; `mounts` says what
//! containerd mounts for a container; `mapped` shows layers with the owners of a user namespace; `twins` finds converted layers in
//! registries.
#![forbid(unsafe_code)]

mod ahead;
mod error;
mod filter;
mod labels;
mod mapped;
mod messages;
mod methods;
mod mounts;
mod record;
mod records;
mod server;
mod snapshot_directories;
mod snapshotter;
mod twins;
mod usage;

pub use error::SnapshotError;
pub use server::{Server, Stopper};
pub use snapshotter::{ConversionOptions, Conversions, Snapshotter, SnapshotterOptions, Unreachable};
pub use twins::TwinOptions;
