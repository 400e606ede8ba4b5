//! The command line.

use std::{
    ffi::{CString, OsString},
    io::{self, IsTerminal},
    os::unix::ffi::OsStringExt,
    path::Path,
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use floe_image::ShownName;
use floe_mount::service::{CHECK_COMMAND, DOMAIN_COMMAND};

use crate::{
    cancellation, command, confinement, drop_in,
    fail::{Exit, Fail},
    fake,
    output::Output,
    remote,
};

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
    Serve(command::serve::Arguments),
    Snapshotter(command::snapshotter::Arguments),
    Store(command::store::Arguments),
    Status(command::status::Arguments),
    Tune(command::tune::Arguments),
    Upgrade(command::upgrade::Arguments),
    Ls(command::ls::Arguments),
    Cat(command::cat::Arguments),
    Stat(command::stat::Arguments),
    Extract(command::extract::Arguments),
    Check(command::check::Arguments),
    Mkfs(command::mkfs::Arguments),
    Record(command::record::Arguments),
    Cache(command::cache::Arguments),
    Dump(command::dump::Arguments),
    Push(command::push::Arguments),
    Pull(command::pull::Arguments),
    Convert(command::convert::Arguments),
    Demo(command::demo::Arguments),
    Lab(command::lab::Arguments),
    /// Fetch a remote image (internal)
    #[command(hide = true, name = remote::FETCH_COMMAND)]
    Fetch,
    /// Fetch remote images for the service (internal)
    #[command(hide = true, name = remote::FETCH_SEVERAL_COMMAND)]
    FetchSeveral,
    /// Read images for the service (internal)
    #[command(hide = true, name = DOMAIN_COMMAND)]
    ServeForBroker,
    /// Check the metadata of a front for the service (internal)
    #[command(hide = true, name = CHECK_COMMAND)]
    CheckForBroker,
    /// Look up the names of a launch for the service (internal)
    #[command(hide = true, name = command::mount::WALK_COMMAND)]
    WalkForDomain(command::mount::WalkArguments),
    /// Trace a launch's reads (internal)
    #[command(hide = true, name = command::push::launch::LAUNCH_RANGES_COMMAND)]
    FindLaunch(command::push::launch::Arguments),
    /// Run a command in an image that is converted (internal)
    #[command(hide = true, name = command::convert::root::RUN_COMMAND)]
    RunInImage(command::convert::root::Arguments),
    Exporter(command::exporter::Arguments),
    Doctor(command::doctor::Arguments),
    Completions(command::completions::Arguments),
    #[command(hide = true)]
    Manual(command::manual::Arguments),
}

/// Runs the command line. The first argument is the program name, which selects a drop-in program if it is one's name.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    name_process(arguments.first());
    floe::keep_address_space();
    let program = drop_in::named(arguments.first());
    let is_check = program.is_none() && arguments.get(1).is_some_and(|command| command == "check");
    let abort_exit = if is_check { Exit::NotChecked } else { Exit::Failed };
    if let Err(fail) = cancellation::exit_on_abort(abort_exit.code()) {
        return finish(Err(fail)).into();
    }
    let result = match program {
        Some(program) => confinement::take_mode(&arguments).and_then(|(mode, arguments)| program(&arguments, mode)),
        None => match Cli::try_parse_from(&arguments) {
            Ok(Cli { command }) => run_command(command),
            Err(error) => {
                wrong(&error, &arguments).map_err(|fail| if is_check { fail.with_exit(Exit::CheckUsage) } else { fail })
            }
        },
    };
    finish(result).into()
}

