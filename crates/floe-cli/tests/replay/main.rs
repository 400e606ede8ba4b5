//! Replays of recorded launches: `floe mount -o profile=…`, `--learn`, and profiles in images.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

#[path = "../support/mod.rs"]
mod support;

mod as_user;
mod hostile;
mod launched;
mod learned;
mod python;
mod range_server;
