//! Requests in progress: deadlines and counts.

pub(crate) mod counts;
pub(crate) mod deadline;
