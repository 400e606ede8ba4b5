//! The machine under measurement: its settings, what it is made of, and the way back.

mod control_group;
mod undo;

pub use control_group::{ControlGroup, GroupCounts};
pub use undo::{Mark, Promise, Undo};
