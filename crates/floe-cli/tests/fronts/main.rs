//! Mounts with the kernel's EROFS in front.
#![allow(clippy::disallowed_macros, reason = "tests may print")]

#[path = "../support/mod.rs"]
mod support;

mod front;
mod front_damage;
mod front_numbers;
mod front_trouble;
