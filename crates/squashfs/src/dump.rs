//! What is in an image, in words.
