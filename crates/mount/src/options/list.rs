//! Lists of options, as `-o` has them.

use super::{
    Settings,
    table::{FOR_THE_KERNEL, WITHOUT_EFFECT, find},
};
use crate::failure::Failure;

/// The origin of the options, which decides which of them are errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// A user: options that make no sense are refused.
    User,
    /// mount(8), which adds `rw` itself.
    MountHelper,
    /// mount(8) with `-s`: unknown options are ignored.
    Sloppy,
}

impl Settings {
    /// Parses a list of options, separated by commas. A comma in a value must be quoted as for mount(8)
    /// (`context="a,b"`), or escaped with a backslash.
    ///
    /// # Errors
    /// An option is unknown, or does not accept its value.
    pub fn take_list(&mut self, list: &str, strictness: Strictness) -> Result<(), Failure> {
        for option in split(list) {
            match option.split_once('=') {
                Some((key, value)) => self.take(key, Some(value), strictness)?,
                None => self.take(&option, None, strictness)?,
            }
        }
        Ok(())
    }

    fn take(&mut self, key: &str, value: Option<&str>, strictness: Strictness) -> Result<(), Failure> {
        if key.is_empty() || key.starts_with("x-") || key.starts_with("X-") || WITHOUT_EFFECT.contains(&key) {
            return Ok(());
        }
        if FOR_THE_KERNEL.contains(&key) {
            self.mount.kernel.others.push(value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")));
            return Ok(());
        }
        if key == "remount" {
            return Err(Failure::usage(
                "a mount of Floe cannot be remounted: change options with floe tune DIR, or unmount it and mount it again",
            ));
        }
        if key == "rw" {
            return match strictness {
                Strictness::User => Err(Failure::usage("images are read-only: omit -o rw")),
                Strictness::MountHelper | Strictness::Sloppy => Ok(()),
            };
        }
        let name = key.replace('_', "-");
        match find(&name) {
            None if strictness == Strictness::Sloppy => Ok(()),
            None => Err(Failure::usage(format!("no such option: -o {key} (see floe mount -o help)"))),
            Some(row) if value.is_none() && !row.stands_alone() => {
                Err(Failure::usage(format!("-o {key} needs a value: -o {key}=…")))
            }
            Some(row) => row.set(self, &name, value).map_err(|reason| Failure::usage(format!("-o {key}: {reason}"))),
        }
    }
}

/// Splits a list into options, and removes quotes and backslashes.
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
