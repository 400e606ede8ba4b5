//! What is counted and timed.

pub(crate) mod decode_marks;
pub(crate) mod gauge;
pub(crate) mod latency;
