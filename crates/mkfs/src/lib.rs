//! Building EROFS images.
