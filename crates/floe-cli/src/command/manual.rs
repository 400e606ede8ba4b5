//! `floe manual`: the manual pages, made of the same definitions as `--help`.

use std::{fs, path::PathBuf};

use clap::Command;

use crate::{drop_in, exit::Exit, fail::Fail};

/// Write the manual pages of the program, of each command and of the names it stands in for
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The directory to write them to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command for the command line that `cli` describes.
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

/// The manual page of a name that the program stands in for: its help, set as it is.
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

/// A line that roff prints as it is.
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
