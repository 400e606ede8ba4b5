//! The machine under measurement: its settings, its properties, and the undo journal.

mod control_group;
mod environment;
mod lab_lock;
mod namespace_sys;
mod undo;

pub use control_group::{ControlGroup, GroupCounts};
pub use environment::{AUTOGROUP, Counts, CpuNoise, During, Environment, Setting};
pub(crate) use environment::{noise_floor, read_setting};
pub(crate) use namespace_sys::enter_private_mounts;
pub use undo::{Change, PendingChange, PrivateDirectory, Undo};
