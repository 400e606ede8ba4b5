//! Mounts an image for a launch.

use std::{
    fs::{self, File},
    io::Read,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileExt, MetadataExt},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::{
    fs::{Advice, MemfdFlags},
    mount::{MountFlags, UnmountFlags},
    process::Signal,
};

use super::{
    account::Account,
    variant::{ImageKind, Programs, Reader, Variant},
};
use crate::{
    Error, Result,
    error::ErrorContext,
    load::{Load, end},
    machine::{Change, PendingChange, PrivateDirectory, Undo},
    process_sys::die_with_parent,
};

/// How long a reader may take to mount.
const MOUNT_TIME_MAX: Duration = Duration::from_secs(20);
/// How long a reader may take to exit after its mount is gone.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Directories for mounts: empty ones, removed at the end.
#[derive(Debug)]
pub(crate) struct MountPoints {
    undo: Undo,
    root: PrivateDirectory,
}

/// A mounted image; unmounted when dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    path: PathBuf,
    server: Option<Child>,
    is_mounted: bool,
    /// The program that is asked for statistics at the end.
    floe: Option<PathBuf>,
    _changes: Vec<PendingChange>,
}

/// Additional requests to Floe, beyond the variant's options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    /// Whether to ask for statistics at the end.
    pub(crate) wants_account: bool,
    /// The file for a mark after each decode.
    pub(crate) decode_marks: Option<PathBuf>,
}

impl MountPoints {
    pub(crate) fn new(undo: &Undo) -> Result<Self> {
        Ok(Self { undo: undo.clone(), root: PrivateDirectory::create(undo)? })
    }

    /// Mounts the image according to the variant.
    pub(crate) fn mount(
        &self,
        variant: &Variant,
        index: usize,
        programs: &Programs,
        load: &Load,
        extras: &Extras,
    ) -> Result<Mounted> {
        if variant.reader == Reader::Directory {
            let path = variant.image.canonicalize().context(|| format!("cannot find {}", variant.image.shown()))?;
            return Ok(Mounted { path, server: None, is_mounted: false, floe: None, _changes: Vec::new() });
        }
        let path = self.root.path().join(index.to_string());
        let directory = self.undo.record(Change::Directory { path: path.clone() })?;
        fs::create_dir_all(&path).context(|| format!("cannot make {}", path.shown()))?;
        let mount = self.undo.record(Change::Mount { path: path.clone() })?;
        let has_account = extras.wants_account && variant.reader == Reader::Floe && programs.is_own_floe();
        let floe = has_account.then(|| programs.floe.clone());
        let mut mounted = Mounted { path, server: None, is_mounted: false, floe, _changes: vec![mount, directory] };
        match variant.reader {
            Reader::Kernel => mount_in_kernel(variant, &mounted.path)?,
            _ => mounted.serve(variant, programs, load, extras)?,
        }
        mounted.is_mounted = true;
        Ok(mounted)
    }
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The process that reads the image, if any.
    pub(crate) fn server_pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// Whether the process that reads the image has exited.
    pub(crate) fn has_lost_server(&mut self) -> bool {
        self.server.as_mut().is_some_and(|server| !matches!(server.try_wait(), Ok(None)))
    }

    /// Starts the process that reads the image and waits for its mount.
    fn serve(&mut self, variant: &Variant, programs: &Programs, load: &Load, extras: &Extras) -> Result<()> {
        let device = |path: &Path| fs::symlink_metadata(path).map(|status| status.dev());
        let before = device(&self.path).context(|| format!("cannot access {}", self.path.shown()))?;
        let mut more = Vec::new();
        if let Some(marks) = extras.decode_marks.as_ref().filter(|_| variant.reader == Reader::Floe) {
            more.push(format!("decode-marks={}", marks.display()));
        }
        let mut command = serve_command(variant, &self.path, programs, &more);
        let program = command.get_program().to_string_lossy().into_owned();
        let said = CapturedStderr::new()?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said.writer()?).process_group(0);
        // A killed process would leave a dead mount; a process that gets SIGTERM unmounts it.
        let command = load.confine(die_with_parent(&mut command, Signal::TERM))?;
        let mut child =
            command.spawn().context(|| format!("cannot run {program} (give its path with --peer NAME=PATH)"))?;
        let begin = Instant::now();
        while device(&self.path).is_ok_and(|device| device == before) {
            let status = child.try_wait().context(|| format!("cannot wait for {program}"))?;
            if status.is_some() || begin.elapsed() > MOUNT_TIME_MAX {
                let what =
                    status.map_or_else(|| "did not mount in time".to_owned(), |status| format!("ended: {status}"));
                end(&mut child, END_TIME_MAX);
                return Err(Error::new(format!("{program} {what}: {}", said.last_line())));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.server = Some(child);
        Ok(())
    }

    fn unmount(&mut self) {
        let path = &self.path;
        if !std::mem::take(&mut self.is_mounted) {
            return;
        }
        for _ in 0..100 {
            match rustix::mount::unmount(path, UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(10)),
                Err(rustix::io::Errno::PERM) => {
                    let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(path).status();
                    return;
                }
                _ => return,
            }
        }
        let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    }
}

