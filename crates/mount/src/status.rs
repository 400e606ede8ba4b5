//! The state of a mount.

mod metrics;
mod prometheus;
mod report;
mod source;
mod text;

use metrics::{MetricGroup, MetricObjects};
pub use prometheus::{Exposition, Kind, MEDIA_TYPE, add_report};
pub use report::{Report, SCHEMA};
pub(crate) use source::Source;
pub use text::write_text;
