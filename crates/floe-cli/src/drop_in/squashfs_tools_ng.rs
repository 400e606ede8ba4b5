//! `sqfs2tar` and `tar2sqfs` of squashfs-tools-ng.

mod compressor;
mod option_table;
pub(super) mod sqfs2tar;
pub(super) mod tar2sqfs;

use std::ffi::{OsStr, OsString};

use floe_image::ShownName;

use super::erofs_tool::{GivenOption, Options};
use crate::{fail::Fail, output::Output};
use option_table::{OptionRow, Support};
pub(super) use option_table::{Program, help};

/// The exit code of all failures.
const FAILED: u8 = 1;
/// The version of squashfs-tools-ng whose options these are.
const VERSION: &str = "1.3.1";

impl Program {
    /// Prints a message with the name of the program.
    fn say(self, message: &str) {
        say!("{}: {message}", self.name());
    }

    /// Reports a failure.
    fn failed(self, message: &str) -> Result<u8, Fail> {
        self.say(message);
        Ok(FAILED)
    }

    /// Reports wrong usage.
    fn wrong(self, message: &str) -> Result<u8, Fail> {
        self.say(message);
        say!("Try `{} --help' for more information.", self.name());
        Ok(FAILED)
    }

    /// Reads the options, and passes each that has an effect to `take`, by its letter and with its value. Returns the operands,
    /// or the exit code if there is nothing else to do.
    fn options(
        self,
        arguments: &[OsString],
        mut take: impl FnMut(char, &OsStr) -> Result<(), String>,
    ) -> Result<Result<Vec<OsString>, u8>, Fail> {
        let mut options = Options::new(arguments, self.flags());
        while let Some(option) = options.next() {
            let row = match self.row(&option) {
                Ok(row) => row,
                Err(message) => return self.wrong(&message).map(Err),
            };
            if row.value.is_empty() && option.attached().is_some() {
                return self.wrong(&format!("option '--{}' doesn't allow an argument", row.name)).map(Err);
            }
            match (row.letter, row.support) {
                ('h', _) => return Output::print(help(self)).map(Err),
                ('V', _) => {
                    let (name, version) = (self.name(), env!("CARGO_PKG_VERSION"));
                    return Output::print(format_args!("{name} (squashfs-tools-ng) {VERSION} (floe {version})\n"))
                        .map(Err);
                }
                (_, Support::Refused(why)) => {
                    return self.failed(&format!("--{} is not offered by floe: {why}", row.name)).map(Err);
                }
                _ => {}
            }
            let value = if row.value.is_empty() { Some(OsString::new()) } else { options.value(&option) };
            let Some(value) = value else {
                return self.wrong(&format!("option '--{}' requires an argument", row.name)).map(Err);
            };
            if let Err(message) = take(row.letter, &value) {
                return self.failed(&message).map(Err);
            }
        }
        Ok(Ok(options.into_operands()))
    }

    /// The row of an option, whose long name may be abbreviated.
    fn row(self, option: &GivenOption) -> Result<&'static OptionRow, String> {
        let name = option.name.as_str();
        let mut letters = name.chars();
        if let (Some(letter), None) = (letters.next(), letters.next()) {
            return self.rows().iter().find(|row| row.letter == letter).ok_or(format!("invalid option -- '{name}'"));
        }
        let mut found = self.rows().iter().filter(|row| row.name.starts_with(name));
        let exact = self.rows().iter().find(|row| row.name == name);
        match (exact, found.next(), found.next()) {
            (Some(row), ..) | (None, Some(row), None) => Ok(row),
            (None, None, _) => Err(format!("unrecognized option '--{name}'")),
            (None, Some(_), Some(_)) => Err(format!("option '--{name}' is ambiguous")),
        }
    }

    /// The only operand, the image.
    fn image(self, operands: Vec<OsString>) -> Result<OsString, String> {
        let mut operands = operands.into_iter();
        match (operands.next(), operands.next()) {
            (Some(image), None) => Ok(image),
            (None, _) => Err("Missing argument: squashfs image".into()),
            (Some(_), Some(extra)) => Err(format!("Unknown extra argument {}", extra.shown())),
        }
    }
}

/// A path without slashes at its ends, doubled ones, and `.`; an error if it has `..` or nothing else.
fn plain_path(text: &OsStr) -> Result<Vec<u8>, String> {
    let names = text.as_encoded_bytes().split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    let names: Vec<&[u8]> = names.collect();
    if names.is_empty() || names.contains(&&b".."[..]) {
        Err(format!("Invalid name `{}`", text.shown()))
    } else {
        Ok(names.join(&b'/'))
    }
}
