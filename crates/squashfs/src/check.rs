//! Everything that is wrong with an image.
