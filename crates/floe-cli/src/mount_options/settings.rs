//! What a list of options sets.

use std::path::PathBuf;

use floe::OpenOptions;
use floe_fuse::MountOptions;
use floe_sandbox::Mode;

use super::table::{FOR_THE_KERNEL, WITHOUT_EFFECT, find};
use crate::{fail::Fail, front::Front};

/// What a list of options sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// How the image is opened.
    pub(crate) open: OpenOptions,
    /// How it is mounted.
    pub(crate) mount: MountOptions,
    /// The name that the mount table shows, in place of the path of the image.
    pub(crate) source: Option<String>,
    /// Where to write what the mount has done, when it ends.
    pub(crate) account: Option<PathBuf>,
    /// Where to write a line after each decode.
    pub(crate) decode_marks: Option<PathBuf>,
    /// What stands between the image and its readers.
    pub(crate) front: Front,
    /// Whether the process is confined.
    pub(crate) sandbox: Mode,
}

/// Who gives the options, and so which of them are an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strictness {
    /// A user: what makes no sense is refused.
    User,
    /// mount(8), which adds `rw` by itself.
    MountHelper,
    /// mount(8) with `-s`: unknown options are ignored.
    Sloppy,
}

impl Settings {
    /// Takes a list of options, separated by commas. A comma in a value is quoted, as mount(8) has it
    /// (`context="a,b"`), or has a backslash before it.
    ///
    /// # Errors
    /// An option is unknown, or does not take its value.
    pub(crate) fn take_list(&mut self, list: &str, strictness: Strictness) -> Result<(), Fail> {
        for option in split(list) {
            match option.split_once('=') {
                Some((key, value)) => self.take(key, Some(value), strictness)?,
                None => self.take(&option, None, strictness)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, key: &str, value: Option<&str>, strictness: Strictness) -> Result<(), Fail> {
        if key.is_empty() || key.starts_with("x-") || key.starts_with("X-") || WITHOUT_EFFECT.contains(&key) {
            return Ok(());
        }
        if FOR_THE_KERNEL.contains(&key) {
            self.mount.kernel_options.push(value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")));
            return Ok(());
        }
        if key == "rw" {
            return match strictness {
                Strictness::User => Err(Fail::usage("images are read-only: leave out -o rw")),
                Strictness::MountHelper | Strictness::Sloppy => Ok(()),
            };
        }
        let name = key.replace('_', "-");
        match find(&name) {
            None if strictness == Strictness::Sloppy => Ok(()),
            None => Err(Fail::usage(format!("no such option: -o {key} (see floe mount -o help)"))),
            Some(row) if value.is_none() && !row.stands_alone() => {
                Err(Fail::usage(format!("-o {key} needs a value: -o {key}=…")))
            }
            Some(row) => row.set(self, &name, value).map_err(|reason| Fail::usage(format!("-o {key}: {reason}"))),
        }
    }
}

/// The options of a list, without their quotes and backslashes.
fn split(list: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = list.chars();
    while let Some(character) = characters.next() {
        let option = options.last_mut();
        match character {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => options.push(String::new()),
            '\\' => option.into_iter().for_each(|option| option.extend(characters.next())),
            _ => option.into_iter().for_each(|option| option.push(character)),
        }
    }
    options
}
