//! Remote images and their caches, by the built program.

#[path = "../support/mod.rs"]
mod support;

mod remote;
mod remote_cache;
mod remote_corpus;
mod remote_faults;
mod remote_launch;