fn run_command(command: Command) -> Result<u8, Fail> {
    if !matches!(command, Command::Mkfs(_) | Command::Extract(_) | Command::Lab(_)) {
        fake::leave();
    }
    match command {
        Command::Mount(arguments) => command::mount::run(arguments),
        Command::Umount(arguments) => command::umount::run(&arguments),
        Command::Status(arguments) => command::status::run(&arguments),
        Command::Tune(arguments) => command::tune::run(arguments),
        Command::Upgrade(arguments) => command::upgrade::run(&arguments),
        Command::Ls(arguments) => command::ls::run(&arguments),
        Command::Cat(arguments) => command::cat::run(&arguments),
        Command::Stat(arguments) => command::stat::run(&arguments),
        Command::Extract(arguments) => command::extract::run(&arguments),
        Command::Check(arguments) => command::check::run(&arguments),
        Command::Mkfs(arguments) => command::mkfs::run(&arguments),
        Command::Record(arguments) => command::record::run(arguments),
        Command::Cache(arguments) => command::cache::run(&arguments),
        Command::Dump(arguments) => command::dump::run(&arguments),
        Command::Push(arguments) => command::push::run(&arguments),
        Command::Pull(arguments) => command::pull::run(&arguments),
        Command::Convert(arguments) => command::convert::run(&arguments),
        Command::Demo(arguments) => command::demo::run(&arguments),
        Command::Lab(arguments) => command::lab::run(arguments),
        Command::Serve(arguments) => command::serve::run(&arguments),
        Command::Snapshotter(arguments) => command::snapshotter::run(&arguments),
        Command::Store(arguments) => command::store::run(&arguments),
        Command::ServeForBroker => command::serve::run_domain(),
        Command::CheckForBroker => command::serve::run_check(),
        Command::WalkForDomain(arguments) => command::mount::walk(&arguments),
        Command::Fetch => remote::fetch(),
        Command::FetchSeveral => remote::fetch_several(),
        Command::FindLaunch(arguments) => command::push::launch::run(&arguments),
        Command::RunInImage(arguments) => command::convert::root::run(&arguments),
        Command::Exporter(arguments) => command::exporter::run(&arguments),
        Command::Doctor(arguments) => command::doctor::run(&arguments),
        Command::Completions(arguments) => command::completions::run(&arguments, Cli::command()),
        Command::Manual(arguments) => command::manual::run(&arguments, Cli::command()),
    }
}

/// Gives the process the name of the program, its first argument. The kernel names a process for the file that it executes:
/// `exe`, if that is the link in `/proc`.
fn name_process(program: Option<&OsString>) {
    let name = program.and_then(|program| Path::new(program).file_name()).unwrap_or_default();
    if let Some(name) = CString::new(name.to_owned().into_vec()).ok().filter(|name| !name.is_empty()) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Returns the exit code. Prints the error, if there is one.
fn finish(result: Result<u8, Fail>) -> u8 {
    result.unwrap_or_else(|fail| {
        say!("floe: {fail}");
        fail.exit().code()
    })
}

/// Prints one line about a wrong command line. Requests for help and version succeed.
fn wrong(error: &clap::Error, arguments: &[OsString]) -> Result<u8, Fail> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let text = error.render();
        return if io::stdout().is_terminal() { Output::print(text.ansi()) } else { Output::print(text) };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Err(Fail::usage("a command is missing; see floe --help"));
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && let [_, image, directory, option, _] = arguments
        && option == "-o"
    {
        // For types without a mount helper, mount(8) calls mount.fuse3, which calls this program with these arguments.
        let image = remote::without_credentials(image.as_ref());
        let (image, directory) = (image.shown(), directory.shown());
        let program = std::env::current_exe().unwrap_or_else(|_| "floe".into());
        return Err(Fail::usage(format!(
            "{image} is not a command: run floe mount {image} {directory}, or, for mount -t fuse.floe, create the link that \
             mount looks for: ln -s {} /sbin/mount.fuse.floe",
            program.shown()
        )));
    }
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more")).collect();
    let message = remote::without_credentials_of(arguments, &lines.join(" "));
    Err(Fail::usage(format!("{}; see --help", message.strip_prefix("error: ").unwrap_or(&message))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_options_of_remote_images_stand_under_their_heading() {
        let remote =
            ["outage", "plain-http", "auth-file", "mirror", "require-verified", "cache-size", "cache-directory"];
        // All options of `floe cache` are about the cache.
        for command in Cli::command().get_subcommands().filter(|command| command.get_name() != "cache") {
            for option in command.get_arguments() {
                let stands_there = option.get_help_heading() == Some(remote::HEADING);
                let name = option.get_long().unwrap_or_default();
                assert_eq!(stands_there, remote.contains(&name), "{} --{name}", command.get_name());
            }
        }
    }
}
