//! Prefetch: detectors of access patterns, the controller with every threshold and budget, and the sink.

pub(crate) mod ahead_guard;
pub(crate) mod controller;
pub(crate) mod counters;
pub(crate) mod detectors;
mod miss_cost;
pub(crate) mod sink;
pub(crate) mod thresholds;
