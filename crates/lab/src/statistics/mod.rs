//! From many values to a few that are honest about them.

mod bootstrap;
mod summary;

pub use bootstrap::Interval;
pub use summary::{Summary, average, difference_percent, percentile};
