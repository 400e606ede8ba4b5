//! The command line.

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand, error::ErrorKind};

use crate::{command, confinement, drop_in, exit::Exit, fail::Fail};

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
    Status(command::status::Arguments),
    Tune(command::tune::Arguments),
    Ls(command::ls::Arguments),
    Cat(command::cat::Arguments),
    Stat(command::stat::Arguments),
    Extract(command::extract::Arguments),
    Check(command::check::Arguments),
    Mkfs(command::mkfs::Arguments),
    Record(command::record::Arguments),
    Dump(command::dump::Arguments),
    Demo(command::demo::Arguments),
    Lab(command::lab::Arguments),
}

/// Runs what the arguments ask for. The first of them is the name of the program, which may be that of another.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let result = match drop_in::named(arguments.first()) {
        Some(program) => confinement::take_mode(&arguments).and_then(|(mode, arguments)| program(&arguments, mode)),
        None => match Cli::try_parse_from(&arguments) {
            Ok(Cli { command }) => run_command(command),
            Err(error) => {
                let is_check = arguments.get(1).is_some_and(|command| command == "check");
                wrong(&error).map_err(|fail| if is_check { fail.with_exit(Exit::CheckUsage) } else { fail })
            }
        },
    };
    finish(result).into()
}

fn run_command(command: Command) -> Result<u8, Fail> {
    match command {
        Command::Mount(arguments) => command::mount::run(arguments),
        Command::Umount(arguments) => command::umount::run(&arguments),
        Command::Status(arguments) => command::status::run(&arguments),
        Command::Tune(arguments) => command::tune::run(arguments),
        Command::Ls(arguments) => command::ls::run(&arguments),
        Command::Cat(arguments) => command::cat::run(&arguments),
        Command::Stat(arguments) => command::stat::run(&arguments),
        Command::Extract(arguments) => command::extract::run(&arguments),
        Command::Check(arguments) => command::check::run(&arguments),
        Command::Mkfs(arguments) => command::mkfs::run(&arguments),
        Command::Record(arguments) => command::record::run(arguments),
        Command::Dump(arguments) => command::dump::run(&arguments),
        Command::Demo(arguments) => command::demo::run(&arguments),
        Command::Lab(arguments) => command::lab::run(arguments),
    }
}

/// The exit code; says what went wrong, if anything did.
fn finish(result: Result<u8, Fail>) -> u8 {
    result.unwrap_or_else(|fail| {
        eprintln!("floe: {fail}");
        fail.exit().code()
    })
}

/// What to say about a wrong command line: one line. Help and version are no mistakes.
fn wrong(error: &clap::Error) -> Result<u8, Fail> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Nothing is left to be done if nobody reads it.
        let _ = error.print();
        return Ok(Exit::Done.code());
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Fail::usage("a command is missing; see floe --help"));
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    let message = lines.join(" ");
    Err(Fail::usage(format!("{}; see --help", message.strip_prefix("error: ").unwrap_or(&message))))
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
