//! Confines this process to its work on one image.

use std::{
    env,
    fs::{DirBuilder, File},
    io,
    os::{fd::RawFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use floe::{ExtractOptions, ImageFiles, OpenError, OpenOptions, XattrSelection, remote::RemoteProcess};
use floe_sandbox::{Access, Calls, Capability, Enforced, Mode, Policy, Remover, Sandbox, SandboxError};

#[cfg(debug_assertions)]
use crate::compromised;
use crate::{fail::Fail, fake, remote};

/// Whether the process that reads the image is confined.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct SandboxArguments {
    /// Do not confine the process that reads the image
    #[arg(long, conflicts_with = "sandbox")]
    no_sandbox: bool,

    /// Confine the process that reads the image: auto (as far as the kernel supports it), require (or fail), off
    #[arg(long, value_name = "MODE", default_value = "auto", hide_default_value = true)]
    sandbox: Mode,
}

impl SandboxArguments {
    pub(crate) fn mode(self) -> Mode {
        if self.no_sandbox { Mode::Off } else { self.sandbox }
    }
}

impl From<SandboxError> for Fail {
    fn from(error: SandboxError) -> Self {
        Self::failed(error.to_string())
    }
}

/// Removes `--no-sandbox` and `--sandbox=MODE` from the arguments of a drop-in program and returns the mode.
///
/// # Errors
/// The mode does not exist.
pub(crate) fn take_mode(arguments: &[std::ffi::OsString]) -> Result<(Mode, Vec<std::ffi::OsString>), Fail> {
    let (mut mode, mut rest, mut are_options) = (Mode::default(), Vec::new(), true);
    for argument in arguments {
        are_options &= argument != "--";
        match argument.to_str().filter(|_| are_options) {
            Some("--no-sandbox") => mode = Mode::Off,
            Some(text) if text.starts_with("--sandbox=") => {
                let value = text.trim_start_matches("--sandbox=");
                mode = value.parse().map_err(|error| Fail::usage(format!("--sandbox: {error}")))?;
            }
            _ => rest.push(argument.clone()),
        }
    }
    Ok((mode, rest))
}

/// The rights of a process that reads an image and writes only to open files.
pub(crate) fn reading() -> Policy {
    let mut policy = Policy::default();
    // Files that the engine reads to learn about the machine.
    policy.allow("/proc/self", Access::Read);
    for path in ["/proc/loadavg", "/proc/meminfo", "/proc/pressure/memory"] {
        policy.allow(path, Access::Read);
    }
    policy.allow("/dev/null", Access::ReadWrite);
    policy
}

/// The rights of a process that extracts an image.
pub(crate) fn extracting(target: &Target, options: &ExtractOptions) -> Policy {
    let mut policy = reading();
    policy.calls = Calls { create: true, ..Calls::default() };
    policy.allow(target.path(), Access::Tree);
    policy.capabilities = vec![Capability::DacOverride, Capability::Fowner, Capability::Fsetid, Capability::Mknod];
    if options.owners {
        policy.capabilities.push(Capability::Chown);
    }
    if matches!(options.xattrs, XattrSelection::All | XattrSelection::Accepted(_)) {
        policy.capabilities.extend([Capability::Setfcap, Capability::SysAdmin]);
    }
    policy
}

/// The open files of an image in a confined process.
pub(crate) struct Opened {
    pub(crate) files: ImageFiles,
    pub(crate) enforced: Enforced,
    /// The process that fetches the image, if it is remote.
    pub(crate) remote: Option<Arc<RemoteProcess>>,
}

/// Opens the files of an image and confines the process to `policy`. The outer error is the sandbox's.
///
/// # Errors
/// The process cannot be confined.
pub(crate) fn open(
    path: &Path,
    options: &OpenOptions,
    policy: Policy,
    mode: Mode,
) -> Result<Result<Opened, OpenError>, Fail> {
    // The fetching process is started first: it needs the network, and a confined process cannot start another.
    let remote = remote::start(path, &options.remote)?;
    open_from(remote, path, options, policy, mode)
}

/// As [`open`], with the process that fetches the image, if it is remote.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_from(
    remote: Option<Arc<RemoteProcess>>,
    path: &Path,
    options: &OpenOptions,
    mut policy: Policy,
    mode: Mode,
) -> Result<Result<Opened, OpenError>, Fail> {
    if remote.is_none() {
        policy.allow_opening(path, Access::Read);
    }
    if let Some(directory) = &options.device_directory {
        policy.allow_opening(directory, Access::Read);
    }
    options.devices.iter().for_each(|device| policy.allow_opening(device, Access::Read));
    policy.descriptors = env::args_os().flat_map(|argument| descriptors_in(argument.as_encoded_bytes())).collect();
    #[cfg(debug_assertions)]
    compromised::prepare();
    let sandbox = Sandbox::enter(policy, beside_fake(mode)?)?;
    let files = match &remote {
        Some(process) => remote::files(process, options),
        None => ImageFiles::open(path, options),
    };
    let files = match files {
        Ok(files) => files,
        Err(error) => return Ok(Err(error)),
    };
    let enforced = sandbox.seal()?;
    #[cfg(debug_assertions)]
    compromised::on_a_thread();
    Ok(Ok(Opened { files, enforced, remote }))
}

