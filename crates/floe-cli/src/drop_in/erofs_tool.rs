//! Option parsing and error messages that the tools of erofs-utils share.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use floe::{EngineOptions, ImageFiles, Offset, OpenError, OpenOptions, SuperblockChecksum, VolumeOptions, WorkerMode};
use floe_image::ShownName;
use floe_sandbox::{Mode, Policy};

use crate::{
    confinement::{self, Opened},
    fail::Fail,
    output::Output,
};

/// The tools' option for the offset of an image.
const OFFSET_OPTION: &str = "--offset=";

/// A tool of erofs-utils.
pub(super) struct ErofsTool<'a> {
    pub(super) name: &'static str,
    pub(super) help: &'a str,
    /// The exit code for wrong usage.
    pub(super) usage_exit: u8,
}

/// One option, as getopt_long returns it.
pub(super) struct GivenOption {
    /// The name without dashes; for a short option, its letter.
    pub(super) name: String,
    /// The text after `=`, or after the letter.
    attached: Option<OsString>,
}

/// The options of a command line in the order of getopt_long: operands may be anywhere, and `--` ends options.
pub(super) struct Options {
    rest: VecDeque<OsString>,
    /// Letters of options that take no value.
    flags: &'static str,
    operands: Vec<OsString>,
}

/// Options about the image that every tool has.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) offset: u64,
    pub(super) devices: Vec<PathBuf>,
    pub(super) superblock_checksum: SuperblockChecksum,
    /// Whether the process is confined.
    pub(super) sandbox: Mode,
}

impl ErofsTool<'_> {
    /// Prints a message on stderr.
    pub(super) fn say(&self, message: &str) {
        say!("<E> erofs: {message}");
    }

    /// Refers to `--help`.
    pub(super) fn hint(&self) {
        say!("Try '{} --help' for more information.", self.name);
    }

    /// Reports wrong usage.
    pub(super) fn wrong(&self, message: &str) -> Result<u8, Fail> {
        self.say(message);
        self.hint();
        Ok(self.usage_exit)
    }

    /// Reports a missing operand, or too many operands.
    pub(super) fn wrong_operands(&self, operands: &[OsString], missing: &str) -> Result<u8, Fail> {
        match operands.get(1) {
            Some(unexpected) => self.wrong(&format!("unexpected argument: {}", unexpected.shown())),
            None => self.wrong(&format!("missing argument: {missing}")),
        }
    }

    /// Reports any other failure.
    pub(super) fn failed(&self, message: &str, exit: u8) -> Result<u8, Fail> {
        self.say(message);
        Ok(exit)
    }

    /// Reports that the image cannot be opened.
    pub(super) fn unopened(&self, error: OpenError) -> Result<u8, Fail> {
        let errno = match &error {
            OpenError::File { error, .. } | OpenError::Device { error, .. } => error.raw_os_error().unwrap_or(5),
            _ => 22,
        };
        let exit = if self.usage_exit == 1 { 1 } else { u8::try_from(256 - errno.clamp(1, 255)).unwrap_or(1) };
        let message = match error {
            OpenError::MissingDevice { path, index, .. } => {
                format!("{}: needs extra device {index}: give its file with --device", path.shown())
            }
            error => Fail::from(error).with_offset_option(OFFSET_OPTION).to_string(),
        };
        self.failed(&message, exit)
    }

    /// Handles the options that every tool has, and reports unknown ones.
    pub(super) fn standard(&self, option: &GivenOption) -> Result<u8, Fail> {
        match option.name.as_str() {
            "h" | "help" => return Output::print(self.help),
            "V" | "version" => {
                return Output::print(format_args!("{} (floe) {}\n", self.name, env!("CARGO_PKG_VERSION")));
            }
            name if name.chars().count() == 1 => {
                say!("{}: invalid option -- '{name}'", self.name);
            }
            name => {
                say!("{}: unrecognized option '--{name}'", self.name);
            }
        }
        self.hint();
        Ok(self.usage_exit)
    }
}

