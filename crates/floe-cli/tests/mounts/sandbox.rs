//! Confinement of processes that read images: a test hook in debug builds makes a thread of the program try what a decoder
//! under an attacker's control would try.

use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener,
    os::fd::OwnedFd,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::{UnixDatagram, UnixListener},
    },
    path::Path,
    process::Command,
};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    skip::{self, Need},
};
use rustix::process::Signal;

use crate::support::program::{Place, Serving, demo, floe, processes_with, run, told, until};

/// The attempted actions. Each is refused under every profile.
const ATTEMPTS: [&str; 25] = [
    "read /etc/passwd",
    "read /proc/1/environ",
    "list a directory",
    "create a file",
    "mknod",
    "open a device",
    "change a mode",
    "connect over TCP",
    "connect to a socket",
    "send to a socket",
    "fork",
    "execve",
    "memfd_create and fexecve",
    "map code",
    "kill",
    "signal by a descriptor",
    "ptrace",
    "io_uring_setup",
    "take memory out of use",
    "use an inherited descriptor",
    "mount",
    "unshare",
    "setuid",
    "type into the terminal",
    "change a mode on a later mount",
];

/// Targets of the attack: listening sockets, and a writable directory.
struct Victim {
    directory: tempfile::TempDir,
    port: TcpListener,
    _socket: UnixListener,
    _receiver: UnixDatagram,
}

impl Victim {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        // The attacker may be a different user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let socket = UnixListener::bind(directory.path().join("listener.sock")).expect("a socket");
        fs::set_permissions(directory.path().join("listener.sock"), fs::Permissions::from_mode(0o777)).expect("ours");
        let receiver = UnixDatagram::bind(directory.path().join("datagram.sock")).expect("a socket");
        fs::set_permissions(directory.path().join("datagram.sock"), fs::Permissions::from_mode(0o777)).expect("ours");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self { directory, port, _socket: socket, _receiver: receiver }
    }

    /// A command that attacks these targets, one of whose descriptors it inherits: a program under the name of another one.
    fn attacked_by(&self, name: &str, home: &Path) -> Command {
        let port = self.port.local_addr().expect("it is bound").port();
        let link = home.join(name);
        if !link.exists() {
            symlink(env!("CARGO_BIN_EXE_floe"), &link).expect("a link");
        }
        let mut command = Command::new("sh");
        command.args(["-c", "exec 9<\"$1\"; program=$2; shift 2; exec \"$program\" \"$@\"", "sh"]);
        command.arg(self.directory.path()).arg(link);
        command.env("FLOE_TEST_COMPROMISED", format!("{}:{port}", self.directory.path().display()));
        command
    }

    /// The outcome of each attempt.
    fn attempts(&self) -> BTreeMap<String, String> {
        let text = fs::read_to_string(self.directory.path().join("attempts")).expect("the hook wrote it");
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
    }

    fn allowed(&self) -> Vec<String> {
        let attempts = self.attempts();
        let mut tried: Vec<&str> = attempts.keys().map(String::as_str).collect();
        let mut expected = ATTEMPTS;
        tried.sort_unstable();
        expected.sort_unstable();
        assert_eq!(tried, expected, "the hook tries all");
        attempts.into_iter().filter(|(_, result)| result == "allowed").map(|(name, _)| name).collect()
    }
}

/// The demo image as the only file of a directory.
fn alone(image: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    fs::copy(image, directory.path().join("image")).expect("a copy");
    directory
}

/// The faults of a command that is run twice: confined and not.
fn complaints(victim: &Victim, is_confined: bool) -> Vec<String> {
    let (allowed, attempts) = (victim.allowed(), victim.attempts());
    if is_confined {
        return allowed.iter().map(|name| format!("{name} is allowed")).collect();
    }
    let expected = [
        "read /etc/passwd",
        "create a file",
        "change a mode",
        "connect over TCP",
        "connect to a socket",
        "send to a socket",
        "execve",
        "kill",
        "signal by a descriptor",
        "take memory out of use",
        "use an inherited descriptor",
    ];
    let refused = expected.iter().filter(|name| !allowed.iter().any(|allowed| allowed == *name));
    refused.map(|name| format!("{name} is refused without a sandbox: {attempts:?}")).collect()
}

