//! A mount by one contender.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead, BufReader, Read},
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
pub(crate) enum Session {
    Kernel(KernelMount),
    Server { child: Child, directory: TempDir },
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
        let directory = tempfile::Builder::new().prefix("floe-bench-").tempdir()?;
        let Some(mut command) = contender.command(image, directory.path()) else {
            let image = Materialised { path: image.to_path_buf(), format, offset: 0, devices: Vec::new() };
            let mount =
                if contender.wants_loop() { KernelMount::through_loop(&image) } else { KernelMount::new(&image) };
            return mount.map(Self::Kernel).map_err(TaskError::new);
        };
        Self::served(&mut command, directory, &contender.name)
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
        let before = fs::metadata(directory.path())?.dev();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().during(name)?;
        let started = Instant::now();
        while fs::metadata(directory.path())?.dev() == before {
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
            Self::Server { directory, .. } => directory.path().to_path_buf(),
        }
    }

    /// The peak memory of the server so far in MiB: `VmHWM`. The kernel has no server.
    pub(super) fn resident_mib_max(&self) -> Option<f64> {
        let Self::Server { child, .. } = self else { return None };
        resident_mib_max(child.id())
    }

    /// The processes of the server so far: its own and their children. The kernel has none.
    pub(super) fn processes(&self) -> Outcome<Vec<Process>> {
        let Self::Server { child, .. } = self else { return Ok(Vec::new()) };
        let mut parents = HashMap::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            // The name may have spaces; what follows it is the state, the parent and so on.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let fields: Vec<u64> = stat
                .rsplit(')')
                .next()
                .map(|rest| rest.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect())
                .unwrap_or_default();
            if let (Some(parent), Some(ticks)) = (fields.first(), fields.get(10..12)) {
                parents.insert(pid, (*parent, ticks.iter().sum::<u64>()));
            }
        }
        let is_ours = |mut pid: u32| loop {
            if pid == child.id() {
                return true;
            }
            match parents.get(&pid).map(|(parent, _)| u32::try_from(*parent).unwrap_or(0)) {
                Some(parent) if parent > 1 => pid = parent,
                _ => return false,
            }
        };
        let ticks_per_s = rustix::param::clock_ticks_per_second() as f64;
        let ours = parents.iter().filter(|(pid, _)| is_ours(**pid));
        Ok(ours
            .map(|(pid, (_, ticks))| Process {
                cpu_s: *ticks as f64 / ticks_per_s,
                resident_mib_max: resident_mib_max(*pid).unwrap_or(0.0),
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
