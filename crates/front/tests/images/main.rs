//! Virtual images of reference, corrupt and generated images.

#[path = "../support/mod.rs"]
mod support;

mod corrupt;
mod kept;
mod read_back;
mod repeated;
