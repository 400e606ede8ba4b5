//! The files that a build writes: the image and its blob device until they have their names, and temporary files.

pub(crate) mod image_file;
pub(crate) mod output_file;
mod overwritten_file;
mod replaced_file;
pub(crate) mod temporaries;
