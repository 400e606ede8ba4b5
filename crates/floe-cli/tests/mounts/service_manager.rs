//! Mounts of a service manager (`NOTIFY_SOCKET`), and their entries in systemd's journal, received by a test socket.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixDatagram},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use floe_testkit::skip::{self, Need};
use rustix::process::{Pid, Signal};

use crate::support::program::{PATIENCE, Place, Serving, demo, run, told, until, within};

/// The open datagram sockets of a process.
fn datagram_sockets(process: Pid) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").expect("the table of sockets");
    let datagram = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The fifth field is the type: SOCK_DGRAM.
        (*fields.get(4)? == "0002").then(|| fields.get(6).map(|inode| (*inode).to_owned()))?
    });
    let inodes: HashSet<String> = datagram.collect();
    let files = fs::read_dir(format!("/proc/{}/fd", process.as_raw_nonzero())).expect("it runs").flatten();
    let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
    let is_datagram = |target: &PathBuf| {
        let inode = target.to_str().and_then(|text| text.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(inode))
    };
    targets.filter(is_datagram).collect()
}

#[test]
fn a_confined_program_keeps_no_socket_of_the_service_manager() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let address = folder.path().join("notify.sock");
    let manager = UnixDatagram::bind(&address).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(60))).expect("ours");
    let (mut mounted_count, mut refused_count) = (0, 0);
    for limit in (4..=24).chain([64]) {
        let place = Place::new();
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_floe"));
        command.arg("mount").arg(demo()).arg(&place.path).args(["-o", "front=fuse,transport=dev"]);
        command.env("NOTIFY_SOCKET", &address);
        match Serving::attempt(command, place) {
            Ok(mut serving) => {
                mounted_count += 1;
                let path = serving.place.file("README.txt");
                assert!(!within(move || fs::read(path)).expect("it is served").is_empty(), "{limit}");
                assert_eq!(datagram_sockets(serving.pid), Vec::<PathBuf>::new(), "{limit}");
                // Before it says that it works, it may have stored descriptors.
                let mut message = [0; 64];
                while !message.starts_with(b"READY=1") {
                    manager.recv(&mut message).expect("a message");
                }
                serving.place.wait_until_unused();
                serving.signal(Signal::TERM);
                let (status, errors) = serving.end();
                assert_eq!((status.code(), errors.as_str()), (Some(0), ""), "{limit}");
                // What else it has sent to the manager is of no interest.
                manager.set_nonblocking(true).expect("ours");
                while manager.recv(&mut message).is_ok() {}
                manager.set_nonblocking(false).expect("ours");
            }
            Err((status, errors)) => {
                refused_count += 1;
                assert!(status.code().is_some() && errors.lines().count() <= 1, "{limit}: {status}: {errors}");
            }
        }
    }
    assert!(mounted_count > 0 && refused_count > 0, "{mounted_count} mounts, {refused_count} refusals");
}

/// A file of the demo image, and the offset of its first block.
const DAMAGED: &str = "records/2022.csv";
const BLOCK_OFFSET: usize = 65_536;

/// Fields of the entry about it.
const FAULT: [(&str, &str); 4] =
    [("PRIORITY", "3"), ("FLOE_FAULT", "corrupt"), ("FLOE_RULE", "malformed LZ4 block"), ("FLOE_OFFSET", "65536")];

/// A journal, which the mounts of [`Machine::mount`] see in `/run`.
struct Machine {
    folder: tempfile::TempDir,
    journal: UnixDatagram,
}

