//! The EROFS format: reading and writing.
