//! The latency lab: load, launches, scheduler tracing, tables, plots.

mod error;
pub mod load;
pub mod machine;
mod process_sys;
pub mod sched;
pub mod trace;

pub use error::{Error, Result};
