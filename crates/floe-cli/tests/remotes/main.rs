//! Remote images and their caches, by the built program.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

#[path = "../support/mod.rs"]
mod support;

mod base_images;
mod conversions;
mod peer_to_peer;
mod pulls;
mod remote;
mod remote_cache;
mod remote_corpus;
mod remote_faults;
mod remote_launch;
mod silent_servers;
