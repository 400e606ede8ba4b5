//! Summary statistics.

mod bootstrap;
mod summary;

pub use bootstrap::Interval;
pub use summary::{Summary, average, difference_percent, percentile};
