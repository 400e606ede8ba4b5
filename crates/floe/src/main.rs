//! The `floe` command.
#![forbid(unsafe_code)]

mod cli;
mod command;
mod exit;
mod fail;
mod image_arguments;
mod inode_record;
mod iso_time;
mod mode_text;
mod output;
mod shown;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().collect())
}
