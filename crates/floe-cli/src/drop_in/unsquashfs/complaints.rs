//! Reports what an extraction by `unsquashfs` could not do, a line for each entry.
//!
//! Programs look for some of the words, such as those about devices: these are the words of the original.

use std::{fmt, io, os::unix::ffi::OsStrExt};

use floe::{
    Attr, ExtractAction, ExtractOmission, ExtractPart, ExtractSummary, ExtractWarning, ExtractWarningCause, FileType,
    XattrSelection,
};
use floe_sync::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::{arguments::Arguments, progress::Progress};
use floe_image::Shown;

/// The maximum number of printed messages about a lack of room for extended attributes.
const NO_ROOM_MAX: u32 = 10;

/// Reports what an extraction could not do, and remembers how it ends.
pub(super) struct Complaints<'a> {
    arguments: &'a Arguments,
    progress: &'a Progress,
    is_root: bool,
    state: Mutex<State>,
}

/// How an extraction ended.
#[derive(Default)]
pub(super) struct Outcome {
    /// Whether anything was reported that the original takes for an error.
    pub(super) has_errors: bool,
    /// Whether the original ends at one of these errors.
    pub(super) is_fatal: bool,
    /// The links and special files of which parts were left out.
    pub(super) incomplete: ExtractSummary,
}

#[derive(Default)]
struct State {
    outcome: Outcome,
    /// Whether the target file system has no extended attributes, so that no more is said about them.
    has_no_xattrs: bool,
    /// Whether it was said that only root may set some attributes.
    has_named_root: bool,
    /// The number of attributes without room.
    no_room: u32,
}

/// Whether the original ends at an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Always,
    UnlessIgnored,
    IfStrict,
    Never,
}

