//! Detectors of access patterns: state machines that report what they see, and decide nothing.

pub(crate) mod density;
pub(crate) mod directory;
pub(crate) mod drop_behind;
pub(crate) mod sequential;
