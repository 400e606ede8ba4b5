//! Virtual images of reference, corrupt and generated images.

#[path = "../support/mod.rs"]
mod support;

mod corrupt;
mod kept;
mod mutated;
mod read_back;
mod repeated;
