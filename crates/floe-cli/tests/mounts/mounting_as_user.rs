//! `floe mount` for users, and on machines that lack something.
//!
//! Each program runs in its own mount namespace, in which all users may open the device, as on most machines, or something
//! is missing.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use floe_testkit::{
    copy_program,
    skip::{self, Need},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    front,
    program::{Place, Serving, demo, is_running, processes_with, run, told, until},
};

const USER: u32 = 65_534;

const NO_FUSERMOUNT: &str = "for f in /usr/bin/fusermount3 /usr/bin/fusermount /bin/fusermount3 $(command -v fusermount3); do \
    if test -e $f; then mount --bind /dev/null $f; fi; done";

const NO_PROC: &str = "umount -l /proc";

const NO_DEVICE: &str = "mount -t tmpfs none /dev";

/// Copies of the program and an image, in a directory that a user can reach.
struct Reachable {
    folder: tempfile::TempDir,
}

impl Reachable {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
        fs::copy(demo(), folder.path().join("image")).expect("a copy");
        let device = folder.path().join("fuse");
        let made = run(Command::new("mknod").args(["-m", "666"]).arg(&device).args(["c", "10", "229"]));
        assert!(made.status.success(), "{made:?}");
        Self { folder }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// The program in its own namespace, after a preparation.
    fn after(&self, preparation: &str, is_user: bool) -> Command {
        let device = self.folder.path().join("fuse");
        let user = if is_user { "setpriv --reuid 65534 --regid 65534 --clear-groups" } else { "" };
        let script = format!("set -e; mount --bind {} /dev/fuse; {preparation}; exec {user} \"$@\"", device.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(self.folder.path().join("floe"));
        command
    }

    fn as_user(&self) -> Command {
        self.after(":", true)
    }
}

/// Runs a command in the mount namespace of a process, as a user or as root.
fn beside(pid: u32, is_user: bool) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["-t", &pid.to_string(), "-m"]);
    if is_user {
        command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    command
}

/// The mount table line of a place, as a process sees it.
fn mount_line(pid: u32, place: &Place) -> Option<String> {
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.lines().find(|line| line.contains(place.path.to_str().expect("text"))).map(str::to_owned)
}

