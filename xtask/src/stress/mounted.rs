//! A mount that is stressed.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::corpus::Materialised;
use serde_json::Value;

use crate::complaint::{Complaint, During, Outcome};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A mount and the program that serves it.
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
        if line.contains("is mounted on") { Ok(mounted) } else { Err(Complaint::new(mounted.end(switches)?)) }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.as_ref().map(|directory| directory.path().to_owned()).unwrap_or_default()
    }

    /// What `floe status --json` says.
    pub(super) fn status(&self) -> Outcome<Value> {
        let output = self.run(&["status", "--json"])?;
        serde_json::from_str(&output).during("the status")
    }

    pub(super) fn tune(&self, change: &str) -> Outcome {
        self.run(&["tune", change]).map(drop)
    }

    /// Waits until nothing is under way, and sees that all pages are back.
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
                return Err(Complaint::new(format!("pages do not come back: {report}")));
            }
            thread::sleep(Duration::from_millis(5));
        }
        let faults = &self.status()?["faults"];
        let is_sound = faults.as_object().is_some_and(|faults| faults.values().all(|count| count.as_u64() == Some(0)));
        if is_sound { Ok(()) } else { Err(Complaint::new(format!("faults: {faults}"))) }
    }

    /// Unmounts, and waits until that is done.
    pub(super) fn unmount(&self, lazily: bool) -> Outcome {
        let started = Instant::now();
        loop {
            let unmounted = self.run(if lazily { &["umount", "--lazy"] } else { &["umount"] });
            match unmounted {
                Ok(_) => return Ok(()),
                // A reader that was killed lets go of its files a little later.
                Err(_) if started.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(20)),
                Err(complaint) => return Err(complaint),
            }
        }
    }

    /// Waits for the server to end, as it should.
    pub(super) fn wait(mut self) -> Outcome {
        let words = self.end("")?;
        if words.is_empty() { Ok(()) } else { Err(Complaint::new(words)) }
    }

    /// Waits for the server to end; gives what is wrong with that.
    fn end(&mut self, context: &str) -> Outcome<String> {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.server.try_wait()? {
                break status;
            }
            if started.elapsed() > PATIENCE {
                return Err(Complaint::new("the server does not end"));
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
        Err(Complaint::new(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
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
