//! The state of a mount.

mod exposition;
mod metrics;
mod prometheus;
mod report;
mod source;
mod text;

pub(crate) use exposition::{Exposition, Kind, MEDIA_TYPE};
use metrics::{MetricGroup, MetricObjects};
pub(crate) use prometheus::add_report;
pub(crate) use report::{Report, SCHEMA};
pub(crate) use source::Source;
pub(crate) use text::write_text;
