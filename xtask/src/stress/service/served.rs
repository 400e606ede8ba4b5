//! A service under stress.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::Random;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    stress::is_mounted,
    task_error::{During, Outcome, TaskError},
};

/// The interval at which states are looked at.
const GLANCE: Duration = Duration::from_millis(10);

/// A service with its mounts.
pub(super) struct Served {
    broker: Child,
    folder: PathBuf,
    /// The program of clients.
    program: PathBuf,
    places: Vec<tempfile::TempDir>,
}

impl Served {
    pub(super) fn start(program: &Path, folder: &Path) -> Outcome<Self> {
        let broker = started(program, folder)?;
        Ok(Self { broker, folder: folder.to_owned(), program: program.to_owned(), places: Vec::new() })
    }

    pub(super) fn mount(&mut self, image: &Path, front: &str) -> Outcome {
        let place = tempfile::Builder::new().prefix("floe-stress-").tempdir()?;
        let options = format!("front={front},cache-directory={}", self.folder.join("cache").display());
        self.run(&["mount", "--service", "-o", &options], &[image, place.path()])?;
        self.places.push(place);
        Ok(())
    }

    pub(super) fn places(&self) -> Vec<PathBuf> {
        self.places.iter().map(|place| place.path().to_owned()).collect()
    }

    /// Kills one of the processes that read images.
    pub(super) fn kill_domain(&self, random: &mut Random) -> Outcome {
        let domains = self.domains()?;
        let Some(domain) = domains.get(random.below(domains.len().max(1) as u64) as usize) else {
            return Err(TaskError::new("no process reads images"));
        };
        kill(*domain)
    }

    /// Kills the broker, and starts another one, as a service manager does.
    pub(super) fn replace_broker(&mut self, program: &Path) -> Outcome {
        kill(self.broker.id())?;
        self.broker.wait()?;
        self.broker = started(program, &self.folder)?;
        Ok(())
    }

    pub(super) fn upgrade(&self, program: &Path) -> Outcome {
        self.run(&["upgrade", "--program"], &[program]).map(drop)
    }

    /// Waits until the service knows all mounts, and a process serves each.
    pub(super) fn wait_until_managed(&self, patience: Duration) -> Outcome {
        let started = Instant::now();
        loop {
            let managed = self.processes()?.len();
            if managed == self.places.len() {
                return Ok(());
            }
            if started.elapsed() > patience {
                return Err(TaskError::new(format!(
                    "{managed} of {} mounts are managed: {}",
                    self.places.len(),
                    self.messages()
                )));
            }
            thread::sleep(GLANCE);
        }
    }

    /// Checks that all mounts are there, unmounts them, and stops the service. Returns its messages.
    pub(super) fn end(mut self) -> Outcome<String> {
        for place in &self.places {
            if !is_mounted(place.path())? {
                return Err(TaskError::new(format!(
                    "{} is not mounted any more: {}",
                    place.path().display(),
                    self.messages()
                )));
            }
            self.run(&["umount"], &[place.path()])?;
        }
        kill_process(Pid::from_child(&self.broker), Signal::TERM)?;
        self.broker.wait()?;
        Ok(self.messages())
    }

    /// The processes that read images.
    fn domains(&self) -> Outcome<Vec<u32>> {
        let mut domains = self.processes()?;
        domains.sort_unstable();
        domains.dedup();
        Ok(domains)
    }

    /// The process of each mount that the service knows.
    fn processes(&self) -> Outcome<Vec<u32>> {
        let listed = self.run(&["status"], &[])?;
        let of = |place: &tempfile::TempDir| {
            let path = format!("{} ", place.path().display());
            let line = listed.lines().find(|line| line.starts_with(&path))?;
            line.rsplit_once("service, process ")?.1.trim().parse().ok()
        };
        Ok(self.places.iter().filter_map(of).collect())
    }

    fn messages(&self) -> String {
        fs::read_to_string(self.folder.join("messages")).unwrap_or_default()
    }

    fn run(&self, arguments: &[&str], paths: &[&Path]) -> Outcome<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(paths).env("FLOE_SERVICE", self.folder.join("service"));
        let output = command.output().during("the program")?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(TaskError::new(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let domains = self.domains().unwrap_or_default();
        for place in &self.places {
            if is_mounted(place.path()).unwrap_or(true) {
                let _ = self.run(&["umount", "--lazy"], &[place.path()]);
            }
        }
        if matches!(self.broker.try_wait(), Ok(None)) {
            let _ = self.broker.kill();
            let _ = self.broker.wait();
            domains.into_iter().for_each(|domain| drop(kill(domain)));
        }
    }
}

/// Starts a broker, and waits until it listens.
fn started(program: &Path, folder: &Path) -> Outcome<Child> {
    let messages = File::options().create(true).append(true).open(folder.join("messages"))?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--socket").arg(folder.join("service"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(messages);
    let mut broker = command.spawn().during("the program")?;
    let mut line = String::new();
    if let Some(stdout) = broker.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    match line.contains("serving mounts at") {
        true => Ok(broker),
        false => {
            let _ = broker.kill();
            let _ = broker.wait();
            Err(TaskError::new(fs::read_to_string(folder.join("messages")).unwrap_or_default()))
        }
    }
}

fn kill(process: u32) -> Outcome {
    let process = Pid::from_raw(process.cast_signed()).ok_or_else(|| TaskError::new("no process"))?;
    Ok(kill_process(process, Signal::KILL)?)
}