#[test]
fn commands_that_read_images_can_do_nothing_else() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let rows: [(&str, &[&str]); 11] = [
        ("floe", &["ls", "IMAGE"]),
        ("floe", &["cat", "IMAGE", "/README.txt"]),
        ("floe", &["stat", "IMAGE", "/"]),
        ("floe", &["check", "IMAGE"]),
        ("floe", &["dump", "IMAGE"]),
        ("floe", &["extract", "IMAGE", "-C", "TARGET"]),
        ("fsck.erofs", &["IMAGE"]),
        ("fsck.erofs", &["--extract=TARGET", "IMAGE"]),
        ("dump.erofs", &["IMAGE"]),
        ("unsquashfs", &["-ignore-errors", "-no-exit-code", "-d", "TARGET", "IMAGE"]),
        ("unsquashfs", &["-ll", "IMAGE"]),
    ];
    let (corpus, demo) = (Corpus::fixtures(), demo());
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(name, arguments)| {
            let squashfs = corpus.materialise(&corpus.image("sqfs-meta"));
            let image = alone(if *name == "unsquashfs" { &squashfs.path } else { &demo });
            let mut told = Vec::new();
            for is_confined in [true, false] {
                let (victim, home) = (Victim::new(), tempfile::tempdir().expect("a directory"));
                let mut command = victim.attacked_by(name, home.path());
                let (place, target) = (image.path().join("image"), victim.directory.path().join("target"));
                let (place, target) = (place.to_str().expect("text"), target.to_str().expect("text"));
                let arguments = arguments.iter().map(|word| word.replace("IMAGE", place).replace("TARGET", target));
                let mut arguments: Vec<String> = arguments.collect();
                if !is_confined {
                    arguments.insert(usize::from(*name == "floe"), "--sandbox=off".to_owned());
                }
                let output = run(command.args(&arguments));
                assert!(output.status.success(), "{output:?}");
                told.extend(complaints(&victim, is_confined));
            }
            told
        },
    );
}

#[test]
fn an_extraction_changes_nothing_on_mounts_that_appear_later() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let (victim, home) = (Victim::new(), tempfile::tempdir().expect("a directory"));
    let program = victim.attacked_by("floe", home.path());
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "shared", "sh", "-c", LATER_MOUNT, "sh"]).arg(victim.directory.path());
    command.arg((ATTEMPTS.len() - 1).to_string()).arg(program.get_program()).args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.arg("extract").arg(demo()).arg("-C").arg(victim.directory.path().join("target"));
    let output = run(&mut command);
    assert_eq!(told(&output), (Some(0), String::new()));
    assert!(output.stdout.ends_with(b"\n600\n"), "{output:?}");
    assert_eq!(victim.allowed(), Vec::<String>::new());
}

#[test]
fn what_cannot_be_confined_is_refused() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let (socket, _other) = UnixDatagram::pair().expect("sockets");
    let output = floe().arg("ls").arg(demo()).stdin(OwnedFd::from(socket)).output().expect("it runs");
    let (code, message) = told(&output);
    assert!(code == Some(1) && message.contains("descriptor 0 is a datagram socket"), "{output:?}");
    assert!(run(floe().args(["ls", "--sandbox=off"]).arg(demo())).status.success());

    // Root without the right to mount, as in a container.
    let home = tempfile::tempdir().expect("a directory");
    for (mode, expected) in [("require", Some(1)), ("auto", Some(0))] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin", env!("CARGO_BIN_EXE_floe"), "extract"]);
        let output =
            run(command.arg(format!("--sandbox={mode}")).arg(demo()).arg("-C").arg(home.path().join("target")));
        let (code, message) = told(&output);
        assert_eq!(code, expected, "{output:?}");
        assert_eq!(message.contains("change files outside the target"), code == Some(1), "{message}");
    }
}

/// Runs a program, which attacks the directory `$1`, and mounts a file system there once it has made `$2` attempts.
const LATER_MOUNT: &str = "cd $1; attempts=$2; shift 2; mkdir later; \"$@\" & \
    until [ \"$(cat attempts 2>/dev/null | wc -l)\" = $attempts ]; do sleep 0.05; done; \
    mount -t tmpfs none later && : >later/file && chmod 600 later/file && : >mounted; \
    wait $!; code=$?; stat -c %a later/file; exit $code";

#[test]
fn a_thread_that_serves_a_mount_can_do_nothing_else() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let rows: [(&str, &[&str], bool); 5] = [
        ("floe", &["mount", "IMAGE", "DIR"], true),
        ("floe", &["mount", "--sandbox=require", "IMAGE", "DIR"], true),
        ("floe", &["mount", "--sandbox=off", "IMAGE", "DIR"], false),
        ("floe", &["mount", "-o", "sandbox=off", "IMAGE", "DIR"], false),
        ("erofsfuse", &["-f", "IMAGE", "DIR"], true),
    ];
    let image = alone(&demo());
    check_rows(
        &rows,
        |row| format!("{row:?}"),
        |(name, arguments, is_confined)| {
            let (victim, home, place) = (Victim::new(), tempfile::tempdir().expect("a directory"), Place::new());
            let mut command = victim.attacked_by(name, home.path());
            let (file, directory) = (image.path().join("image"), place.path.clone());
            command.args(arguments.iter().map(|word| match *word {
                "IMAGE" => file.as_os_str(),
                "DIR" => directory.as_os_str(),
                word => word.as_ref(),
            }));
            let start = if *name == "floe" { Serving::start } else { Serving::start_silent };
            let mut serving = start(command, place);
            fs::read(serving.place.file("README.txt")).expect("it is served");
            let mut told = Vec::new();
            until("the thread has tried", || victim.attempts().len() == ATTEMPTS.len());
            told.extend(complaints(&victim, *is_confined));
            // A process that another row has just forked holds copies of descriptors until it executes its program.
            until("it is unmounted", || run(floe().arg("umount").arg(&serving.place.path)).status.success());
            let (status, errors) = serving.end();
            if !status.success() || !errors.is_empty() {
                told.push(format!("it ended with {status}: {errors}"));
            }
            told
        },
    );
}

