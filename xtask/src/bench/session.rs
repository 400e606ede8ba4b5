//! A mount by one contender.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::{
    KernelMount,
    corpus::{Format, Materialised},
};
use rustix::{
    fs::{AtFlags, CWD, StatxFlags},
    io::Errno,
    mount::UnmountFlags,
};
use tempfile::TempDir;

use super::{contender::Contender, process_tree};
use crate::task_error::{During, Outcome, TaskError};

/// How long a server may take to mount, and to exit after an unmount.
const PATIENCE: Duration = Duration::from_secs(30);

const POLL: Duration = Duration::from_micros(200);

/// An image mounted by a contender; unmounted when dropped.
pub(crate) enum Session {
    Kernel(KernelMount),
    Server {
        child: Child,
        directory: TempDir,
    },
    /// By a service, which goes on.
    Service {
        directory: TempDir,
    },
}

/// A process of a server.
pub(super) struct Process {
    /// Its CPU time so far.
    pub(super) cpu_s: f64,
    /// Its peak memory so far: `VmHWM`.
    pub(super) resident_mib_max: f64,
}

impl Session {
    /// Mounts the image and waits for the mount.
    pub(super) fn new(contender: &Contender, image: &Path, format: Format) -> Outcome<Self> {
        Self::new_in(&env::temp_dir(), contender, image, format)
    }

    /// Mounts the image in a folder, and waits for the mount. The kernel's own mounts are elsewhere.
    pub(super) fn new_in(folder: &Path, contender: &Contender, image: &Path, format: Format) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("floe-bench-").tempdir_in(folder)?;
        if let Some(user) = contender.user() {
            user.own(directory.path())?;
        }
        let Some(mut command) = contender.command(image, directory.path()) else {
            let image = Materialised::single(image, format);
            let mount =
                if contender.wants_loop() { KernelMount::through_loop(&image) } else { KernelMount::new(&image) };
            return mount.map(Self::Kernel).map_err(TaskError::new);
        };
        if !contender.is_client() {
            return Self::served(&mut command, directory, &contender.name);
        }
        let output = command.stdin(Stdio::null()).output().during(&contender.name)?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(TaskError::new(format!("{} fails ({}): {}", contender.name, output.status, words.trim())));
        }
        Ok(Self::Service { directory })
    }

    /// Runs Floe, which mounts on a directory, its last argument, and waits for the line that reports the mount.
    pub(super) fn by(mut command: Command, name: &str) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("floe-bench-").tempdir()?;
        command.arg(directory.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().during(name)?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.is_empty() {
            return Err(TaskError::new(format!("{name} exited ({}) and did not mount", child.wait()?)));
        }
        Ok(Self::Server { child, directory })
    }

    /// Runs any server in the foreground, which mounts on a directory, its last argument, and waits for the mount.
    pub(crate) fn by_any(command: &mut Command, name: &str) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("floe-bench-").tempdir()?;
        command.arg(directory.path());
        Self::served(command, directory, name)
    }

    fn served(command: &mut Command, directory: TempDir, name: &str) -> Outcome<Self> {
        let before = device_of(directory.path())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().during(name)?;
        let started = Instant::now();
        while device_of(directory.path())? == before {
            if let Some(status) = child.try_wait()? {
                let mut words = String::new();
                let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut words));
                return Err(TaskError::new(format!("{} exited ({status}): {}", name, words.trim())));
            }
            if started.elapsed() > PATIENCE {
                let _ = child.kill();
                let _ = child.wait();
                return Err(TaskError::new(format!("{} did not mount within {PATIENCE:?}", name)));
            }
            thread::sleep(POLL);
        }
        Ok(Self::Server { child, directory })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Kernel(mount) => mount.path(),
            Self::Server { directory, .. } | Self::Service { directory } => directory.path().to_path_buf(),
        }
    }

    /// The peak memory of the server so far in MiB: `VmHWM`. The kernel has no server, and a service has other mounts, too.
    pub(super) fn resident_mib_max(&self) -> Option<f64> {
        let Self::Server { child, .. } = self else { return None };
        resident_mib_max(child.id())
    }

    /// The processes of the server so far: its own and their children. The kernel has none, and a service is not counted.
    pub(super) fn processes(&self) -> Outcome<Vec<Process>> {
        let Self::Server { child, .. } = self else { return Ok(Vec::new()) };
        let records = process_tree::descendants(child.id())?;
        Ok(records
            .into_iter()
            .map(|record| Process {
                cpu_s: record.cpu_s,
                resident_mib_max: resident_mib_max(record.pid).unwrap_or(0.0),
            })
            .collect())
    }
}

fn resident_mib_max(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

impl Drop for Session {
    fn drop(&mut self) {
        let (child, directory) = match self {
            Self::Kernel(_) => return,
            Self::Service { directory } => return unmount(directory.path()),
            Self::Server { child, directory } => (child, directory),
        };
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

/// The device that a path is on. Other users' FUSE mounts refuse to tell more.
fn device_of(path: &Path) -> Outcome<(u32, u32)> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS);
    let stat = stat.or_else(|_| rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::empty()));
    let stat = stat.during(path.display())?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

fn unmount(directory: &Path) {
    let started = Instant::now();
    loop {
        let outcome = if rustix::process::geteuid().is_root() {
            match rustix::mount::unmount(directory, UnmountFlags::empty()) {
                // Something else has unmounted it.
                Err(Errno::INVAL) => return eprintln!("{} was not mounted any more", directory.display()),
                outcome => outcome.map_err(|error| error.to_string()),
            }
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
