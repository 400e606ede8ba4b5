//! `floe completions`: generates shell completions.

use clap::Command;
use clap_complete::Shell;

use crate::{drop_in, fail::Fail, output::Output};

/// Print completions of commands and options for a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  floe completions bash > /etc/bash_completion.d/floe
  floe completions zsh > /usr/local/share/zsh/site-functions/_floe
  floe completions fish > ~/.config/fish/completions/floe.fish
  floe completions bash mkfs.erofs > /etc/bash_completion.d/mkfs.erofs")]
pub(crate) struct Arguments {
    /// The shell
    shell: Shell,
    /// The program to complete: floe, or a drop-in name (with bash, zsh or fish)
    #[arg(value_name = "NAME", default_value = "floe")]
    program: String,
}

/// Runs the command for the command line `cli`.
///
/// # Errors
/// There is no program with this name, it has no completions for this shell, or standard output cannot be written.
pub(crate) fn run(arguments: &Arguments, mut cli: Command) -> Result<u8, Fail> {
    let Arguments { shell, program } = arguments;
    if program == "floe" {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut cli, "floe", &mut script);
        return Output::print(String::from_utf8_lossy(&script));
    }
    let helps = drop_in::helps();
    let Some((name, help)) = helps.iter().find(|(name, _)| name == program) else {
        let names = helps.map(|(name, _)| name).join(", ");
        return Err(Fail::usage(format!("{program} is neither floe nor a drop-in name ({names})")));
    };
    let script = drop_in::completion::script(*shell, name, help);
    Output::print(script.ok_or_else(|| Fail::usage(format!("drop-in names have no completions for {shell}")))?)
}
