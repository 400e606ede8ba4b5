//! Launches a command from a mounted image, with several variants in turn.

mod account;
mod command;
mod meter;
mod mounted;
mod options;
mod outcome;
mod run;
mod variant;

pub use account::{Account, Lz4Account, MetadataAccount, PageAccount, ReadAroundAccount, StageAccount, WorkAccount};
pub use meter::Tier;
pub(crate) use mounted::{CapturedStderr, Extras, MountPoints, Mounted, forget_image};
pub use options::{Comparison, LaunchOptions, Published, PublishedRow, Temperature};
pub use outcome::{Latency, Launch, METRICS, Metric};
pub use run::{LaunchReport, Progress, Step, VariantReport, block, run};
pub use variant::{Decompressors, ImageKind, Programs, Reader, Variant};
