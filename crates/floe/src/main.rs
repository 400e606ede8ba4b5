//! The `floe` command.
#![forbid(unsafe_code)]

mod cli;
mod command;
mod daemon;
mod drop_in;
mod exit;
mod fail;
mod fault_log;
mod mount_users;
mod quantity;
mod switches;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().collect())
}
