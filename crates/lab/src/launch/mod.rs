//! Launches a command from a mounted image, with several variants in turn.

mod account;
mod captured_stderr;
mod command;
mod comparison;
mod meter;
mod mounted;
mod options;
mod outcome;
mod plan;
mod run;
mod variant;

pub use account::{Account, Lz4Account, MetadataAccount, PageAccount, ReadAroundAccount, StageAccount, WorkAccount};
pub(crate) use captured_stderr::CapturedStderr;
pub use comparison::{Comparison, Published, PublishedRow};
pub use meter::Tier;
pub(crate) use mounted::{Extras, MountPoints, Mounted, forget_image};
pub use options::{LaunchOptions, Temperature};
pub use outcome::{Latency, Launch, METRICS, Metric};
pub use plan::{Step, block};
pub use run::{LaunchReport, Progress, VariantReport, run};
pub use variant::{Decompressors, ImageKind, Programs, Reader, Variant};
