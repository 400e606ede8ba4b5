//! Confines this process to its work on one image.

use std::{
    fs::{DirBuilder, File},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, FileTypeExt},
    },
    path::{Path, PathBuf},
};

use clap::Args;
use floe::{ExtractOptions, ExtractTarget, OpenError, OpenOptions, XattrSelection};
pub(crate) use floe_mount::confinement::{Opened, reading};
use floe_mount::{confinement::open_from, remote::RemoteFiles};
use floe_sandbox::{Access, Calls, Capability, Mode, Policy, Remover, Sandbox};
use rustix::fs::OFlags;

use crate::{fail::Fail, fake};

/// Whether the process that reads the image is confined.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct SandboxArguments {
    /// Confine the process that reads the image: auto (as far as the kernel supports it), require (or fail), off
    #[arg(long, value_name = "MODE", default_value = "auto", hide_default_value = true)]
    sandbox: Mode,
}

impl SandboxArguments {
    pub(crate) fn mode(self) -> Mode {
        self.sandbox
    }
}

/// Removes `--sandbox=MODE` from the arguments of a drop-in program and returns the mode.
///
/// # Errors
/// The mode does not exist.
pub(crate) fn take_mode(arguments: &[std::ffi::OsString]) -> Result<(Mode, Vec<std::ffi::OsString>), Fail> {
    let (mut mode, mut rest, mut are_options) = (Mode::default(), Vec::new(), true);
    for argument in arguments {
        are_options &= argument != "--";
        match argument.to_str().filter(|_| are_options) {
            Some(text) if text.starts_with("--sandbox=") => {
                mode =
                    text["--sandbox=".len()..].parse().map_err(|error| Fail::usage(format!("--sandbox: {error}")))?;
            }
            _ => rest.push(argument.clone()),
        }
    }
    Ok((mode, rest))
}

/// The rights of a process that extracts an image.
pub(crate) fn extracting(target: &mut Target, options: &ExtractOptions) -> Policy {
    let mut policy = reading();
    policy.calls = Calls { create: true, ..Calls::default() };
    policy.tree = target.take_directory();
    policy.capabilities = vec![Capability::DacOverride, Capability::Fowner, Capability::Fsetid, Capability::Mknod];
    if options.owners {
        policy.capabilities.push(Capability::Chown);
    }
    if matches!(options.xattrs, XattrSelection::All | XattrSelection::Accepted(_)) {
        policy.capabilities.extend([Capability::Setfcap, Capability::SysAdmin]);
    }
    policy
}

/// Confines a process that builds an image of others: it reads `sources`, and changes files only beside the outputs, of which
/// the image is the first.
///
/// # Errors
/// The process cannot be confined.
pub(crate) fn building<'a>(outputs: &[&Path], sources: impl Iterator<Item = &'a Path>, mode: Mode) -> Result<(), Fail> {
    let mut policy = reading();
    policy.calls = Calls { create: true, build: true, ..Calls::default() };
    // Archives may have access control lists with names.
    for path in ["/etc/passwd", "/etc/group"] {
        policy.allow(path, Access::Read);
    }
    sources.for_each(|source| policy.allow(source, Access::Read));
    for output in outputs {
        let directory = output.parent().filter(|directory| !directory.as_os_str().is_empty());
        policy.allow(directory.unwrap_or(Path::new(".")), Access::Files);
        if output.metadata().is_ok_and(|status| status.file_type().is_block_device()) {
            policy.allow(output, Access::ReadWrite);
        }
    }
    policy.capabilities = vec![
        Capability::Chown,
        Capability::DacOverride,
        Capability::Fowner,
        Capability::Fsetid,
        Capability::Setfcap,
        Capability::SysAdmin,
    ];
    let (sandbox, ()) = Sandbox::enter(policy, beside_fake(mode)?, || ())?;
    sandbox.seal()?;
    Ok(())
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
    // The fetching processes are started first: they need the network, and a confined process cannot start another.
    let remote = RemoteFiles::start(path, options)?;
    Ok(open_from(remote, path, options, policy, beside_fake(mode)?)?)
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

/// The target directory of an extraction, which is created if it is missing. If it was created, and is empty when this value is
/// dropped, it is removed.
pub(crate) struct Target {
    path: PathBuf,
    /// The directory; `None` once the sandbox has it.
    directory: io::Result<Option<OwnedFd>>,
    remover: Option<Remover>,
}

impl Target {
    /// Opens the directory, and creates it if it is missing. Errors are left for the extraction to report.
    pub(crate) fn new(path: &Path) -> Self {
        let made = DirBuilder::new().mode(0o700).create(path);
        // If no child process can be started, the directory stays.
        let remover = made.is_ok().then(|| Remover::start(path)).and_then(Result::ok);
        let directory = match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map(Some).map_err(Into::into)
            }
        };
        Self { path: path.to_owned(), directory, remover }
    }

    fn take_directory(&mut self) -> Option<OwnedFd> {
        self.directory.as_mut().ok().and_then(Option::take)
    }

    /// Keeps the directory, because the extraction starts. `tree` is the directory as the sandbox returned it.
    pub(crate) fn keep(mut self, tree: Option<OwnedFd>) -> ExtractTarget {
        self.remover.take().into_iter().for_each(Remover::keep);
        let path = self.path;
        match self.directory.map(|directory| tree.or(directory)).transpose() {
            Some(directory) => ExtractTarget::Open { directory, path },
            None => ExtractTarget::Path(path),
        }
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_mode_of_a_drop_in_program_is_one_word() {
        for (arguments, expected) in [
            ("-f image", Some((Mode::Auto, "-f image"))),
            ("--sandbox=off image", Some((Mode::Off, "image"))),
            ("--sandbox=require image", Some((Mode::Require, "image"))),
            ("--sandbox=off --sandbox=auto image", Some((Mode::Auto, "image"))),
            ("-- --sandbox=off", Some((Mode::Auto, "-- --sandbox=off"))),
            ("--sandbox off", Some((Mode::Auto, "--sandbox off"))),
            ("--sandbox=--sandbox=off", None),
            ("--sandbox=", None),
            ("--sandbox=no", None),
        ] {
            let words: Vec<OsString> = arguments.split(' ').map(Into::into).collect();
            let taken = take_mode(&words).ok().map(|(mode, rest)| (mode, rest.join(" ".as_ref())));
            assert_eq!(taken, expected.map(|(mode, rest)| (mode, rest.into())), "{arguments}");
        }
    }
}
