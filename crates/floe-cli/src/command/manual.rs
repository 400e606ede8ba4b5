//! `floe manual`: generates the manual pages from the definitions of `--help`.

use std::{fs, io, path::PathBuf};

use clap::Command;
use clap_mangen::Man;
use floe_image::ShownName;

use super::mount_helper;
use crate::{
    drop_in,
    fail::{Exit, Fail},
};

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

/// The section of the manual for programs of all users.
const SECTION_COMMANDS: u8 = 1;
/// The section of the manual for programs of the administrator.
const SECTION_MOUNT_HELPERS: u8 = 8;

/// The footer of each page.
const SOURCE: &str = concat!("floe ", env!("CARGO_PKG_VERSION"));

/// A manual page in roff.
struct Page {
    name: String,
    section: u8,
    text: String,
}

impl Page {
    /// The page of a command line that is defined with clap.
    ///
    /// # Errors
    /// The page cannot be rendered.
    fn of_command(command: &Command, section: u8, see_also: &str) -> io::Result<Self> {
        let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
        let man = Man::new(command.clone()).section(section.to_string()).source(SOURCE).manual("Floe");
        let mut roff = Vec::new();
        man.render_title(&mut roff)?;
        man.render_name_section(&mut roff)?;
        man.render_synopsis_section(&mut roff)?;
        man.render_description_section(&mut roff)?;
        if command.get_arguments().any(|argument| !argument.is_hide_set()) {
            man.render_options_section(&mut roff)?;
        }
        if command.get_subcommands().any(|command| !command.is_hide_set()) {
            man.render_subcommands_section(&mut roff)?;
        }
        let mut text = String::from_utf8_lossy(&roff).into_owned();
        if let Some(rest) = command.get_after_long_help().or_else(|| command.get_after_help()) {
            put_sections(&mut text, &rest.to_string());
        }
        put_see_also(&mut text, see_also);
        Ok(Self { name, section, text })
    }

    /// The page of a drop-in name: its help text, printed verbatim.
    fn of_help(name: &str, help: &str) -> Self {
        let mut text = format!(
            ".TH {name} {SECTION_COMMANDS} \"\" \"{SOURCE}\" \"Floe\"\n.SH NAME\n{name} \\- floe under the name of {name}\n.SH DESCRIPTION\n"
        );
        put_verbatim(&mut text, help.lines());
        put_see_also(&mut text, "floe (1)");
        Self { name: name.to_owned(), section: SECTION_COMMANDS, text }
    }

    /// A page that shows the page of another name of the same program.
    fn alias(name: &str, of: &str, section: u8) -> Self {
        Self { name: name.to_owned(), section, text: format!(".so man{section}/{of}.{section}\n") }
    }

    /// The name of the file for `man`.
    fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// The content of the file.
    fn text(&self) -> &str {
        &self.text
    }
}

/// Adds the text below the options of `--help`, with a section for each of its headings.
fn put_sections(roff: &mut String, text: &str) {
    let mut current = "";
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let mut lines: Vec<&str> = paragraph.lines().collect();
        let (heading, is_whole_line) = heading(lines[0]);
        // The lists below "Options for -o" consist of many paragraphs.
        let stays = current == "MOUNT OPTIONS" && heading == "NOTES" && lines.len() > 1 && lines[1].starts_with(' ');
        if !stays && heading != current {
            current = heading;
            roff.push_str(&format!(".SH {current}\n"));
        } else {
            roff.push_str(".PP\n");
        }
        if is_whole_line {
            lines.remove(0);
        }
        put_paragraph(roff, &lines);
    }
}

/// The section that a paragraph with this first line belongs to, and whether the line says nothing else.
fn heading(line: &str) -> (&'static str, bool) {
    match line.split_once(':') {
        Some(("Examples", rest)) => ("EXAMPLES", rest.is_empty()),
        Some(("Exit codes", rest)) => ("\"EXIT STATUS\"", rest.is_empty()),
        _ if line.starts_with("Options for -o") => ("MOUNT OPTIONS", false),
        _ => ("NOTES", false),
    }
}

/// Adds a paragraph: indented lines verbatim, others filled.
fn put_paragraph(roff: &mut String, lines: &[&str]) {
    for lines in lines.chunk_by(|line, next| line.starts_with(' ') == next.starts_with(' ')) {
        if lines[0].starts_with(' ') {
            put_verbatim(roff, lines.iter().copied());
        } else {
            lines.iter().for_each(|line| put_line(roff, line));
        }
    }
}

/// Adds lines that are printed as they are.
fn put_verbatim<'a>(roff: &mut String, lines: impl Iterator<Item = &'a str>) {
    roff.push_str(".nf\n");
    lines.for_each(|line| put_line(roff, line));
    roff.push_str(".fi\n");
}

fn put_line(roff: &mut String, line: &str) {
    roff.push_str(&escaped(line));
    roff.push('\n');
}

fn put_see_also(roff: &mut String, pages: &str) {
    roff.push_str(".SH \"SEE ALSO\"\n");
    let pages: Vec<_> = pages.split(", ").collect();
    for (index, page) in pages.iter().enumerate() {
        let end = if index + 1 < pages.len() { "," } else { "" };
        roff.push_str(&format!(".BR {}{end}\n", page.replace('-', "\\-")));
    }
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

    #[test]
    fn headings_of_help_become_sections() {
        for (help, roff) in [
            ("Examples:\n  floe a\n  floe b", ".SH EXAMPLES\n.nf\n  floe a\n  floe b\n.fi\n"),
            ("One line\nof text.", ".SH NOTES\nOne line\nof text.\n"),
            (
                "Examples:\n  floe\n\nText.\n\nMore.\n\nExit codes: as fsck\n  0  done",
                ".SH EXAMPLES\n.nf\n  floe\n.fi\n.SH NOTES\nText.\n.PP\nMore.\n.SH \"EXIT STATUS\"\nExit codes: as fsck\n.nf\n  0  \
                 done\n.fi\n",
            ),
            (
                "Options for -o:\n\nImage:\n  offset=SIZE\n\nText.",
                ".SH MOUNT OPTIONS\nOptions for \\-o:\n.PP\nImage:\n.nf\n  offset=SIZE\n.fi\n.SH NOTES\nText.\n",
            ),
        ] {
            let mut found = String::new();
            put_sections(&mut found, help);
            assert_eq!(found, roff, "{help}");
        }
    }
}
