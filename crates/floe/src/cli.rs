//! The command line.

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{command, drop_in, exit::Exit, fail::Fail};

/// Fast, predictable reads from compressed read-only images (EROFS, SquashFS), in userspace.
#[derive(Parser)]
#[command(name = "floe", version, after_help = Exit::HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mount(command::mount::Arguments),
    Umount(command::umount::Arguments),
}

/// Runs what the arguments ask for. The first of them is the name of the program, which may be that of another.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let result = match drop_in::named(arguments.first()) {
        Some(program) => program(&arguments),
        None => match Cli::parse_from(arguments).command {
            Command::Mount(arguments) => command::mount::run(arguments),
            Command::Umount(arguments) => command::umount::run(&arguments),
        },
    };
    finish(result).into()
}

/// The exit code; says what went wrong, if anything did.
fn finish(result: Result<u8, Fail>) -> u8 {
    result.unwrap_or_else(|fail| {
        eprintln!("floe: {fail}");
        fail.exit().code()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
