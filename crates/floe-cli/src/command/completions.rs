//! `floe completions`: generates shell completions.

use clap::Command;
use clap_complete::Shell;

use crate::{fail::Fail, output::Output};

/// Print completions of commands and options for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  floe completions bash > /etc/bash_completion.d/floe
  floe completions zsh > /usr/local/share/zsh/site-functions/_floe
  floe completions fish > ~/.config/fish/completions/floe.fish")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
}

/// Runs the command for the command line `cli`.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(arguments: &Arguments, mut cli: Command) -> Result<u8, Fail> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut cli, "floe", &mut script);
    Output::print(String::from_utf8_lossy(&script))
}
