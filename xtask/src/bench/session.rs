//! A mount by one contender.

use std::{
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
};
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use super::contender::Contender;
use crate::task_error::{During, Outcome, TaskError};

/// How long a server may take to mount, and to exit after an unmount.
const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_millis(2);

/// An image mounted by a contender; unmounted when dropped.
pub(super) enum Session {
    Kernel(KernelMount),
    Server { child: Child, directory: TempDir },
}

impl Session {
    /// Mounts the image and waits for the mount.
    pub(super) fn new(contender: &Contender, image: &Path, format: Format) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("floe-bench-").tempdir()?;
        let Some(mut command) = contender.command(image, directory.path()) else {
            let image = Materialised { path: image.to_path_buf(), format, offset: 0, devices: Vec::new() };
            let mount =
                if contender.wants_loop() { KernelMount::through_loop(&image) } else { KernelMount::new(&image) };
            return mount.map(Self::Kernel).map_err(TaskError::new);
        };
        let before = fs::metadata(directory.path())?.dev();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().during(&contender.name)?;
        let started = Instant::now();
        while fs::metadata(directory.path())?.dev() == before {
            if let Some(status) = child.try_wait()? {
                let mut words = String::new();
                let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut words));
                return Err(TaskError::new(format!("{} exited ({status}): {}", contender.name, words.trim())));
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                return Err(TaskError::new(format!("{} did not mount within {PATIENCE:?}", contender.name)));
            }
            thread::sleep(POLL);
        }
        Ok(Self::Server { child, directory })
    }

    /// The mount point.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Kernel(mount) => mount.path(),
            Self::Server { directory, .. } => directory.path().to_path_buf(),
        }
    }

    /// The peak memory of the server so far in MiB: `VmHWM`. The kernel has no server.
    pub(super) fn resident_mib_max(&self) -> Option<f64> {
        let Self::Server { child, .. } = self else { return None };
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib / 1024.0)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Self::Server { child, directory } = self else { return };
        unmount(directory.path());
        let started = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if started.elapsed() > PATIENCE {
                eprintln!("process {} did not exit after its unmount and was killed", child.id());
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            thread::sleep(POLL);
        }
    }
}

fn unmount(directory: &Path) {
    let started = Instant::now();
    loop {
        let outcome = if rustix::process::geteuid().is_root() {
            rustix::mount::unmount(directory, UnmountFlags::empty()).map_err(|error| error.to_string())
        } else {
            let status = Command::new("fusermount3").arg("-u").arg(directory).status();
            status
                .map_err(|error| error.to_string())
                .and_then(|status| if status.success() { Ok(()) } else { Err("fusermount3 fails".to_owned()) })
        };
        match outcome {
            Ok(()) => return,
            Err(error) if started.elapsed() > PATIENCE => {
                eprintln!("{} stays mounted: {error}", directory.display());
                return;
            }
            Err(_) => thread::sleep(POLL * 10),
        }
    }
}
