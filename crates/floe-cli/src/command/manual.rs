//! `floe manual`: generates the manual pages from the definitions of `--help`.

use std::{fs, path::PathBuf};

use clap::Command;

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
    let failed = |error| Fail::failed(format!("{}: {error}", directory.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(cli.disable_help_subcommand(true), directory).map_err(failed)?;
    for (name, help) in drop_in::helps() {
        let path = directory.join(format!("{name}.1"));
        fs::write(path, drop_in_page(name, &help)).map_err(failed)?;
    }
    Ok(Exit::Done.code())
}

/// The manual page of a drop-in name: its help text, printed verbatim.
fn drop_in_page(name: &str, help: &str) -> String {
    let help: Vec<String> = help.lines().map(escaped).collect();
    format!(
        ".TH {name} 1 \"\" \"floe {version}\"\n\
         .SH NAME\n{name} \\- floe under the name of {name}\n\
         .SH DESCRIPTION\n.nf\n{help}\n.fi\n\
         .SH SEE ALSO\n.BR floe (1)\n",
        version = env!("CARGO_PKG_VERSION"),
        help = help.join("\n"),
    )
}

/// Escapes a line so that roff prints it verbatim.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roff_prints_lines_as_they_are() {
        for (line, roff) in
            [("-o a.b", "\\-o a.b"), (".hidden", "\\&.hidden"), ("'quoted'", "\\&'quoted'"), ("a\\b", "a\\eb")]
        {
            assert_eq!(escaped(line), roff);
        }
    }
}
