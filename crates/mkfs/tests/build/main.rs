//! Images built here, read by the kernel and by the reference tools, compared with their sources.

mod archives;
mod differences;
mod environment;
mod failures;
mod matrix;
mod repeats;
mod sample_tree;
mod sharing;