/// The only process that serves a place.
fn server(place: &Place) -> u32 {
    let pids = processes_with(place.path.to_str().expect("text"));
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

fn ready() -> bool {
    let programs = ["setpriv", "unshare", "nsenter", "fusermount3"].map(Need::Peer);
    skip::ready(&[Need::Root, Need::Fuse]) && skip::ready(&programs)
}

fn users_place() -> Place {
    let place = Place::new();
    chown(&place.path, Some(USER), Some(USER)).expect("ours");
    place
}

fn kernel_version() -> (u32, u32) {
    let uname = rustix::system::uname();
    let release = uname.release().to_str().expect("text");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn is_one_line(output: &Output, expected: &str) -> bool {
    let (code, errors) = told(output);
    code == Some(1) && errors.contains(expected) && errors.lines().count() == 1
}

#[test]
fn a_user_mounts_reads_and_unmounts_on_a_signal() {
    if !ready() {
        return;
    }
    let (reachable, place) = (Reachable::new(), users_place());
    let mut command = reachable.as_user();
    command.arg("mount").arg(reachable.image()).arg(&place.path);
    let mut serving = Serving::start(command, place);
    let pid = server(&serving.place);
    let line = mount_line(pid, &serving.place).expect("it is mounted");
    for word in ["ro,nosuid,nodev", " fuse.floe ", "user_id=65534", "default_permissions"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    assert!(line.contains(reachable.image().to_str().expect("text")) && !line.contains("allow_other"), "{line}");
    let file = serving.place.file("README.txt");
    let output = run(beside(pid, true).arg("cat").arg(&file));
    assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    // Not even root may enter a user's mount.
    let output = run(beside(pid, false).arg("cat").arg(&file));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ermission denied"), "{output:?}");
    serving.signal(Signal::TERM);
    let (status, errors) = serving.end();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn a_users_mount_answers_that_user_alone() {
    if !ready() {
        return;
    }
    let (reachable, place) = (Reachable::new(), users_place());
    let mut command = reachable.as_user();
    command.env_remove("XDG_RUNTIME_DIR").arg("mount").arg(reachable.image()).arg(&place.path);
    let serving = Serving::start(command, place);
    let pid = server(&serving.place);
    let program = reachable.folder.path().join("floe");
    let output =
        run(beside(pid, true).env_remove("XDG_RUNTIME_DIR").arg(&program).arg("status").arg(&serving.place.path));
    assert_eq!(told(&output), (Some(0), String::new()));
    let status = String::from_utf8_lossy(&output.stdout);
    assert!(status.contains("EROFS image"), "{status}");
    // Without the right to a higher priority, its threads at least get shorter time slices, since Linux 6.12.
    if kernel_version() >= (6, 12) {
        assert!(status.contains("slice"), "{status}");
    }
    for arguments in [&["status"][..], &["tune", "cache=0"]] {
        let mut command = beside(pid, false);
        let output = run(command.arg(&program).arg(arguments[0]).arg(&serving.place.path).args(&arguments[1..]));
        assert!(is_one_line(&output, "was mounted by user 65534: only that user can query it"), "{output:?}");
    }
    // Root may collect metrics, but nothing else.
    let line = mount_line(pid, &serving.place).expect("it is mounted");
    let device = line.split(' ').nth(2).expect("a device").replace(':', "-");
    let socket = format!("/tmp/floe-65534/{device}.sock");
    let answer = |question: &[u8]| {
        let mut connection = std::os::unix::net::UnixStream::connect(&socket).expect("root may");
        std::io::Write::write_all(&mut connection, question).expect("it is sent");
        std::io::read_to_string(&connection).expect("text")
    };
    assert!(answer(b"\"status\"\n").starts_with("{\"status\":{"));
    for question in [&b"{\"tune\":[\"cache=0\"]}\n"[..], b"\"options\"\n", b"\"nonsense\"\n"] {
        assert_eq!(answer(question), "{\"refused\":\"only the user who mounted the image can query it\"}\n");
    }
}

#[test]
fn a_user_has_a_daemon_and_unmounts_it() {
    if !ready() {
        return;
    }
    let (reachable, place) = (Reachable::new(), users_place());
    let program = reachable.folder.path().join("floe");
    let output = run(reachable.as_user().arg("mount").arg(reachable.image()).arg(&place.path).arg("--daemon"));
    assert_eq!(told(&output), (Some(0), String::new()));
    let pid = server(&place);
    let again = run(beside(pid, true).arg(&program).arg("mount").arg(reachable.image()).arg(&place.path));
    assert!(is_one_line(&again, "already"), "{again:?}");
    let output = run(beside(pid, true).arg(&program).arg("umount").arg(&place.path));
    assert_eq!(told(&output), (Some(0), String::new()));
    let name = place.path.to_str().expect("text").to_owned();
    until("the program ends", || processes_with(&name).is_empty());
}

#[test]
fn what_a_user_may_not_do_is_told() {
    if !ready() {
        return;
    }
    let (reachable, place, roots) = (Reachable::new(), users_place(), Place::new());
    let mut served = vec![Serving::new(&demo(), ["-o", "nosuid"])];
    if front::ready() {
        served.push(Serving::new(&demo(), ["-o", "front=kernel"]));
    }
    let others = "users may not admit others to their mounts here: root must add the line user_allow_other to";
    let image = reachable.image();
    let mut rows = vec![
        (vec![Path::new("mount"), &image, &place.path, Path::new("-oallow_other")], others),
        (vec![Path::new("mount"), &image, &place.path, Path::new("-oaccess=allow-root")], others),
        (vec![Path::new("mount"), &image, &roots.path], "user has no write access to mountpoint"),
        (vec![Path::new("umount"), &place.path], "is not a mountpoint"),
    ];
    for Serving { place: Place { path, .. }, .. } in &served {
        rows.push((vec![Path::new("umount"), path], "it is root's mount, which only root can unmount"));
        for command in ["status", "upgrade"] {
            rows.push((vec![Path::new(command), path], "was mounted by user 0: only that user can query it"));
        }
    }
    for (arguments, expected) in rows {
        let output = run(reachable.as_user().args(&arguments));
        assert!(is_one_line(&output, expected), "{arguments:?}: {output:?}");
    }
    assert!(served.iter().all(|serving| serving.place.is_mounted()));
}

#[test]
fn missing_parts_of_the_machine_are_told() {
    if !ready() {
        return;
    }
    let (reachable, place) = (Reachable::new(), users_place());
    let no_fusermount = "floe: this mount needs fusermount3, which is not installed: install the package fuse3 (as root, omit \
                         auto_unmount instead)\n";
    for (preparation, is_user, options, expected) in [
        (NO_FUSERMOUNT, true, "ro", no_fusermount),
        (NO_FUSERMOUNT, false, "auto_unmount,front=fuse", no_fusermount),
        (NO_DEVICE, false, "ro", "there is no /dev/fuse: run modprobe fuse"),
        (NO_DEVICE, true, "ro", "there is no /dev/fuse: run modprobe fuse"),
        ("chmod 600 /dev/fuse", true, "ro", "failed to open /dev/fuse: Permission denied"),
    ] {
        let mut command = reachable.after(preparation, is_user);
        let output = run(command.arg("mount").arg(reachable.image()).arg(&place.path).args(["-o", options]));
        assert!(is_one_line(&output, expected), "{preparation} {is_user} {options}: {output:?}");
    }
}

#[test]
fn a_limit_of_processes_is_told() {
    if !ready() || !skip::ready(&[Need::Peer("prlimit")]) {
        return;
    }
    let (reachable, place) = (Reachable::new(), Place::new());
    // No other test has processes of this user, which count too.
    let user = USER - 1;
    chown(&place.path, Some(user), Some(user)).expect("ours");
    let image = reachable.image();
    for (limit, arguments, expected) in [
        (1, vec![Path::new("check"), &image], "too many threads"),
        (1, vec![Path::new("mount"), &image, &place.path], "cannot start the mounting process: too many"),
        (1, vec![Path::new("mount"), &image, &place.path, Path::new("-d")], "cannot start in the background: too many"),
        (2, vec![Path::new("mount"), &image, &place.path], "cannot start a thread: too many"),
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user.to_string(), "--regid", &user.to_string(), "--clear-groups"]);
        command.args(["prlimit", &format!("--nproc={limit}")]).arg(reachable.folder.path().join("floe"));
        let (code, errors) = told(&run(command.args(&arguments)));
        let is_told = code.is_some_and(|code| code != 0) && errors.lines().count() == 1;
        assert!(is_told && errors.contains(expected) && errors.contains("(ulimit -u)"), "{arguments:?}: {errors}");
    }
}

#[test]
fn root_needs_neither_fusermount3_nor_proc() {
    if !ready() {
        return;
    }
    let reachable = Reachable::new();
    for preparation in [NO_FUSERMOUNT, NO_PROC] {
        let place = Place::new();
        let mut command = reachable.after(preparation, false);
        let output = run(command.arg("mount").arg(reachable.image()).arg(&place.path).arg("--daemon"));
        assert_eq!(told(&output), (Some(0), String::new()), "{preparation}");
        // Without /proc, the keeper has the same command line.
        let name = place.path.to_str().expect("text");
        let pid = processes_with(name)[0];
        let read = run(beside(pid, false).arg("cat").arg(place.file("README.txt")));
        let mut umount = beside(pid, false);
        let ended = run(umount.arg(reachable.folder.path().join("floe")).arg("umount").arg(&place.path));
        assert_eq!(told(&ended), (Some(0), String::new()), "{preparation}");
        assert!(!read.stdout.is_empty(), "{preparation}: {read:?}");
        until("it ends", || processes_with(name).is_empty());
    }
}

#[test]
fn mount_finds_the_helper() {
    if !ready() {
        return;
    }
    let reachable = Reachable::new();
    let helpers = reachable.folder.path().join("helpers");
    fs::create_dir(&helpers).expect("a directory");
    // mount(8) looks for its helpers in /sbin, which may be a link to /usr/sbin.
    let script = format!("mount --bind {} \"$(readlink -f /sbin)\" && exec mount \"$@\"", helpers.display());
    for (kind, options, expected) in [
        ("fuse.floe", "noatime,noexec,x-a=b", " ro,nosuid,nodev,noexec,"),
        ("fuse.floe", "suid=on,dev=on", " ro,relatime "),
        ("floe", "suid=on", " ro,nodev,relatime "),
        // mount(8) does not pass its defaults on.
        ("floe", "suid,dev", " ro,nosuid,nodev,relatime "),
    ] {
        let place = Place::new();
        let name = place.path.to_str().expect("text");
        copy_program(reachable.folder.path().join("floe"), helpers.join(format!("mount.{kind}")));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.args(["-t", kind, "-o", &format!("front=fuse,{options}")]);
        let output = run(command.arg(reachable.image()).arg(&place.path));
        assert_eq!(told(&output), (Some(0), String::new()), "{kind} {options}");
        let pid = server(&place);
        let line = mount_line(pid, &place).expect("it is mounted");
        kill_process(Pid::from_raw(pid as i32).expect("a process"), Signal::TERM).expect("it runs");
        assert!(line.contains(expected) && line.contains(" fuse.floe "), "{kind} {options}: {line}");
        until("it ends", || processes_with(name).is_empty());
    }
}

#[test]
fn a_mount_that_is_to_go_with_its_program_does() {
    if !ready() {
        return;
    }
    for has_fusermount in [true, false] {
        let serving = Serving::new(&demo(), ["-o", "auto_unmount"]);
        assert!(!fs::read(serving.place.file("README.txt")).expect("data").is_empty());
        let keeper = serving.keeper();
        let waiting = processes_with(&format!("auto_unmount\0--\0{}", serving.place.path.display()));
        assert_eq!(waiting.len(), 1, "{waiting:?}");
        if !has_fusermount {
            let fusermount = Pid::from_raw(waiting[0].cast_signed()).expect("a process");
            kill_process(fusermount, Signal::KILL).expect("it runs");
        }
        serving.signal(Signal::KILL);
        until("it is unmounted", || !serving.place.is_mounted());
        until("its keeper has ended", || !is_running(keeper));
    }
}
