//! Files with images in them.

mod file_source;
mod locate;