/// The value of a field in the status of a thread.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("Linux says so").trim()
}

#[test]
fn every_thread_of_a_mount_is_confined_and_the_status_says_so() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let serving = Serving::new(&demo(), ["--sandbox=require"]);
    let directory = serving.place.path.to_str().expect("text").to_owned();
    fs::read(serving.place.file("README.txt")).expect("it is served");
    // Threads that are started later are confined too.
    let tuned = run(floe().arg("tune").arg(&directory).arg("workers=shared"));
    assert_eq!(told(&tuned), (Some(0), String::new()));
    let servers = processes_with(&directory);
    let [server] = servers[..] else { panic!("the keeper has a different name: {servers:?}") };
    let tasks = fs::read_dir(format!("/proc/{server}/task")).expect("it runs");
    let mut count = 0;
    for task in tasks {
        let status = fs::read_to_string(task.expect("a thread").path().join("status")).expect("it runs");
        count += 1;
        assert_eq!((field(&status, "Seccomp"), field(&status, "NoNewPrivs")), ("2", "1"), "{status}");
        let capabilities = u64::from_str_radix(field(&status, "CapPrm"), 16).expect("a number");
        // CAP_IPC_LOCK and CAP_SYS_NICE.
        assert_eq!(capabilities & !(1 << 14 | 1 << 23), 0, "{status}");
        for set in ["CapEff", "CapInh", "CapAmb"] {
            let set = u64::from_str_radix(field(&status, set), 16).expect("a number");
            assert_eq!(set & !capabilities, 0, "{status}");
        }
    }
    assert!(count > 4, "{count} threads");
    let report = run(floe().arg("status").arg("--json").arg(&directory));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    let sandbox = &report["sandbox"];
    for mechanism in ["landlock", "seccomp", "no_new_privs"] {
        assert_eq!(sandbox[mechanism], "enforced", "{sandbox}");
    }
    assert!(sandbox["landlock_abi"].as_u64().expect("a number") > 0, "{sandbox}");
    let text = run(floe().arg("status").arg(&directory));
    assert!(String::from_utf8_lossy(&text.stdout).contains("seccomp enforced"), "{text:?}");
    let metrics = run(floe().arg("status").arg("--prometheus").arg(&directory));
    let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(metrics.contains("mechanism=\"seccomp\"} 1"), "{metrics}");
}

#[test]
fn disabled_mechanisms_are_shown_as_off() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let serving = Serving::new(&demo(), ["--sandbox=off"]);
    let report = run(floe().arg("status").arg("--json").arg(&serving.place.path));
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("JSON");
    for mechanism in ["landlock", "seccomp", "no_new_privs"] {
        assert_eq!(report["sandbox"][mechanism], "off", "{report}");
    }
}

#[test]
fn nothing_is_left_behind() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    // The mount ends by itself, is killed, or never begins.
    let (spill, broken) = (tempfile::tempdir().expect("a directory"), tempfile::NamedTempFile::new().expect("a file"));
    let spill_file = format!("spill-file=1g:{}", spill.path().display());
    let is_empty = || fs::read_dir(spill.path()).expect("ours").next().is_none();
    for signal in [Signal::TERM, Signal::KILL] {
        let mut serving = Serving::new(&demo(), ["-o", &spill_file]);
        assert!(!is_empty(), "the mount has a directory of its own there");
        serving.signal(signal);
        serving.end();
        until("the keeper ends", is_empty);
    }
    fs::write(broken.path(), "no image").expect("ours");
    let (place, target) = (Place::new(), spill.path().join("target"));
    let output = run(floe().arg("mount").arg(broken.path()).arg(&place.path).args(["-o", &spill_file]));
    assert_eq!(told(&output).0, Some(3), "{output:?}");
    until("the keeper ends", is_empty);
    let output = run(floe().arg("extract").arg(broken.path()).arg("-C").arg(&target));
    assert_eq!((told(&output).0, target.exists()), (Some(3), false), "{output:?}");
}

#[test]
fn extra_devices_are_found_where_they_may_be() {
    let corpus = Corpus::fixtures();
    let files = corpus.materialise(&corpus.image("erofs-rebuild-devices"));
    let (home, elsewhere) = (alone(&files.path), tempfile::tempdir().expect("a directory"));
    let tags = ["0f1e2d3c4b5a69788796a5b4c3d2e1f0", "0f1e2d3c4b5a69788796a5b4c3d2e1f1"];
    for (device, tag) in files.devices.iter().zip(tags) {
        fs::copy(device, elsewhere.path().join(tag)).expect("a copy");
    }
    let given = ["--device".into(), files.devices[0].clone(), "--device".into(), files.devices[1].clone()];
    let directory = ["--device-directory".into(), elsewhere.path().to_path_buf()];
    for devices in [&given[..], &directory] {
        let image = home.path().join("image");
        let output = run(floe().arg("check").arg("--sandbox=require").args(devices).arg(image));
        assert_eq!(told(&output), (Some(0), String::new()), "{output:?}");
    }
}
