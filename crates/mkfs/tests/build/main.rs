//! Images built here are read by the kernel and the reference tools and compared with their sources.

mod archives;
mod differences;
mod failures;
mod matrix;
mod outputs;
mod raw_archives;
mod repeats;
mod sample_tree;
mod squashfs;
