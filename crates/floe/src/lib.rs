//! Fast, predictable reads from compressed read-only images, in userspace.
