//! The machine under measurement: its settings, its properties, and the undo journal.

mod control_group;
mod environment;
mod lab_lock;
mod namespace_sys;
mod noise;
mod private_directory;
mod setting;
mod undo;

pub use control_group::{ControlGroup, GroupCounts};
pub use environment::{Counts, During, Environment};
pub(crate) use namespace_sys::enter_private_mounts;
pub use noise::{CpuNoise, noise_floor};
pub use private_directory::PrivateDirectory;
pub use setting::{AUTOGROUP, Setting, read_setting};
pub use undo::{Change, PendingChange, Undo};
