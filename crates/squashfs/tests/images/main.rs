//! SquashFS images: reference, changed and corrupt ones.

mod agreement;
mod check;
mod corrupt;
mod faults;
mod kernel;
mod long_file;
mod memo_reader;
mod read_all;
