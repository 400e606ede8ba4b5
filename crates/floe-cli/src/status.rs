//! The state of a mount.

mod prometheus;
mod report;
mod source;
mod text;

pub(crate) use prometheus::write_prometheus;
pub(crate) use report::{Report, SCHEMA};
pub(crate) use source::Source;
pub(crate) use text::write_text;
