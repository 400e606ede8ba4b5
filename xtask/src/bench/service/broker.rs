//! A running service.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::task_error::{During, Outcome, TaskError};

/// How long the service may take to end once nothing is mounted.
const PATIENCE: Duration = Duration::from_secs(30);

const GLANCE: Duration = Duration::from_millis(5);

/// `floe serve` with sockets and a cache directory in a folder of its own; ended when dropped.
pub(super) struct Broker {
    child: Child,
    folder: PathBuf,
}

impl Broker {
    /// Starts the service, and waits until it listens. With `users`, it serves all users within these limits.
    pub(super) fn start(program: &Path, folder: &Path, users: Option<&str>) -> Outcome<Self> {
        fs::create_dir_all(folder.join("cache"))?;
        let messages = File::create(folder.join("messages"))?;
        let mut command = Command::new(program);
        command.arg("serve").arg("--socket").arg(folder.join("service"));
        command.arg("-o").arg(format!("cache-directory={}", folder.join("cache").display()));
        if let Some(limits) = users {
            command.arg(format!("--users={limits}")).arg("--users-socket").arg(folder.join("users"));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(messages);
        let child = command.spawn().during("floe serve")?;
        let mut broker = Self { child, folder: folder.to_path_buf() };
        let mut line = String::new();
        if let Some(stdout) = broker.child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        if line.contains("serving mounts at") {
            Ok(broker)
        } else {
            Err(TaskError::new(format!("floe serve: {}", broker.messages())))
        }
    }

    /// The socket of root.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("service")
    }

    /// The socket of all users.
    pub(super) fn users_socket(&self) -> PathBuf {
        self.folder.join("users")
    }

    /// Ends the service, which has no mounts any more.
    ///
    /// # Errors
    /// It still has mounts, or it has printed messages.
    pub(super) fn end(mut self) -> Outcome {
        let Some(status) = self.stop()? else {
            return Err(TaskError::new(format!("the service does not end: {}", self.messages())));
        };
        let messages = self.messages();
        if status.success() && messages.is_empty() {
            return Ok(());
        }
        Err(TaskError::new(format!("the service ended ({status}): {messages}")))
    }

    /// Asks the service to end, and waits; `None` if it does not.
    fn stop(&mut self) -> Outcome<Option<ExitStatus>> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(GLANCE);
        }
        Ok(None)
    }

    fn messages(&self) -> String {
        fs::read_to_string(self.folder.join("messages")).unwrap_or_default().trim().to_owned()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // A killed service would leave the process that reads images behind.
        if matches!(self.child.try_wait(), Ok(None)) && !matches!(self.stop(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
