//! Detectors of access patterns: state machines that report patterns to the controller, which decides.

pub(crate) mod density;
pub(crate) mod directory;
pub(crate) mod drop_behind;
pub(crate) mod sequential;
