//! Replacing the process that serves a mount: `floe upgrade`, and restarts by a service manager after kill −9.

use std::{
    collections::HashMap,
    env,
    ffi::OsStr,
    fs::{self, File, ReadDir},
    io::{BufRead, BufReader, IoSliceMut, Write},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    os::unix::{
        fs::{FileExt, PermissionsExt, symlink},
        net::UnixDatagram,
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use floe_testkit::{
    copy_program,
    skip::{Need, ready},
};
use rustix::{
    fs::{Advice, fadvise},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::support::program::{PATIENCE, Place, Serving, demo, floe, run, told, until, within};

const READERS: usize = 8;
const FILES: usize = 24;
const FILE_BYTES: usize = 384 << 10;
const NAMES: usize = 3000;

/// How long a reader waits before its next read, so that readers leave CPU time to what they wait for.
const PAUSE: Duration = Duration::from_millis(3);

/// How often a mount is handed over. Its process is killed two fifths as often.
fn round_count() -> usize {
    env::var("FLOE_HANDOVERS").ok().and_then(|count| count.parse().ok()).unwrap_or(15)
}

/// The content of a file: compressible, and different at each offset. It is made once: that takes longer than many reads.
fn content(index: usize) -> &'static [u8] {
    static CONTENTS: [OnceLock<Vec<u8>>; FILES] = [const { OnceLock::new() }; FILES];
    let line = |number: usize| format!("{index:5} {number:8}\n\n").into_bytes();
    CONTENTS[index].get_or_init(|| (0..FILE_BYTES / 16).flat_map(line).collect())
}

/// An image with files, a large directory and a program.
pub(crate) struct Fixture {
    folder: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let tree = folder.path().join("tree");
        for directory in ["files", "names"] {
            fs::create_dir_all(tree.join(directory)).expect("ours");
        }
        for index in 0..FILES {
            fs::write(tree.join(format!("files/{index}")), content(index)).expect("ours");
        }
        for index in 0..NAMES {
            symlink(index.to_string(), tree.join(format!("names/a-rather-long-name-{index}"))).expect("ours");
        }
        fs::copy("/bin/sh", tree.join("sh")).expect("a shell");
        let built = run(floe().arg("mkfs").args(["-zlz4", "-C65536"]).arg(folder.path().join("image")).arg(&tree));
        assert!(built.status.success(), "{built:?}");
        Self { folder }
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }
}

/// Uses of a mount that continue while its server is replaced.
pub(crate) struct Uses {
    has_ended: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
    faults: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    shell: Shell,
    listing: ReadDir,
    listed: usize,
}

impl Uses {
    pub(crate) fn begin(mount: &Path) -> Self {
        let (has_ended, reads, faults) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let readers = (0..READERS).map(|reader| {
            let (has_ended, reads, faults) = (Arc::clone(&has_ended), Arc::clone(&reads), Arc::clone(&faults));
            let directory = mount.join("files");
            thread::spawn(move || {
                let held = File::open(directory.join(reader.to_string())).expect("the mount works");
                for turn in 0.. {
                    if has_ended.load(Relaxed) {
                        break;
                    }
                    if let Err(fault) = read_once(&directory, &held, reader, turn) {
                        let faults: &Mutex<Vec<String>> = &faults;
                        faults.lock().expect("no panic").push(fault);
                    }
                    reads.fetch_add(1, Relaxed);
                    thread::sleep(PAUSE);
                }
            })
        });
        let mut listing = fs::read_dir(mount.join("names")).expect("the mount works");
        let listed = listing.by_ref().take(10).count();
        Self { readers: readers.collect(), has_ended, reads, faults, shell: Shell::start(mount), listing, listed }
    }

    /// Checks that all uses continue with the new server.
    pub(crate) fn check(&mut self, round: usize) {
        self.shell.check(round);
        let reads = self.reads.load(Relaxed);
        until("all readers continue", || self.reads.load(Relaxed) >= reads + 2 * READERS);
        self.listed += self.listing.by_ref().take(10).filter(|entry| entry.is_ok()).count();
        let faults = self.faults.lock().expect("no panic");
        assert!(faults.is_empty(), "round {round}: {faults:?}");
    }

    pub(crate) fn end(mut self) {
        self.has_ended.store(true, Relaxed);
        let readers = std::mem::take(&mut self.readers);
        within(move || readers.into_iter().for_each(|reader| reader.join().expect("no panic")));
        self.listed += self.listing.inspect(|entry| assert!(entry.is_ok(), "{entry:?}")).count();
        assert_eq!(self.listed, NAMES);
        assert_eq!(*self.faults.lock().expect("no panic"), Vec::<String>::new());
    }
}

/// Reads a file by name, and parts of another through a descriptor that stays open. Both are then dropped from the page
/// cache.
fn read_once(directory: &Path, held: &File, reader: usize, turn: usize) -> Result<(), String> {
    let index = (reader * 7 + turn * 5) % FILES;
    let failed = |error| format!("reader {reader}, turn {turn}: {error}");
    let path = directory.join(index.to_string());
    if fs::read(&path).map_err(failed)? != content(index) {
        return Err(format!("reader {reader}, turn {turn}: wrong bytes in {index}"));
    }
    let mut bytes = vec![0; 8192];
    let offset = turn * 40_009 % (FILE_BYTES - bytes.len());
    held.read_exact_at(&mut bytes, offset as u64).map_err(failed)?;
    if bytes != content(reader)[offset..offset + bytes.len()] {
        return Err(format!("reader {reader}, turn {turn}: wrong bytes at {offset}"));
    }
    for file in [&File::open(path).map_err(failed)?, held] {
        fadvise(file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))?;
    }
    Ok(())
}

