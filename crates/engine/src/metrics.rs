//! Counters, gauges and latency histograms.

pub(crate) mod decode_marks;
pub(crate) mod gauge;
pub(crate) mod latency;
pub(crate) mod moving_share;