impl Options {
    /// The options in `arguments`, which begin with the program name.
    pub(super) fn new(arguments: &[OsString], flags: &'static str) -> Self {
        Self { rest: arguments.iter().skip(1).cloned().collect(), flags, operands: Vec::new() }
    }

    /// The next option.
    pub(super) fn next(&mut self) -> Option<GivenOption> {
        loop {
            let argument = self.rest.pop_front()?;
            let bytes = argument.as_bytes();
            if bytes == b"--" {
                self.operands.extend(self.rest.drain(..));
                return None;
            }
            if let Some(long) = bytes.strip_prefix(b"--") {
                let (name, value) = match long.iter().position(|byte| *byte == b'=') {
                    Some(sign) => (&long[..sign], Some(OsStr::from_bytes(&long[sign + 1..]).to_owned())),
                    None => (long, None),
                };
                return Some(GivenOption { name: String::from_utf8_lossy(name).into_owned(), attached: value });
            }
            if let Some([letter, rest @ ..]) = bytes.strip_prefix(b"-") {
                let name = char::from(*letter);
                let mut attached = None;
                if !rest.is_empty() && self.flags.contains(name) {
                    // Letters without values may be combined.
                    self.rest.push_front(OsString::from_vec([b"-", rest].concat()));
                } else if !rest.is_empty() {
                    attached = Some(OsStr::from_bytes(rest).to_owned());
                }
                return Some(GivenOption { name: name.into(), attached });
            }
            self.operands.push(argument);
        }
    }

    /// The value of an option that requires one.
    pub(super) fn value(&mut self, option: &GivenOption) -> Option<OsString> {
        option.attached.clone().or_else(|| self.rest.pop_front())
    }

    /// The operands: all arguments that are not options.
    pub(super) fn into_operands(mut self) -> Vec<OsString> {
        self.operands.extend(self.rest.drain(..));
        self.operands
    }
}

impl GivenOption {
    /// The value after `=`, for an option with an optional value.
    pub(super) fn attached(&self) -> Option<&OsStr> {
        self.attached.as_deref()
    }
}

impl Wanted {
    /// Handles an option if it is about the image. Returns whether it was.
    pub(super) fn take(&mut self, option: &GivenOption, options: &mut Options) -> Result<bool, String> {
        match option.name.as_str() {
            "offset" => {
                let value = options.value(option).unwrap_or_default();
                self.offset = number(&value).ok_or_else(|| format!("invalid disk offset {}", value.shown()))?;
            }
            "device" => {
                let value = options.value(option).ok_or("option '--device' requires an argument")?;
                self.devices.push(value.into());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens the files of the image and confines the process to `policy`. The outer error is the sandbox's.
    pub(super) fn open_files(&self, image: &Path, policy: Policy) -> Result<Result<ImageFiles, OpenError>, Fail> {
        Ok(self.open_confined(image, policy)?.map(|opened| opened.files))
    }

    /// As [`open_files`](Self::open_files), with the directory of an extraction.
    pub(super) fn open_confined(&self, image: &Path, policy: Policy) -> Result<Result<Opened, OpenError>, Fail> {
        confinement::open(image, &self.open_options(), policy, self.sandbox)
    }

    /// The options for opening the image.
    pub(super) fn open_options(&self) -> OpenOptions {
        let engine = EngineOptions { workers: WorkerMode::Inline, reserved_pages: 0, ..EngineOptions::default() };
        let volume = VolumeOptions { read_around: false, ..VolumeOptions::default() };
        let offset = if self.offset == 0 { Offset::None } else { Offset::At(self.offset) };
        let (devices, superblock_checksum) = (self.devices.clone(), self.superblock_checksum);
        OpenOptions { offset, devices, superblock_checksum, engine, volume, ..OpenOptions::default() }
    }
}

/// Parses a number like strtoull: decimal, hexadecimal after `0x`, octal after `0`.
pub(super) fn number(text: &OsStr) -> Option<u64> {
    let text = text.to_str()?;
    match (text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")), text.strip_prefix('0')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, Some(digits)) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}
