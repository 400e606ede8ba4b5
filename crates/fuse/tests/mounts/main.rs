//! Mounts of trees in memory.

mod support;

mod handover;
mod kernel_pages;
mod listings;
mod rings;
mod serving;
mod sessions;
mod trouble;
