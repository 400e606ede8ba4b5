//! Mounts with the kernel's EROFS in front.

#[path = "../support/mod.rs"]
mod support;

mod front;
mod front_trouble;
