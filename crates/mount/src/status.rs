//! The state of a mount.

mod exposition;
mod metrics;
mod prometheus;
mod report;
mod source;
mod text;

pub use exposition::{Exposition, Kind, MEDIA_TYPE};
use metrics::{MetricGroup, MetricObjects};
pub use prometheus::add_report;
pub use report::{Report, SCHEMA};
pub(crate) use source::Source;
pub use text::write_text;
