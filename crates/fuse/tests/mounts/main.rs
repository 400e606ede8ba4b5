//! Mounts of trees in memory.

#[path = "../support/mod.rs"]
mod support;

mod listings;
mod serving;
mod trouble;
