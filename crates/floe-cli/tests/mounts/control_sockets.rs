//! Control sockets: where other users have created the names of directories first, and those that killed mounts leave behind.

use std::{
    fs,
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt, chown},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use floe_testkit::{
    check_rows, copy_program,
    skip::{self, Need},
};
use rustix::{
    fs::{AtFlags, CWD, Timespec, Timestamps, utimensat},
    process::Signal,
};

use crate::support::program::{Serving, demo, floe, run, told, umount, until};

/// The user who mounts: "nobody", because fusermount3 needs a name.
pub(crate) const USER: u32 = 65_534;
/// Another user, who creates names in /tmp first.
pub(crate) const PLANTER: u32 = 54_332;

/// A mount namespace with its own /tmp, where all users may open the device, and copies of the program and an image that they can
/// reach.
pub(crate) struct Shared {
    folder: tempfile::TempDir,
    process: Child,
}

impl Shared {
    /// The namespace, after a script has run there; `$1` is the folder.
    pub(crate) fn after(script: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("floe-shared-").tempdir_in("/var/tmp").expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
        fs::copy(demo(), folder.path().join("image")).expect("a copy");
        for name in ["mnt", "first", "second"] {
            fs::create_dir(folder.path().join(name)).expect("ours");
            fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o777)).expect("ours");
        }
        chown(folder.path().join("mnt"), Some(USER), Some(USER)).expect("ours");
        let script = format!(
            "set -e; mknod -m 666 $1/fuse c 10 229; mount --bind $1/fuse /dev/fuse; mount -t tmpfs -o mode=1777 tmp /tmp
            mkdir -p /run/user; mount -t tmpfs users /run/user
            {script}
            touch $1/ready; exec sleep 3600"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(folder.path());
        let process = command.stdin(Stdio::null()).spawn().expect("it starts");
        let mut shared = Self { folder, process };
        until("the namespace is there", || {
            assert!(shared.process.try_wait().expect("ours").is_none(), "the script fails");
            shared.path("ready").exists()
        });
        shared
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command in the namespace, as a user or as root.
    pub(crate) fn command(&self, user: Option<u32>, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.process.id().to_string(), "-m"]).env_remove("XDG_RUNTIME_DIR").current_dir("/");
        if let Some(user) = user {
            let user = user.to_string();
            command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        command.arg(program);
        command
    }

    pub(crate) fn floe(&self, user: u32, arguments: &[&str]) -> Output {
        let program = self.path("floe");
        run(self.command(Some(user), program.to_str().expect("text")).args(arguments))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The namespace ends with its last process, which ends with the mount.
        let _ = run(self.command(None, "sh").args(["-c", "umount -l \"$0\"/mnt 2>/dev/null"]).arg(self.folder.path()));
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn ready() -> bool {
    let programs = ["setpriv", "unshare", "nsenter", "fusermount3"].map(Need::Peer);
    skip::ready(&[Need::Root, Need::Fuse]) && skip::ready(&programs)
}

#[test]
fn names_that_others_created_first_do_not_keep_a_user_from_its_mount() {
    if !ready() {
        return;
    }
    let rows = [
        ("nothing", String::new()),
        ("a directory", format!("mkdir -m 777 /tmp/floe-{USER}")),
        ("a private directory", format!("mkdir -m 700 /tmp/floe-{USER}")),
        ("a link to nothing", format!("ln -s missing /tmp/floe-{USER}")),
        ("a link to a directory", format!("mkdir -m 777 /tmp/own; ln -s own /tmp/floe-{USER}")),
        ("a file", format!("echo > /tmp/floe-{USER}")),
        ("a FIFO", format!("mkfifo -m 666 /tmp/floe-{USER}")),
        (
            "10,000 names",
            format!("mkdir -m 777 /tmp/floe-{USER}; seq -f /tmp/floe-{USER}.%.0f 10000 | xargs mkdir -m 777"),
        ),
        ("10,000 files", format!("echo > /tmp/floe-{USER}; seq -f /tmp/floe-{USER}.%.0f 10000 | xargs touch")),
    ];
    let as_planter =
        |script: &String| format!("setpriv --reuid {PLANTER} --regid {PLANTER} --clear-groups sh -euc '{script}'");
    let mut rows: Vec<_> = rows.iter().map(|(name, script)| (*name, as_planter(script))).collect();
    // As a file system in user space, which can state any owner.
    let mounted = format!("mkdir /tmp/floe-{USER}; mount -t tmpfs -o mode=700,uid={USER} forged /tmp/floe-{USER}");
    rows.push(("a mount of somebody else", format!("{mounted}; mount -o remount,ro /tmp/floe-{USER}")));
    check_rows(
        &rows,
        |row| row.0.to_owned(),
        |(_, plant)| {
            let shared = Shared::after(plant);
            let (image, directory) = (shared.path("image"), shared.path("mnt"));
            let (image, directory) = (image.to_str().expect("text"), directory.to_str().expect("text"));
            let steps: [&[&str]; 6] = [
                &["mount", "-d", "-o", "transport=dev", image, directory],
                &["status", directory],
                &["tune", directory, "cache=1M"],
                &["upgrade", directory],
                &["status", directory],
                &["umount", directory],
            ];
            let outputs = steps.map(|arguments| (arguments[0], told(&shared.floe(USER, arguments))));
            let failed = outputs.into_iter().filter(|(_, said)| *said != (Some(0), String::new()));
            failed.map(|(step, said)| format!("{step}: {said:?}")).collect()
        },
    );
}

#[test]
fn root_of_every_user_namespace_has_its_own_directory() {
    if !ready() {
        return;
    }
    let shared = Shared::after(":");
    let probe = run(shared.command(Some(USER), "unshare").args(["-Urm", "true"]));
    if !probe.status.success() {
        skip::skipped("users may not create user namespaces here");
        return;
    }
    // Both are root, of namespaces of different users. The second one works while the first one is mounted.
    let script = "set -e; cd \"$1\"; ./floe mount -d -o front=fuse,transport=dev image $2; ./floe status $2 >/dev/null; \
                  ./floe tune $2 cache=1M; ./floe upgrade $2; ./floe status $2 > /dev/null; \
                  if test -n \"$3\"; then touch first/works; while ! test -e second/works; do sleep 0.1; done; \
                  else touch second/works; fi; ./floe status $2 >/dev/null; ./floe umount $2";
    let start = |user: u32, place: &str, other: &str| {
        let mut command = shared.command(Some(user), "unshare");
        command.args(["-Urm", "--propagation", "private", "sh", "-c", script, "sh"]);
        command.arg(shared.folder.path()).args([place, other]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    for name in ["mnt1", "mnt2"] {
        fs::create_dir(shared.path(name)).expect("ours");
    }
    chown(shared.path("mnt1"), Some(USER), Some(USER)).expect("ours");
    chown(shared.path("mnt2"), Some(PLANTER), Some(PLANTER)).expect("ours");
    let mut first = start(USER, "mnt1", "second");
    until("the first mount works", || first.try_wait().expect("ours").is_some() || shared.path("first/works").exists());
    let second = start(PLANTER, "mnt2", "").wait_with_output().expect("it ends");
    // Otherwise the first one waits forever.
    fs::write(shared.path("second/works"), "").expect("ours");
    let first = first.wait_with_output().expect("it ends");
    assert_eq!((told(&first), told(&second)), ((Some(0), String::new()), (Some(0), String::new())));
}

/// The directory that a mount of a user has for its socket.
#[test]
fn the_sockets_are_in_directories_that_only_their_users_can_enter() {
    if !ready() {
        return;
    }
    let plant = format!("setpriv --reuid {PLANTER} --regid {PLANTER} --clear-groups mkdir -m 777 /tmp/floe-{USER}");
    let shared = Shared::after(&plant);
    let (image, directory) = (shared.path("image"), shared.path("mnt"));
    let (image, directory) = (image.to_str().expect("text"), directory.to_str().expect("text"));
    for _ in 0..2 {
        assert_eq!(told(&shared.floe(USER, &["mount", "-d", image, directory])), (Some(0), String::new()));
        let list = "cd /tmp; stat -c '%u %a %n' floe-*; ls floe-*.*";
        let listed = run(shared.command(None, "sh").args(["-c", list]));
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let own: Vec<_> = listed.lines().filter(|line| line.starts_with(&format!("{USER} 700 floe-{USER}."))).collect();
        // The second mount uses the directory of the first.
        assert_eq!(own.len(), 1, "{listed}");
        assert_eq!(listed.lines().filter(|line| line.ends_with(".sock")).count(), 1, "{listed}");
        assert_eq!(told(&shared.floe(USER, &["umount", directory])), (Some(0), String::new()));
        until("the socket is removed", || {
            let listed = run(shared.command(None, "sh").args(["-c", list]));
            !String::from_utf8_lossy(&listed.stdout).contains(".sock")
        });
    }
}

const SOCKETS: &str = "/run/floe";

/// What distinguishes a file from a later one under its name, which may get the same inode number.
type Identity = (u64, i64, i64);

/// The identity of a socket, if it is there.
fn identity(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|metadata| (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// The control socket of a mount, with its identity.
fn socket_of(serving: &Serving) -> (PathBuf, Identity) {
    let device = rustix::fs::stat(&serving.place.path).expect("a mount").st_dev;
    let name = format!("{}-{}.sock", rustix::fs::major(device), rustix::fs::minor(device));
    let path = Path::new(SOCKETS).join(name);
    let identity = identity(&path).expect("the mount listens");
    (path, identity)
}

/// A socket under this name, and its listener. As a mount does, it listens before the socket gets the name.
fn listening(name: &str, age_seconds: i64) -> (PathBuf, UnixListener) {
    let (path, first) = (Path::new(SOCKETS).join(name), Path::new(SOCKETS).join(format!("test-{name}")));
    let listener = UnixListener::bind(&first).expect("ours");
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let time = Timespec { tv_sec: now.tv_sec - age_seconds, tv_nsec: 0 };
    utimensat(CWD, &first, &Timestamps { last_access: time, last_modification: time }, AtFlags::SYMLINK_NOFOLLOW)
        .expect("ours");
    fs::rename(&first, &path).expect("ours");
    (path, listener)
}

#[test]
fn the_next_mount_removes_the_sockets_of_killed_mounts_and_no_others() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let arguments: [&str; 0] = [];
    let living = Serving::new(&demo(), arguments);
    let living_socket = socket_of(&living);
    // The next mount may get the number of one of them, and then replaces its socket.
    let to_kill: Vec<_> = (0..3).map(|_| Serving::new(&demo(), arguments)).collect();
    let killed: Vec<_> = to_kill
        .into_iter()
        .map(|mut serving| {
            let socket = socket_of(&serving);
            serving.signal(Signal::KILL);
            serving.end();
            assert_eq!(umount(&serving.place.path), (Some(0), String::new()));
            socket
        })
        .collect();

    // No mount has these numbers, and no process has these numbers.
    let kept = [("4095-1048570.sock", 0), ("4095-1048571.sock", 3600), ("new-4194999990", 3600), ("new-4194999991", 0)]
        .map(|(name, age)| listening(name, age));
    let young = Path::new(SOCKETS).join("new-4194999992");
    let _ = fs::remove_file(&young);
    drop(UnixListener::bind(&young));
    let leftovers =
        [("4095-1048572.sock", 0), ("new-4194999993", 3600), ("old-4194999994", 3600)].map(|(name, age)| {
            let (path, listener) = listening(name, age);
            drop(listener);
            path
        });
    let file = Path::new(SOCKETS).join("4095-1048573.sock");
    fs::write(&file, "no socket").expect("ours");

    let mut next = Serving::new(&demo(), arguments);
    assert_eq!(leftovers.map(|path| identity(&path)), [None; 3]);
    // A mount of somebody else may have the number of a killed one, and be about to replace its socket.
    until("the sockets are gone", || {
        let are_gone = killed.iter().all(|(path, old)| identity(path) != Some(*old));
        if !are_gone {
            next = Serving::new(&demo(), arguments);
        }
        are_gone
    });
    for (path, _listener) in &kept {
        assert!(fs::symlink_metadata(path).expect("a process listens").file_type().is_socket());
        fs::remove_file(path).expect("ours");
    }
    for path in [young, file] {
        assert!(identity(&path).is_some(), "{}", path.display());
        fs::remove_file(path).expect("ours");
    }
    assert_eq!(identity(&living_socket.0), Some(living_socket.1));
    for serving in [&living, &next] {
        let output = run(floe().arg("status").arg(&serving.place.path));
        assert_eq!(told(&output), (Some(0), String::new()));
    }
}
