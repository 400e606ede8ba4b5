//! The `floe` command.
#![forbid(unsafe_code)]

#[macro_use]
mod say;

mod cancellation;
mod cli;
mod command;
mod compress_hints;
#[cfg(debug_assertions)]
mod compromised;
mod confinement;
mod control;
mod daemon;
mod doctor;
mod drop_in;
mod ending_signals;
mod erofs_report;
mod exit;
mod exporter;
mod expression_text;
mod fail;
mod fake;
mod front;
mod handover;
mod idle;
mod image_arguments;
mod inode_record;
mod iso_time;
mod journal;
mod launch;
mod mode_text;
mod mount;
mod mount_log;
mod mount_options;
mod mount_users;
mod output;
mod own_program;
mod owners;
mod quantity;
mod reachable_path;
mod remote;
mod report_file;
mod root_hash_file;
mod source_date_epoch;
mod status;
mod transport;
mod zone;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().collect())
}
