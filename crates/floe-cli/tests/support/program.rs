//! The built program and its mounts.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// The time limit of each step of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A command of the built program, without arguments.
pub(crate) fn floe() -> Command {
    Command::new(env!("CARGO_BIN_EXE_floe"))
}

/// The demonstration image of the project.
pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/demo.erofs").canonicalize().expect("the demo image")
}

/// A directory to mount on. Dropping it unmounts it.
pub(crate) struct Place {
    directory: Option<tempfile::TempDir>,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("floe-mounting-").tempdir().expect("a directory");
        let path = directory.path().canonicalize().expect("a directory");
        Self { directory: Some(directory), path }
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let table = String::from_utf8_lossy(&fs::read("/proc/self/mountinfo").expect("the mount table")).into_owned();
        table.lines().any(|line| line.split(' ').nth(4).is_some_and(|path| Path::new(path) == self.path))
    }

    /// Its line in the mount table.
    pub(crate) fn mount_line(&self) -> String {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
        let path = self.path.to_str().expect("text");
        table.lines().find(|line| line.contains(path)).expect("it is mounted").to_owned()
    }

    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// As the function [`wait_until_unused`].
    pub(crate) fn wait_until_unused(&self) {
        wait_until_unused(&self.path);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.is_mounted() {
            if rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH).is_err() {
                // Removing the directory would remove files in the mount.
                let _ = self.directory.take().map(tempfile::TempDir::keep);
                return;
            }
        }
    }
}

/// Reads what a program prints on its standard error, on a thread.
fn read_errors(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, errors) = mpsc::channel();
    let mut stderr = child.stderr.take().expect("it is piped");
    thread::spawn(move || {
        let mut text = String::new();
        let _ = stderr.read_to_string(&mut text);
        sender.send(text)
    });
    errors
}

/// A program that serves a mount in the foreground. It is killed when dropped.
pub(crate) struct Serving {
    child: Option<Child>,
    pub(crate) pid: Pid,
    pub(crate) ready: String,
    errors: mpsc::Receiver<String>,
    pub(crate) place: Place,
}

impl Serving {
    /// Mounts an image, through FUSE alone unless the arguments say otherwise, and waits until the mount works.
    pub(crate) fn new<A: AsRef<OsStr>>(image: &Path, arguments: impl IntoIterator<Item = A>) -> Self {
        let place = Place::new();
        let mut command = floe();
        command.arg("mount").arg(image).arg(&place.path).args(["-o", "front=fuse"]).args(arguments);
        Self::start(command, place)
    }

    /// Runs a command that mounts on `place`.
    pub(crate) fn start(command: Command, place: Place) -> Self {
        Self::attempt(command, place)
            .unwrap_or_else(|(status, errors)| panic!("the mount failed with {status}: {errors}"))
    }

