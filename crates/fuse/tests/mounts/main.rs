//! Mounts of trees in memory.

#[path = "../support/mod.rs"]
mod support;

mod serving;
mod trouble;
