//! An image mounted by `floe mount`.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use floe_testkit::corpus::Materialised;
use tempfile::TempDir;

/// How long a server may take to end after its unmount.
const PATIENCE: Duration = Duration::from_secs(120);

/// An image mounted by `floe mount` in the foreground; unmounted by `floe umount` when dropped.
pub(crate) struct Served {
    server: Child,
    // Dropped last, because a mounted directory cannot be removed.
    directory: TempDir,
}

impl Served {
    /// Mounts an image, and waits until the program reports the mount. `front` is the value of `-o front=`.
    ///
    /// # Errors
    /// The image cannot be mounted; the text is the program's standard error.
    pub(crate) fn new(image: &Materialised, front: &str) -> Result<Self, String> {
        let front = format!("front={front}");
        Self::with(image, &["-o".as_ref(), front.as_ref()], &[])
    }

    /// As [`Served::new`], with further options and variables of the environment.
    ///
    /// # Errors
    /// As [`Served::new`].
    pub(crate) fn with(image: &Materialised, options: &[&OsStr], variables: &[(&str, &OsStr)]) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("floe-served-").tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg("mount").args(super::image_arguments(image)).args(options).arg(&image.path).arg(directory.path());
        command.envs(variables.iter().copied());
        let mut server =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("floe runs");
        let mut line = String::new();
        let stdout = server.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it writes text");
        if line.contains("is mounted on") {
            return Ok(Self { server, directory });
        }
        let mut words = String::new();
        let _ = server.stderr.take().expect("it is piped").read_to_string(&mut words);
        let status = server.wait().expect("it ends");
        Err(format!("{status}: {}", words.trim()))
    }

    /// The mountpoint.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_path_buf()
    }

    /// The process that serves it.
    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    /// The peak memory of the server so far, in bytes.
    pub(crate) fn resident_bytes_max(&self) -> u64 {
        let path = Path::new("/proc").join(self.server.id().to_string()).join("status");
        let status = fs::read_to_string(path).expect("the server lives");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux says so");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
        kib << 10
    }

    /// Unmounts, and returns the faults in the end of the server, usually none.
    pub(crate) fn end(mut self) -> Vec<String> {
        let mut told = self.unmount();
        let started = Instant::now();
        while self.server.try_wait().expect("it is ours").is_none() {
            if started.elapsed() > PATIENCE {
                told.push("does not end after its unmount".to_owned());
                return told;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let status = self.server.wait().expect("it ended");
        if !status.success() {
            told.push(format!("ends with {status}"));
        }
        let mut words = String::new();
        let _ = self.server.stderr.take().expect("it is piped").read_to_string(&mut words);
        if words.contains("panicked at") {
            told.push(words);
        }
        told
    }

    /// Unmounts. Retries for a while if the mount is in use, because a process that another test has just started holds
    /// copies of this one's descriptors until it executes its program.
    fn unmount(&self) -> Vec<String> {
        let started = Instant::now();
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            let output = command.arg("umount").arg(self.directory.path()).output().expect("floe runs");
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.success() {
                true => return Vec::new(),
                false if words.contains("in use") && started.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(10));
                }
                false => return vec![words],
            }
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if matches!(self.server.try_wait(), Ok(None)) {
            self.unmount();
            let _ = self.server.kill();
            let _ = self.server.wait();
        }
    }
}
