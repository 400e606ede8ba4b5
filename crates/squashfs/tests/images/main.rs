//! SquashFS images: reference, changed and corrupt ones.

#[path = "../memo_reader/mod.rs"]
mod memo_reader;
#[path = "../read_all/mod.rs"]
mod read_all;

mod agreement;
mod check;
mod corpus;
mod corrupt;
mod faults;
mod kernel;
mod long_file;
