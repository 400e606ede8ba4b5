//! Prefetch: detectors of access patterns, the controller with its thresholds, and the sink.

pub(crate) mod controller;
pub(crate) mod counters;
pub(crate) mod detectors;
mod held_blocks;
pub(crate) mod neighbours;
pub(crate) mod sink;
