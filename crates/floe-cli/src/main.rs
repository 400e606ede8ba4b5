//! The `floe` command.
#![forbid(unsafe_code)]

#[macro_use]
mod say;

mod cancellation;
mod cli;
mod command;
mod compress_hints;
mod confinement;
mod drop_in;
mod erofs_report;
mod expression_text;
mod fail;
mod fake;
mod image_arguments;
mod inode_record;
mod iso_time;
mod layer_arguments;
mod output;
mod remote;
mod root_hash_file;
mod source_date_epoch;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().collect())
}