/// A program that runs from the mount, in a directory of the mount.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: mpsc::Receiver<String>,
}

impl Shell {
    fn start(mount: &Path) -> Self {
        let script = "while read -r number; do read -r line < ./\"$number\"; echo \"$((number * 2)) $line\"; done";
        let mut command = Command::new(mount.join("sh"));
        command.arg0("sh").args(["-c", script]).current_dir(mount.join("files"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
        let (sender, output) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { input: child.stdin.take().expect("it is piped"), child, output }
    }

    fn check(&mut self, round: usize) {
        let number = round % FILES;
        writeln!(self.input, "{number}").expect("it runs");
        let answer = self.output.recv_timeout(PATIENCE).expect("the program continues");
        assert_eq!(answer, format!("{} {number} {:8}", number * 2, 0), "round {round}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn can_mount() -> bool {
    ready(&[Need::Root, Need::Fuse])
}

fn upgrade(directory: &Path) -> Output {
    run(floe().arg("upgrade").arg(directory))
}

/// A value of `floe status --json`.
fn status(directory: &Path, key: &str) -> String {
    let output = run(floe().args(["status", "--json"]).arg(directory));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    report[key].to_string()
}

fn tuned(directory: &Path, key: &str) -> String {
    let output = run(floe().arg("tune").arg(directory));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned()
}

fn unmount(place: &Place) {
    // Processes started by other tests briefly hold copies of descriptors.
    until("it is unmounted", || {
        run(floe().arg("umount").arg(&place.path));
        !place.is_mounted()
    });
}

#[test]
fn readers_and_programs_do_not_notice_upgrades() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    for (options, rounds) in [("clone-fd=off", round_count()), ("clone-fd=on,threads=3", round_count().div_ceil(3))] {
        let mut first = Serving::new(&fixture.image(), ["-o", options, "-o", "transport=dev"]);
        let place = std::mem::replace(&mut first.place, Place::new());
        let mut uses = Uses::begin(&place.path);
        assert_eq!(told(&run(floe().arg("tune").arg(&place.path).arg("cache=5M"))), (Some(0), String::new()));
        let mut processes = vec![status(&place.path, "process")];
        for round in 0..rounds {
            let upgraded = upgrade(&place.path);
            assert_eq!(told(&upgraded), (Some(0), String::new()), "{options}, round {round}");
            uses.check(round);
            processes.push(status(&place.path, "process"));
        }
        processes.dedup();
        let last = processes.last().expect("a process");
        assert_eq!(fs::read_to_string(format!("/proc/{last}/comm")).ok().as_deref(), Some("floe\n"), "{options}");
        assert_eq!(processes.len(), rounds + 1, "{options}");
        assert_eq!(tuned(&place.path, "cache="), "cache=5M", "{options}");
        assert!(first.end().0.success(), "the first process has ended");
        uses.end();
        unmount(&place);
    }
}

#[test]
fn a_failed_upgrade_leaves_the_mount_as_it_is() {
    if !can_mount() {
        return;
    }
    let fixture = Fixture::new();
    let mut serving = Serving::new(&fixture.image(), ["-o", "transport=dev"]);
    let directory = serving.place.path.clone();
    let mut uses = Uses::begin(&directory);
    let process = status(&directory, "process");
    let still = format!("process {process} still serves {}\n", directory.display());
    let aside = fixture.folder.path().join("aside");
    fs::rename(fixture.image(), &aside).expect("ours");
    let missing = upgrade(&directory);
    fs::copy(demo(), fixture.image()).expect("ours");
    let other = upgrade(&directory);
    let with = |program: &str| run(floe().args(["upgrade", "--program", program]).arg(&directory));
    for (upgraded, expected) in [
        (missing, "No such file"),
        (other, "the image has changed since it was mounted"),
        (with("/bin/false"), "/bin/false ended early"),
        (with("/nonexistent"), "cannot start /nonexistent"),
    ] {
        let (code, errors) = told(&upgraded);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(expected) && errors.ends_with(&still), "{errors}");
        uses.check(0);
        assert!(serving.is_running());
        assert_eq!(status(&directory, "process"), process);
    }
    // With the image back, the same mount can be upgraded.
    fs::rename(aside, fixture.image()).expect("ours");
    assert_eq!(told(&upgrade(&directory)), (Some(0), String::new()));
    uses.check(1);
    uses.end();
    unmount(&serving.place);
}

#[test]
fn other_mounts_are_refused_in_one_line() {
    if !can_mount() || !ready(&[Need::Peer("setpriv")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
    let serving = Serving::new(&demo(), ["-o", "transport=dev"]);
    fs::set_permissions(&serving.place.path, fs::Permissions::from_mode(0o755)).unwrap_or_default();
    let mut as_user = Command::new("setpriv");
    as_user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(folder.path().join("floe"));
    let by_user = run(as_user.arg("upgrade").arg(&serving.place.path));
    let mut refused = vec![
        (upgrade(folder.path()), "is not a mountpoint"),
        (upgrade(&folder.path().join("missing")), "No such file"),
        (upgrade(Path::new("/proc")), "is a mount of proc, not one of Floe"),
        (by_user, "was mounted by user 0: only that user can"),
    ];
    let front = floe_front_mount();
    if let Some(front) = &front {
        refused.push((upgrade(&front.place.path), "only mounts with front=fuse and transport=dev can be taken over"));
    }
    for (output, expected) in refused {
        let (code, errors) = told(&output);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
}

/// A mount with the kernel's EROFS in front, if this machine can.
fn floe_front_mount() -> Option<Serving> {
    let place = Place::new();
    let mut command = floe();
    command.arg("mount").arg(demo()).arg(&place.path);
    let serving = Serving::start(command, place);
    serving.place.mount_line().contains(" erofs ").then_some(serving)
}

/// Acts as systemd: keeps descriptors, and passes them on when it starts the program again.
struct Manager {
    _folder: tempfile::TempDir,
    socket: UnixDatagram,
    address: PathBuf,
    store: HashMap<String, Vec<OwnedFd>>,
    main: Option<Child>,
}

impl Manager {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let address = folder.path().join("notify");
        let socket = UnixDatagram::bind(&address).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { _folder: folder, socket, address, store: HashMap::new(), main: None }
    }

    /// Starts `floe mount`, and waits until it is ready.
    fn start<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) {
        let script = "exec 3<&0 4<&1 </dev/null >/dev/null; export LISTEN_PID=$$; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_floe"), "mount"]).args(arguments);
        command.env("NOTIFY_SOCKET", &self.address);
        let stored = |name: &str| self.store.get(name).and_then(|found| found.first()).map(OwnedFd::try_clone);
        match (stored("floe-device"), stored("floe-state")) {
            (Some(device), Some(state)) => {
                command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", "floe-device:floe-state");
                command.stdin(device.expect("a descriptor")).stdout(state.expect("a descriptor"));
            }
            _ => {
                command.stdin(Stdio::null()).stdout(Stdio::null());
            }
        }
        self.main = Some(command.spawn().expect("it starts"));
        self.wait_until_ready();
    }