/// The fields of an entry.
type Entry = BTreeMap<String, String>;

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("run/systemd/journal");
        fs::create_dir_all(&directory).expect("a directory");
        let journal = UnixDatagram::bind(directory.join("socket")).expect("a socket");
        journal.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self { folder, journal }
    }

    /// An image in which the block of [`DAMAGED`] is broken.
    fn image(&self) -> PathBuf {
        let path = self.folder.path().join("image");
        let mut bytes = fs::read(demo()).expect("the demo image");
        bytes[BLOCK_OFFSET..BLOCK_OFFSET + 8].fill(0xff);
        fs::write(&path, bytes).expect("ours");
        path
    }

    /// A command that mounts. The mount appears in the mount namespace of the tests, but its process sees the `/run` of this
    /// [`Machine`].
    fn mount(&self, image: &Path, place: &Place) -> Command {
        // The mountpoint is shared with the namespace, everything else is private.
        let script = "mount --make-rprivate / && mount --bind $1/run /run && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "unchanged", "sh", "-c", script, "sh"]).arg(self.folder.path());
        command.arg(env!("CARGO_BIN_EXE_floe")).arg("mount").arg(image).arg(&place.path).args(["-o", "front=fuse"]);
        command
    }

    fn entry(&self) -> Entry {
        let mut bytes = vec![0; 64 << 10];
        let len = self.journal.recv(&mut bytes).expect("an entry");
        let text = String::from_utf8(bytes[..len].to_vec()).expect("text");
        let fields = text.lines().map(|line| line.split_once('=').unwrap_or_else(|| panic!("no field: {line}")));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

fn check(entry: &Entry, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(entry.get(*name).map(String::as_str), Some(*value), "{name} in {entry:?}");
    }
}

/// A path as seen by the process that serves a mount.
fn seen_by(pid: u32, path: &Path) -> PathBuf {
    Path::new(&format!("/proc/{pid}/root")).join(path.strip_prefix("/").expect("absolute"))
}

fn server(place: &Place) -> u32 {
    let name = place.path.to_str().expect("text");
    let mut found = Vec::new();
    until("a program serves the mount", || {
        found = crate::support::program::processes_with(name);
        found.len() == 1
    });
    found[0]
}

#[test]
fn a_mount_in_the_background_logs_to_the_journal() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (machine, place) = (Machine::new(), Place::new());
    let image = machine.image();
    let output = run(machine.mount(&image, &place).arg("--daemon"));
    assert_eq!(told(&output), (Some(0), String::new()));
    let (image_name, mountpoint) = (image.to_str().expect("text"), place.path.to_str().expect("text"));
    let always = [("SYSLOG_IDENTIFIER", "floe"), ("FLOE_IMAGE", image_name), ("FLOE_MOUNTPOINT", mountpoint)];
    let mounted = machine.entry();
    check(&mounted, &always);
    let message = format!("{image_name} (EROFS) is mounted on {mountpoint}");
    check(&mounted, &[("PRIORITY", "6"), ("MESSAGE", &message)]);
    let pid = server(&place);
    assert!(fs::read(seen_by(pid, &place.file(DAMAGED))).is_err(), "the block is broken");
    let fault = machine.entry();
    check(&fault, &always);
    check(&fault, &FAULT);
    assert!(fault.contains_key("FLOE_NID") && fault["MESSAGE"].contains(fault["FLOE_RULE"].as_str()), "{fault:?}");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid"),
        rustix::process::Signal::TERM,
    )
    .expect("it runs");
    check(&machine.entry(), &[("PRIORITY", "6"), ("MESSAGE", &format!("{mountpoint} is unmounted"))]);
}

#[test]
fn standard_error_decides_in_the_foreground() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for goes_to_journal in [true, false] {
        let (machine, place) = (Machine::new(), Place::new());
        let image = machine.image();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let theirs = OwnedFd::from(theirs);
        let metadata =
            fs::File::from(theirs.as_fd().try_clone_to_owned().expect("a copy")).metadata().expect("a socket");
        let inode = if goes_to_journal { metadata.ino() } else { metadata.ino() + 1 };
        let mut command = machine.mount(&image, &place);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", metadata.dev()));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(theirs).spawn().expect("it starts");
        drop(command);
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("text");
        assert!(fs::read(seen_by(child.id(), &place.file(DAMAGED))).is_err(), "the block is broken");
        if goes_to_journal {
            // The program reports that the mount works before it logs it. Meanwhile the block was read.
            let mut entries = [machine.entry(), machine.entry()];
            entries.sort_by_key(|entry| entry.get("PRIORITY").cloned());
            check(&entries[0], &FAULT);
            check(&entries[1], &[("PRIORITY", "6")]);
        }
        child.kill().expect("it runs");
        child.wait().expect("our own child");
        let errors = std::io::read_to_string(ours).expect("text");
        assert_eq!(errors.is_empty(), goes_to_journal, "{errors}");
        machine.journal.set_nonblocking(true).expect("ours");
        assert!(machine.journal.recv(&mut [0; 1024]).is_err(), "there are no further entries");
    }
}