impl<'a> Complaints<'a> {
    pub(super) fn new(arguments: &'a Arguments, progress: &'a Progress) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { arguments, progress, is_root, state: Mutex::default() }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        self.state.into_inner().outcome
    }

    /// Reports parts of an entry that were left out.
    pub(super) fn omitted(&self, path: &[u8], attr: &Attr, parts: &[ExtractOmission]) {
        let (path, mut state) = (self.in_target(path), self.lock());
        let mut is_incomplete = false;
        for ExtractOmission { part, error } in parts {
            let what = match part {
                ExtractPart::Entry => {
                    let (kind, ends) = (kind(attr.file_type), ends_without(attr.file_type));
                    self.say(&mut state, ends, &format!("failed to create {kind} {path}, because {}", Reason(error)));
                    continue;
                }
                ExtractPart::HardLink if !self.arguments.strict => {
                    let why = Reason(error);
                    self.progress.say(format_args!("{path} is a copy instead of a hard link, because {why}"));
                    continue;
                }
                ExtractPart::Xattr(name) => {
                    is_incomplete |= self.omitted_xattr(&mut state, name, &path, error);
                    continue;
                }
                ExtractPart::HardLink => "make a hard link of the copy",
                ExtractPart::Owner => "change uid and gids on",
                ExtractPart::Mode => "change mode of",
                _ => "set time on",
            };
            self.say(&mut state, Ends::IfStrict, &format!("failed to {what} {path}, because {}", Reason(error)));
            is_incomplete = true;
        }
        let incomplete = &mut state.outcome.incomplete;
        match attr.file_type {
            _ if !is_incomplete => {}
            FileType::Symlink => incomplete.symlinks += 1,
            FileType::CharacterDevice | FileType::BlockDevice => incomplete.devices += 1,
            FileType::Fifo => incomplete.fifos += 1,
            FileType::Socket => incomplete.sockets += 1,
            FileType::Regular | FileType::Directory => {}
        }
    }

    /// Reports an extended attribute that was left out, unless enough was said. Returns whether the original takes this for
    /// an error of the file.
    fn omitted_xattr(&self, state: &mut State, name: &[u8], path: &str, error: &io::Error) -> bool {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let failed = format!("failed to write xattr {} for file {path}, because", Shown(name));
        if state.has_no_xattrs {
            return false;
        }
        if !self.is_root && !XattrSelection::User.includes(name) {
            if std::mem::replace(&mut state.has_named_root, true) {
                return false;
            }
            let advice = "-user-xattrs or -no-xattrs avoids this message, which is not repeated";
            self.say(state, Ends::IfStrict, &format!("{failed} only root may set it: {advice}"));
            return true;
        }
        match errno {
            Some(Errno::NOTSUP) => {
                state.has_no_xattrs = true;
                let advice = "all are left out, and -no-xattrs avoids this message";
                let why = "the target file system does not support extended attributes";
                self.say(state, Ends::IfStrict, &format!("{failed} {why}: {advice}"));
            }
            Some(Errno::NOSPC | Errno::DQUOT) => {
                state.no_room += 1;
                let rest = if state.no_room == NO_ROOM_MAX { "; no more of these messages follow" } else { "" };
                if state.no_room <= NO_ROOM_MAX {
                    let why = "the target file system has no room for it";
                    self.say(state, Ends::UnlessIgnored, &format!("{failed} {why}{rest}"));
                }
            }
            _ => self.say(state, Ends::UnlessIgnored, &format!("{failed} {}", Reason(error))),
        }
        true
    }

    /// Reports an entry that is missing or incomplete.
    pub(super) fn failed(&self, warning: &ExtractWarning) {
        use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
        let ExtractWarning { path, cause } = warning;
        let path = self.in_target(path);
        let (action, error) = match cause {
            ExtractWarningCause::Target(action, error) => (*action, error),
            ExtractWarningCause::Image(_) => {
                return self.say(&mut self.lock(), Ends::UnlessIgnored, &format!("{path}: {cause}"));
            }
            _ => return self.say(&mut self.lock(), Ends::IfStrict, &format!("{path}: {cause}")),
        };
        let ends = match (action, error.kind()) {
            // The original cannot remove it.
            (_, DirectoryNotEmpty) => Ends::Always,
            (ExtractAction::Create(FileType::Regular), AlreadyExists) => Ends::Always,
            (ExtractAction::Create(file_type), _) => ends_without(file_type),
            (ExtractAction::HardLink | ExtractAction::Write | ExtractAction::Resize, _) => Ends::UnlessIgnored,
            _ => Ends::IfStrict,
        };
        let what = match action {
            ExtractAction::Create(file_type) => format!("create {} {path}", kind(file_type)),
            ExtractAction::HardLink => format!("create hardlink {path}"),
            ExtractAction::Reopen => format!("open the directory of {path} again"),
            ExtractAction::Write | ExtractAction::Resize => format!("write file {path}"),
            ExtractAction::Owner => format!("change uid and gids on {path}"),
            ExtractAction::Mode => format!("change mode of {path}"),
            ExtractAction::Time => format!("set time on {path}"),
            ExtractAction::Xattr => format!("write an xattr for file {path}"),
            _ => format!("remove incomplete file {path}"),
        };
        let advice = if error.kind() == AlreadyExists { ": -f replaces it" } else { "" };
        self.say(&mut self.lock(), ends, &format!("failed to {what}, because {}{advice}", Reason(error)));
    }

    /// Prints a message.
    fn say(&self, state: &mut State, ends: Ends, message: &str) {
        let is_fatal = match ends {
            Ends::Always => true,
            Ends::UnlessIgnored => !self.arguments.ignores_errors,
            Ends::IfStrict => self.arguments.strict,
            Ends::Never => false,
        };
        state.outcome.has_errors = true;
        state.outcome.is_fatal |= is_fatal;
        self.progress.say(format_args!("{}{message}", if is_fatal { "FATAL ERROR: " } else { "" }));
    }

    /// The path of an entry, below the target as it is on the command line.
    fn in_target(&self, path: &[u8]) -> String {
        let target = self.arguments.target.as_os_str().as_bytes();
        let path = if path == b"/" { target.to_vec() } else { [target, path].concat() };
        Shown(&path).to_string()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// An error of the operating system in the words of the original, which has no number.
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        formatter.write_str(text.split(" (os error").next().unwrap_or(&text))
    }
}

/// Whether the original ends if it cannot create an entry of this type.
fn ends_without(file_type: FileType) -> Ends {
    match file_type {
        FileType::Regular | FileType::Directory => Ends::UnlessIgnored,
        FileType::Symlink | FileType::CharacterDevice | FileType::BlockDevice => Ends::IfStrict,
        FileType::Fifo | FileType::Socket => Ends::Never,
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}
