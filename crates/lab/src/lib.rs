//! The latency lab: load, launches, scheduler tracing, tables, plots.

pub mod alloc;
mod alloc_sys;
mod error;
mod interrupt_sys;
pub mod launch;
pub mod load;
pub mod machine;
pub mod metadata;
mod process_sys;
pub mod read;
pub mod report;
pub mod sched;
mod stage;
pub mod statistics;
pub mod trace;

pub use error::{Error, Result};
pub use interrupt_sys::Interrupt;
pub use stage::{StageOptions, Surroundings};
