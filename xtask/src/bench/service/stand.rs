//! The stand of a benchmark: its folder, its end by a signal, and the check that nothing is left.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use floe_lab::Interrupt;
use rustix::{
    mount::UnmountFlags,
    process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid},
};
use tempfile::TempDir;

use crate::{
    bench::process_tree::{ProcessRecord, descendants},
    task_error::{Outcome, TaskError},
};

/// How long processes may take to end after the last unmount.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often signals and processes are looked at.
const GLANCE: Duration = Duration::from_millis(20);

/// A folder for mounts and sockets, which other users may enter, and all processes that the benchmark starts.
pub(super) struct Stand {
    folder: TempDir,
    interrupt: Interrupt,
    /// Processes that were started before.
    earlier: Vec<u32>,
}

impl Stand {
    /// Creates the folder. From now on, processes whose parents end are this process's.
    pub(super) fn new() -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("floe-bench-").tempdir()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        set_child_subreaper(Some(getpid()))?;
        let earlier = descendants(std::process::id())?.into_iter().map(|process| process.pid).collect();
        Ok(Self { folder, interrupt: Interrupt::listen(), earlier })
    }

    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All processes that were started since the stand was created.
    pub(super) fn processes(&self) -> Outcome<Vec<ProcessRecord>> {
        let mut processes = descendants(std::process::id())?;
        processes.retain(|process| !self.earlier.contains(&process.pid));
        Ok(processes)
    }

    /// Fails once a signal has asked for the end.
    pub(super) fn check(&self) -> Outcome {
        if self.interrupt.is_requested() { Err(TaskError::new("interrupted")) } else { Ok(()) }
    }

    /// Waits, unless a signal asks for the end.
    pub(super) fn rest(&self, duration: Duration) -> Outcome {
        let started = Instant::now();
        while let Some(left) = duration.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
            self.check()?;
            thread::sleep(left.min(GLANCE));
        }
        self.check()
    }

    /// Waits until all processes have ended.
    ///
    /// # Errors
    /// Something is still mounted, or a process goes on. It is unmounted and killed.
    pub(super) fn clear(&self) -> Outcome {
        let mut left: Vec<String> =
            self.mounts()?.iter().map(|path| format!("{} is still mounted", path.display())).collect();
        for path in self.mounts()?.iter().rev() {
            let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
        }
        let started = Instant::now();
        while !self.processes()?.is_empty() && started.elapsed() < PATIENCE {
            reap();
            thread::sleep(GLANCE);
        }
        for process in self.processes()? {
            let name = fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
            left.push(format!("process {} ({}) has not ended", process.pid, name.trim()));
            if let Some(pid) = Pid::from_raw(process.pid.cast_signed()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        TaskError::from_lines("left behind", &left)
    }

    fn mounts(&self) -> Outcome<Vec<PathBuf>> {
        let table = fs::read_to_string("/proc/self/mountinfo")?;
        let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        Ok(points.filter(|point| point.starts_with(self.folder.path())).collect())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("{error:?}");
        }
        reap();
    }
}

/// Waits for processes whose parents have ended. The benchmark waits for its own children before.
fn reap() {
    while matches!(waitpid(None, WaitOptions::NOHANG), Ok(Some(_))) {}
}
