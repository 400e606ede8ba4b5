//! Programs that are compiled against the C library.

mod from_c;
mod installed;