impl Mounted {
    /// Unmounts; returns Floe's statistics if they were requested.
    pub(crate) fn end(mut self) -> Result<Option<Account>> {
        let account = self.floe.as_deref().map(|floe| Account::ask(floe, &self.path)).transpose();
        self.take_down();
        account
    }

    fn take_down(&mut self) {
        self.unmount();
        if let Some(server) = &mut self.server {
            let begin = Instant::now();
            while begin.elapsed() < END_TIME_MAX && matches!(server.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_micros(500));
            }
            end(server, END_TIME_MAX);
        }
        self.server = None;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.take_down();
        if !self._changes.is_empty() {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Drops the image from the page cache. The image must not be mounted.
pub(crate) fn forget_image(image: &Path) -> Result<()> {
    let file = fs::File::open(image).context(|| format!("cannot open {}", image.shown()))?;
    // Dirty pages cannot be dropped.
    let _ = file.sync_data();
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
        .context(|| format!("cannot drop {} from memory", image.shown()))
}

fn mount_in_kernel(variant: &Variant, path: &Path) -> Result<()> {
    let context = || format!("cannot mount {} in the kernel", variant.image.shown());
    let kind = ImageKind::of(&variant.image)?;
    // The option `loop` reads through a loop device, as from a disk.
    let through_loop = variant.options.split(',').any(|option| option == "loop");
    if kind == ImageKind::Erofs && !through_loop {
        // Linux 6.12 and later read the file without a loop device.
        let options = std::ffi::CString::new(variant.options.as_str()).map_err(|_| Error::new(context()))?;
        let mounted =
            rustix::mount::mount(&variant.image, path, kind.kernel_name(), MountFlags::RDONLY, options.as_c_str());
        match mounted {
            Err(rustix::io::Errno::NOTBLK) => {}
            other => return other.context(context),
        }
    }
    let given = variant.options.split(',').filter(|option| !option.is_empty() && *option != "loop");
    let options = ["ro", "loop"].into_iter().chain(given).collect::<Vec<_>>().join(",");
    let output = Command::new("mount")
        .args(["-t", kind.kernel_name(), "-o", &options])
        .args([&variant.image, path])
        .output()
        .context(|| "cannot run mount".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::new(format!("{}: {}", context(), String::from_utf8_lossy(&output.stderr).trim())))
}

fn serve_command(variant: &Variant, path: &Path, programs: &Programs, more: &[String]) -> Command {
    let mut command;
    match variant.reader {
        Reader::Erofsfuse | Reader::Squashfuse => {
            let is_erofs = variant.reader == Reader::Erofsfuse;
            command = Command::new(if is_erofs { &programs.erofsfuse } else { &programs.squashfuse });
            command.arg("-f");
        }
        _ => {
            command = Command::new(&programs.floe);
            command.arg("mount");
        }
    }
    for options in std::iter::once(&variant.options).chain(more).filter(|options| !options.is_empty()) {
        command.args(["-o", options]);
    }
    command.arg(&variant.image).arg(path);
    command
}

/// The maximum length read back.
const SAID_BYTES_MAX: u64 = 1 << 20;

/// A memory file for a child's messages.
#[derive(Debug)]
pub(crate) struct CapturedStderr(File);

impl CapturedStderr {
    pub(crate) fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("floe-lab-stderr", MemfdFlags::CLOEXEC);
        Ok(Self(File::from(file.context(|| "cannot make a file in memory".to_owned())?)))
    }

    /// The write end for the child.
    pub(crate) fn writer(&self) -> Result<Stdio> {
        let copy = self.0.try_clone().context(|| "cannot duplicate a file descriptor".to_owned())?;
        Ok(Stdio::from(OwnedFd::from(copy)))
    }

    /// The last nonempty line.
    pub(crate) fn last_line(&self) -> String {
        let mut bytes = Vec::new();
        let from_start = FromStart { file: &self.0, offset: 0 };
        let _ = from_start.take(SAID_BYTES_MAX).read_to_end(&mut bytes);
        let said = String::from_utf8_lossy(&bytes);
        said.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message").to_owned()
    }
}

/// Reads a file without moving the offset at which its writer writes.
struct FromStart<'file> {
    file: &'file File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read_at(bytes, self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_last_nonempty_line_is_returned() {
        for (script, expected) in [("echo a >&2; echo b >&2; echo >&2", "b"), ("true", "no message")] {
            let said = CapturedStderr::new().unwrap();
            Command::new("sh").args(["-c", script]).stderr(said.writer().unwrap()).status().unwrap();
            assert_eq!(said.last_line(), expected);
        }
    }
}