    /// Runs a command that mounts on `place` without printing anything.
    pub(crate) fn start_silent(mut command: Command, place: Place) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (pid, errors) = (Pid::from_child(&child), read_errors(&mut child));
        let serving = Self { child: Some(child), pid, ready: String::new(), errors, place };
        until("it is mounted", || serving.place.is_mounted());
        serving
    }

    /// Runs a command that may fail to mount on `place`.
    ///
    /// # Errors
    /// It has ended, with this status and these messages.
    pub(crate) fn attempt(mut command: Command, place: Place) -> Result<Self, (ExitStatus, String)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (pid, errors) = (Pid::from_child(&child), read_errors(&mut child));
        let stdout = child.stdout.take().expect("it is piped");
        let ready = within(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let mut serving = Self { child: Some(child), pid, ready: ready.expect("text"), errors, place };
        if serving.ready.is_empty() { Err(serving.end()) } else { Ok(serving) }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it runs");
    }

    /// The process that mounts and unmounts for the program.
    pub(crate) fn keeper(&self) -> Pid {
        self.child_named("floe-keeper")
    }

    /// The process that takes the place of the keeper if that is killed.
    pub(crate) fn standby(&self) -> Pid {
        self.child_named("floe-standby")
    }

    fn child_named(&self, name: &str) -> Pid {
        let mut pids = Vec::new();
        // A process has the name of the one that started it for a moment.
        until("there is one such process", || {
            pids = children_of(self.pid.as_raw_nonzero().get().unsigned_abs(), name);
            pids.len() == 1
        });
        Pid::from_raw(pids[0].cast_signed()).expect("a process")
    }

    /// Stops the program, and waits until all its threads are stopped: they run on until one of them takes the signal.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid.as_raw_nonzero());
        let is_stopped = |task: fs::DirEntry| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        until("the program is stopped", || fs::read_dir(&tasks).expect("it runs").flatten().all(is_stopped));
    }

    /// The exit code and the messages of the program.
    pub(crate) fn end(&mut self) -> (ExitStatus, String) {
        let mut child = self.child.take().expect("it ends once");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("our own child") {
                return (status, self.errors.recv_timeout(PATIENCE).unwrap_or_default());
            }
            if start.elapsed() > PATIENCE {
                let _ = child.kill();
                panic!("the program does not end");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("our own child").is_none())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program that mounts nothing, without standard output. It is killed when it is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// Its exit code and its messages.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let started = Instant::now();
        while self.0.try_wait().expect("our own child").is_none() {
            assert!(started.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
        let mut errors = String::new();
        let mut stderr = self.0.stderr.take().expect("it is piped");
        stderr.read_to_string(&mut errors).expect("text");
        (self.0.wait().expect("it has ended").code(), errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command of the built program whose messages go to a file, which can be read while the program runs.
pub(crate) fn floe_with_messages_in(messages: &Path) -> Command {
    with_messages_in(messages, Path::new(env!("CARGO_BIN_EXE_floe")))
}

/// As [`floe_with_messages_in`], for another program.
pub(crate) fn with_messages_in(messages: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 2>\"$0\""]).arg(messages).arg(program);
    command
}

/// Runs a command to its end. Fails the test if it does not end in time.
pub(crate) fn run(command: &mut Command) -> Output {
    run_with_input(command, Stdio::null())
}

/// As [`run`], with standard input.
pub(crate) fn run_with_input(command: &mut Command, input: Stdio) -> Output {
    let child = command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("the program starts");
    let pid = Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(PATIENCE) {
        Ok(output) => output.expect("output"),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("{command:?} does not end");
        }
    }
}

/// Runs `work` in a thread and returns its result, so that a stuck client fails the test instead of blocking it.
pub(crate) fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(PATIENCE).expect("it ends in time")
}

/// Unmounts a directory with `floe umount`, once no process has a file of it open. Returns the exit code and the messages.
pub(crate) fn umount(directory: &Path) -> (Option<i32>, String) {
    wait_until_unused(directory);
    told(&run(floe().arg("umount").arg(directory)))
}

/// Waits until no process has a file of the mount on `directory` open. A process that another test starts holds copies of all
/// open files until it executes its program.
pub(crate) fn wait_until_unused(directory: &Path) {
    let is_used_by = |process: &fs::DirEntry| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|file| file.starts_with(directory))
    };
    until("the files are closed", || {
        !fs::read_dir("/proc").expect("/proc").flatten().any(|process| is_used_by(&process))
    });
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The processes with `text` in their command line.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        *pid != std::process::id() && String::from_utf8_lossy(&command_line).contains(text)
    })
    .collect()
}

/// The processes with this name whose parent is this one.
pub(crate) fn children_of(parent: u32, name: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_wanted = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        text.contains(&format!("Name:\t{name}\n")) && text.contains(&format!("PPid:\t{parent}\n"))
    };
    pids.filter(is_wanted).collect()
}

/// Whether a process runs: it exists and is no zombie.
pub(crate) fn is_running(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}

/// The exit code and stderr, for assertions.
pub(crate) fn told(output: &Output) -> (Option<i32>, String) {
    assert!(output.status.signal().is_none(), "{output:?}");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What a program printed to stderr.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
