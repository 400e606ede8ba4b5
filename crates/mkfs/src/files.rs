//! The files that a build writes: the image and its blob device until they have their names, and temporary files.

mod existing_file;
pub(crate) mod image_file;
pub(crate) mod output_file;
pub(crate) mod temporaries;