/// The mode in which the process can be confined. A fake talks to its own process, and ends this one if it cannot.
fn beside_fake(mode: Mode) -> Result<Mode, Fail> {
    match (mode, fake::loaded()) {
        (Mode::Auto, Some(name)) => {
            say!("floe: {name} is loaded, which does not work in a sandbox: continuing without one");
            Ok(Mode::Off)
        }
        (Mode::Require, Some(name)) => {
            Err(Fail::failed(format!("{name} is loaded, which does not work in a sandbox; see --sandbox")))
        }
        _ => Ok(mode),
    }
}

/// The numbers of the descriptors that an argument names, such as `/dev/fd/N`.
fn descriptors_in(argument: &[u8]) -> Vec<RawFd> {
    let mut parts = argument.split(|byte| !byte.is_ascii_alphanumeric());
    let mut numbers = Vec::new();
    while let Some(part) = parts.next() {
        if part == b"fd" {
            let number: Option<RawFd> =
                parts.clone().next().and_then(|number| str::from_utf8(number).ok()?.parse().ok());
            numbers.extend(number);
        }
    }
    numbers
}

/// The target directory of an extraction, which is created if it is missing. If it was created, and is empty when this value is
/// dropped, it is removed.
pub(crate) struct Target {
    path: PathBuf,
    remover: Option<Remover>,
}

impl Target {
    /// Creates the directory if it is missing, because a sandbox can permit only existing directories. Errors are left
    /// for the extraction to report.
    pub(crate) fn new(path: &Path) -> Self {
        let is_made = DirBuilder::new().mode(0o700).create(path).is_ok();
        // If no child process can be started, the directory stays.
        let remover = is_made.then(|| Remover::start(path)).and_then(Result::ok);
        Self { path: path.to_owned(), remover }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory, because the extraction starts.
    pub(crate) fn keep(self) {
        self.remover.into_iter().for_each(Remover::keep);
    }
}

/// A file that a confined process writes. Unless it is [finished](OutputFile::finish), it is removed, or left as it was if
/// nothing was written.
pub(crate) struct OutputFile {
    file: File,
    is_regular: bool,
    is_made: bool,
    has_begun: bool,
    remover: Option<Remover>,
}

impl OutputFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true);
        let (file, is_made) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (options.open(path)?, false),
            file => (file?, true),
        };
        // Pipes and devices stay.
        let is_regular = file.metadata()?.is_file();
        let remover = is_regular.then(|| Remover::start(path)).and_then(Result::ok);
        Ok(Self { file, is_regular, is_made, has_begun: false, remover })
    }

    /// Empties the file, and returns it for writing.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub(crate) fn begin(&mut self) -> io::Result<&File> {
        self.has_begun = true;
        if self.is_regular {
            self.file.set_len(0)?;
        }
        Ok(&self.file)
    }

    /// Keeps the file, which is complete.
    pub(crate) fn finish(mut self) {
        self.remover.take().into_iter().for_each(Remover::keep);
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_made && !self.has_begun {
            self.remover.take().into_iter().for_each(Remover::keep);
        }
    }
}