    /// Takes messages until one says that the program is ready.
    fn wait_until_ready(&mut self) {
        loop {
            let (message, descriptors) = self.receive();
            let value = |key: &str| message.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned);
            match (value("FDNAME="), value("FDSTORE="), value("READY=")) {
                (Some(name), Some(_), _) => self.store.entry(name).or_default().extend(descriptors),
                (Some(name), None, _) => drop(self.store.remove(&name)),
                (None, _, Some(_)) => return,
                _ => {}
            }
        }
    }

    fn receive(&mut self) -> (String, Vec<OwnedFd>) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        if received.is_err() {
            // Without a server, the mount would block the threads of this process until the last descriptor is closed.
            self.store.clear();
        }
        let len = received.expect("a message in time").bytes;
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
            _ => Vec::new(),
        });
        (String::from_utf8_lossy(&bytes[..len]).into_owned(), descriptors.collect())
    }

    fn kill(&mut self) {
        let mut main = self.main.take().expect("it runs");
        main.kill().expect("ours");
        main.wait().expect("ours");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(mut main) = self.main.take() {
            let _ = main.kill();
            let _ = main.wait();
        }
    }
}

#[test]
fn a_service_that_is_killed_continues_after_its_restart() {
    if !can_mount() {
        return;
    }
    let (fixture, place) = (Fixture::new(), Place::new());
    let image = fixture.image();
    let arguments = [image.as_os_str(), place.path.as_os_str(), "-o".as_ref(), "front=fuse,transport=dev".as_ref()];
    let mut manager = Manager::new();
    manager.start(arguments);
    if manager.store.is_empty() {
        return floe_testkit::skip::skipped("the kernel cannot resend requests");
    }
    assert_eq!((manager.store["floe-device"].len(), manager.store["floe-state"].len()), (1, 1));
    let mut uses = Uses::begin(&place.path);
    assert_eq!(told(&run(floe().arg("tune").arg(&place.path).arg("cache=5M"))), (Some(0), String::new()));
    for round in 0..round_count().div_ceil(5) {
        manager.kill();
        manager.start(arguments);
        uses.check(round);
        assert_eq!(tuned(&place.path, "cache="), "cache=5M", "round {round}");
        let (code, errors) = told(&upgrade(&place.path));
        assert!(code == Some(1) && errors.contains("served by a service"), "{errors}");
        // A reload of the service is an upgrade. The new main process stores descriptors that are stored already.
        let reloaded = run(floe().arg("upgrade").arg(&place.path).env("NOTIFY_SOCKET", &manager.address));
        assert_eq!(told(&reloaded), (Some(0), String::new()), "round {round}");
        manager.wait_until_ready();
        uses.check(round);
        let main = manager.main.as_mut().expect("it was started").wait().expect("ours");
        assert!(main.success(), "the process before the reload ended with {main}");
        let process = rustix::process::Pid::from_raw(status(&place.path, "process").parse().expect("a number"));
        rustix::process::kill_process(process.expect("a number"), rustix::process::Signal::KILL).expect("it runs");
        manager.main = None;
        manager.start(arguments);
        uses.check(round);
    }
    uses.end();
    unmount(&place);
    let main = manager.main.as_mut().expect("it runs").wait().expect("ours");
    assert!(main.success(), "{main}");
    // The mount has ended, so the stored descriptors are useless, and the next start creates a new mount.
    manager.main = None;
    manager.start(arguments);
    assert!(place.is_mounted());
    assert_eq!(fs::read(place.file("files/3")).expect("the mount works"), content(3));
    unmount(&place);
}
