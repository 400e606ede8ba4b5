//! An image as a virtual EROFS image that the kernel mounts.
#![forbid(unsafe_code)]

mod addresses;
mod directory;
mod geometry;
mod node;
mod packed_directories;
mod render;
mod rendered_source;
mod view;
mod virtual_image;

pub use virtual_image::{Origin, VirtualImage};
