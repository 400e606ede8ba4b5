//! `floe manual`: generates the manual pages from the definitions of `--help`.

mod page;

use std::{fs, io, path::PathBuf};

use clap::Command;
use floe_image::ShownName;

use self::page::{Page, SECTION_COMMANDS, SECTION_MOUNT_HELPERS};
use super::mount_helper;
use crate::{drop_in, exit::Exit, fail::Fail};

/// Write the manual pages of the program, its commands and its drop-in names
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The output directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command for the command line `cli`.
///
/// # Errors
/// A page cannot be written.
pub(crate) fn run(arguments: &Arguments, cli: Command) -> Result<u8, Fail> {
    let directory = &arguments.directory;
    let failed = |error| Fail::failed(format!("{}: {error}", directory.shown()));
    fs::create_dir_all(directory).map_err(failed)?;
    for page in pages(cli).map_err(failed)? {
        fs::write(directory.join(page.file_name()), page.text()).map_err(failed)?;
    }
    Ok(Exit::Done.code())
}

/// All pages.
fn pages(cli: Command) -> io::Result<Vec<Page>> {
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    let mut pages = Vec::new();
    push_pages(&cli, &mut pages)?;
    for (name, help) in drop_in::helps() {
        pages.push(Page::of_help(name, &help));
    }
    let [name, others @ ..] = mount_helper::NAMES;
    pages.push(Page::of_command(&mount_helper::command_line(), SECTION_MOUNT_HELPERS, "floe-mount (1), mount (8)")?);
    pages.extend(others.map(|other| Page::alias(other, name, SECTION_MOUNT_HELPERS)));
    Ok(pages)
}

/// Adds the pages of a command and of the commands below it.
fn push_pages(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let is_program = pages.is_empty();
    let see_also = if is_program { "mount.floe (8)" } else { "floe (1)" };
    pages.push(Page::of_command(command, SECTION_COMMANDS, see_also)?);
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .try_for_each(|command| push_pages(command, pages))
}
