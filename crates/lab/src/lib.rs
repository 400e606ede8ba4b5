//! The latency lab: load, launches, scheduler tracing, tables, plots.

mod error;
mod interrupt_sys;
pub mod launch;
pub mod load;
pub mod machine;
mod process_sys;
pub mod report;
pub mod sched;
pub mod statistics;
pub mod trace;

pub use error::{Error, Result};
pub use interrupt_sys::Interrupt;
