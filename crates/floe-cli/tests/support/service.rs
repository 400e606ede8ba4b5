//! A service of the built program, and its clients.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use super::program::{Place, children_of, floe, is_running, run, told, until, with_messages_in, within};

/// A service with a socket of its own. Its processes are killed when it is dropped.
pub(crate) struct Service {
    child: Option<Child>,
    pid: Pid,
    folder: tempfile::TempDir,
    variables: &'static [(&'static str, &'static str)],
    /// All domains that were seen, to be killed.
    domains: Vec<u32>,
}

impl Service {
    /// Starts a service with these arguments, and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory"), arguments)
    }

    /// As [`Service::start`], in a directory with something in it.
    pub(crate) fn start_in(folder: tempfile::TempDir, arguments: &[&str]) -> Self {
        Self::started(folder, arguments, &[])
    }

    /// As [`Service::start`], with these environment variables.
    pub(crate) fn start_with(variables: &'static [(&'static str, &'static str)]) -> Self {
        Self::started(tempfile::tempdir().expect("a directory"), &[], variables)
    }

    /// As [`Service::start_in`], with these environment variables.
    pub(crate) fn started(
        folder: tempfile::TempDir,
        arguments: &[&str],
        variables: &'static [(&'static str, &'static str)],
    ) -> Self {
        let child = broker(Path::new(env!("CARGO_BIN_EXE_floe")), folder.path(), arguments, variables);
        Self { pid: Pid::from_child(&child), child: Some(child), folder, variables, domains: Vec::new() }
    }

    /// Kills the broker, and starts another one.
    pub(crate) fn replace_broker(&mut self) {
        self.domains();
        self.signal(Signal::KILL);
        assert_eq!(self.end(), None);
        self.restart();
    }

    /// As [`Service::replace_broker`], with these arguments.
    pub(crate) fn replace_broker_with(&mut self, arguments: &[&str]) {
        self.domains();
        self.signal(Signal::KILL);
        assert_eq!(self.end(), None);
        let child = broker(Path::new(env!("CARGO_BIN_EXE_floe")), self.folder.path(), arguments, self.variables);
        (self.pid, self.child) = (Pid::from_child(&child), Some(child));
    }

    /// Starts another broker, after the end of the first one.
    pub(crate) fn restart(&mut self) {
        self.restart_as(Path::new(env!("CARGO_BIN_EXE_floe")));
    }

    /// As [`Service::restart`], with another program.
    pub(crate) fn restart_as(&mut self, program: &Path) {
        let child = broker(program, self.folder.path(), &[], self.variables);
        (self.pid, self.child) = (Pid::from_child(&child), Some(child));
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("service")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of the program that uses this service.
    pub(crate) fn floe(&self) -> Command {
        let mut command = floe();
        command.env("FLOE_SERVICE", self.socket());
        command
    }

    /// Runs `floe mount --service`.
    pub(crate) fn try_mount(&self, image: &Path, directory: &Path, arguments: &[&str]) -> Output {
        run(self.floe().args(["mount", "--service"]).args(arguments).arg(image).arg(directory))
    }

    /// Mounts an image.
    pub(crate) fn mount(&self, image: &Path, arguments: &[&str]) -> Place {
        let place = Place::new();
        let mounted = self.try_mount(image, &place.path, arguments);
        assert_eq!(told(&mounted), (Some(0), String::new()), "{}", image.display());
        assert!(place.is_mounted(), "{}", image.display());
        place
    }

    /// Runs `floe upgrade` with this program. Returns the exit code and the messages.
    pub(crate) fn upgrade(&mut self, program: &Path) -> (Option<i32>, String) {
        self.domains();
        told(&run(self.floe().arg("upgrade").arg("--program").arg(program)))
    }

    /// Unmounts with `floe umount`. Returns the exit code and the messages.
    pub(crate) fn umount(&self, place: &Place) -> (Option<i32>, String) {
        place.wait_until_unused();
        told(&run(self.floe().arg("umount").arg(&place.path)))
    }

    /// The number of the broker's process.
    pub(crate) fn broker(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The processes that read images.
    pub(crate) fn domains(&mut self) -> Vec<u32> {
        let children = children_of(self.broker(), "floe");
        // Another broker may have started some.
        let earlier =
            self.domains.iter().copied().filter(|domain| is_running(pid(*domain)) && !children.contains(domain));
        let domains: Vec<u32> = children.iter().copied().chain(earlier).collect();
        self.domains.extend(children);
        self.domains.sort_unstable();
        self.domains.dedup();
        domains
    }

    /// The one process that reads images.
    pub(crate) fn domain(&mut self) -> Pid {
        let domains = self.domains();
        assert_eq!(domains.len(), 1, "{domains:?}: {}", self.messages());
        pid(domains[0])
    }

    /// Kills the process that reads images, and waits for the next one. Returns that.
    pub(crate) fn kill_domain(&mut self) -> Pid {
        self.end_domain(Signal::KILL)
    }

    /// As [`Service::kill_domain`], by another signal.
    pub(crate) fn end_domain(&mut self, signal: Signal) -> Pid {
        let killed = self.domain();
        kill_process(killed, signal).expect("it runs");
        let mut domains = Vec::new();
        until("another process is started", || {
            domains = self.domains();
            domains.iter().any(|domain| pid(*domain) != killed)
        });
        domains.into_iter().map(pid).find(|domain| *domain != killed).expect("there is one")
    }

    /// What the service has printed on its standard error.
    pub(crate) fn messages(&self) -> String {
        fs::read_to_string(self.folder.path().join("messages")).unwrap_or_default()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it runs");
    }

    /// Waits for its end. Returns its exit code; `None` after a signal.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("it ends once");
        let mut status = None;
        until("the service ends", || {
            status = child.try_wait().expect("our own child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.domains();
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for domain in self.domains.iter().map(|domain| pid(*domain)).filter(|domain| is_running(*domain)) {
            let _ = kill_process(domain, Signal::KILL);
        }
    }
}

/// Starts a broker, and waits until it listens.
fn broker(program: &Path, folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Child {
    let mut command = with_messages_in(&folder.join("messages"), program);
    command.envs(variables.iter().copied());
    command.arg("serve").arg("--socket").arg(folder.join("service")).args(arguments);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let stdout = child.stdout.take().expect("it is piped");
    let ready = within(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).map(|_| line)
    });
    assert!(ready.expect("text").contains("serving mounts at"), "{:?}", fs::read(folder.join("messages")));
    child
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).expect("a process")
}
