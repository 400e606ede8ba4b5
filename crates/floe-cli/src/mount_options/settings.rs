//! The settings that a list of options makes.

use std::{path::PathBuf, time::Duration};

use floe::OpenOptions;
use floe_fuse::MountOptions;
use floe_sandbox::Mode;

use super::table::{FOR_THE_KERNEL, WITHOUT_EFFECT, find};
use crate::{fail::Fail, front::Front, launch::ProfileChoice, transport::TransportChoice};

/// The settings that a list of options makes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// Options for opening the image.
    pub(crate) open: OpenOptions,
    /// Options for mounting it.
    pub(crate) mount: MountOptions,
    /// The source name in the mount table, instead of the path of the image.
    pub(crate) source: Option<String>,
    /// The directory of the image that is mounted, instead of its root.
    pub(crate) subdirectory: Option<PathBuf>,
    /// The file for a line after each decode.
    pub(crate) decode_marks: Option<PathBuf>,
    /// Whether the kernel's EROFS is in front.
    pub(crate) front: Front,
    /// How requests come from the kernel.
    pub(crate) transport: TransportChoice,
    /// The launch that is replayed or recorded.
    pub(crate) profile: ProfileChoice,
    /// How long mounting waits for the replay of a launch that has a bundle; `None` for the default.
    pub(crate) launch_wait: Option<Duration>,
    /// Whether the process is confined.
    pub(crate) sandbox: Mode,
    /// Whether the user has set `deadline`. If not, it follows `outage`.
    pub(crate) has_deadline: bool,
}

/// The origin of the options, which decides which of them are errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Strictness {
    /// A user: options that make no sense are refused.
    User,
    /// mount(8), which adds `rw` itself.
    MountHelper,
    /// mount(8) with `-s`: unknown options are ignored.
    Sloppy,
}

impl Settings {
    /// Sets how long a request may take.
    pub(super) fn set_deadline(&mut self, time: Option<Duration>) {
        (self.mount.deadline, self.has_deadline) = (time, true);
    }

    /// Parses a list of options, separated by commas. A comma in a value must be quoted as for mount(8)
    /// (`context="a,b"`), or escaped with a backslash.
    ///
    /// # Errors
    /// An option is unknown, or does not accept its value.
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
            self.mount.kernel.others.push(value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}")));
            return Ok(());
        }
        if key == "remount" {
            return Err(Fail::usage(
                "a mount of Floe cannot be remounted: change options with floe tune DIR, or unmount it and mount it again",
            ));
        }
        if key == "rw" {
            return match strictness {
                Strictness::User => Err(Fail::usage("images are read-only: omit -o rw")),
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
