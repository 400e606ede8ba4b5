//! Detectors of access patterns.

pub(crate) mod clustered;
pub(crate) mod directory;
pub(crate) mod fault_around;
pub(crate) mod sequential;
