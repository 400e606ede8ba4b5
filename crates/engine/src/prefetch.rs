//! What is read before anybody asks for it: which reads suggest it, and how much is worth it.

pub(crate) mod controller;
pub(crate) mod counters;
pub(crate) mod detectors;
mod held_blocks;
pub(crate) mod neighbours;
pub(crate) mod sink;
