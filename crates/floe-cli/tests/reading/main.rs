//! Commands of the built program that read images without mounting them, and the program's documentation.

#[path = "../support/mod.rs"]
mod support;

mod block_sizes;
mod book;
mod commands;
mod doctor;
mod drop_in;
mod existing_targets;
mod extraction;
mod extraction_limits;
mod faults;
mod fsck_reports;
mod hostile;
mod hostile_names;
mod local_times;
mod pseudo_files;
mod standard_output;
mod tar_index;
mod unsquashfs_options;
mod unsquashfs_reports;
mod usage;
