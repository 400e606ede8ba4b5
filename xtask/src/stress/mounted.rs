//! A mount under stress.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::corpus::Materialised;
use serde_json::Value;

use crate::task_error::{During, Outcome, TaskError};

/// A generous time limit for every step.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mount and its server.
pub(super) struct Mounted<'a> {
    program: &'a Path,
    server: Child,
    directory: Option<tempfile::TempDir>,
}

impl<'a> Mounted<'a> {
    pub(super) fn new(program: &'a Path, files: &Materialised, switches: &str) -> Outcome<Self> {
        let directory = tempfile::Builder::new().prefix("floe-stress-").tempdir()?;
        let mut command = Command::new(program);
        command.arg("mount").arg(&files.path).arg(directory.path()).args(["-o", switches]);
        if files.offset > 0 {
            command.args(["--offset", &files.offset.to_string()]);
        }
        for device in &files.devices {
            command.arg("--device").arg(device);
        }
        let server = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut mounted = Self { program, server: server.during("the program")?, directory: Some(directory) };
        let mut line = String::new();
        if let Some(stdout) = mounted.server.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.contains("is mounted on") { Ok(mounted) } else { Err(TaskError::new(mounted.end(switches)?)) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.as_ref().map(|directory| directory.path().to_owned()).unwrap_or_default()
    }

    /// The output of `floe status --json`.
    pub(super) fn status(&self) -> Outcome<Value> {
        let output = self.run(&["status", "--json"])?;
        serde_json::from_str(&output).during("the status")
    }

    pub(super) fn tune(&self, change: &str) -> Outcome {
        self.run(&["tune", change]).map(drop)
    }

    /// Waits until no work is pending, and checks that all pages are back.
    pub(super) fn check_pages(&self) -> Outcome {
        self.tune("cache=0")?;
        let started = Instant::now();
        loop {
            let report = self.status()?;
            let places = [
                &report["page_pool"]["used_pages"],
                &report["block_cache"]["used_bytes"],
                &report["work"]["outstanding"],
            ];
            if places.iter().all(|count| count.as_u64() == Some(0)) {
                break;
            }
            if started.elapsed() > PATIENCE {
                return Err(TaskError::new(format!("pages did not return to the pool: {report}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let faults = &self.status()?["faults"];
        let is_sound = faults.as_object().is_some_and(|faults| faults.values().all(|count| count.as_u64() == Some(0)));
        if is_sound { Ok(()) } else { Err(TaskError::new(format!("faults: {faults}"))) }
    }

    /// Unmounts, and waits until that is done.
    pub(super) fn unmount(&self, lazily: bool) -> Outcome {
        let started = Instant::now();
        loop {
            let unmounted = self.run(if lazily { &["umount", "--lazy"] } else { &["umount"] });
            match unmounted {
                Ok(_) => return Ok(()),
                // A killed reader closes its files slightly later.
                Err(_) if started.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the server to exit successfully.
    pub(super) fn wait(mut self) -> Outcome {
        let words = self.end("")?;
        if words.is_empty() { Ok(()) } else { Err(TaskError::new(words)) }
    }

    /// Kills the server.
    pub(super) fn kill(&self) -> Outcome {
        let server = rustix::process::Pid::from_child(&self.server);
        Ok(rustix::process::kill_process(server, rustix::process::Signal::KILL).map_err(std::io::Error::from)?)
    }

    /// Waits until the killed server has ended.
    pub(super) fn wait_for_killed(mut self) -> Outcome {
        self.end("").map(drop)
    }

    /// Waits for the server to exit; returns a description of any fault.
    fn end(&mut self, context: &str) -> Outcome<String> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.server.try_wait()? {
                break status;
            }
            if started.elapsed() > PATIENCE {
                return Err(TaskError::new("the server did not exit"));
            }
            thread::sleep(Duration::from_millis(2));
        };
        let mut words = String::new();
        if let Some(mut stderr) = self.server.stderr.take() {
            stderr.read_to_string(&mut words)?;
        }
        Ok(if status.success() && words.is_empty() { String::new() } else { format!("{context} {status}: {words}") })
    }

    fn run(&self, arguments: &[&str]) -> Outcome<String> {
        let mut command = Command::new(self.program);
        let output = command.arg(arguments[0]).arg(self.path()).args(&arguments[1..]).output().during("the program")?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(TaskError::new(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if matches!(self.server.try_wait(), Ok(None)) {
            let _ = self.unmount(true);
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}
