//! Mounts of the service for users other than root.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    copy_program,
    skip::{self, Need},
};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    program::{Place, demo, run, said, told, until},
    service::Service,
};

const USER: u32 = 65_533;
const OTHER: u32 = 65_532;

/// A service for all users, with copies of the program and of an image that they can reach.
pub(super) struct ForUsers {
    pub(super) service: Service,
}

impl ForUsers {
    pub(super) fn start(limits: &str) -> Self {
        Self::started(limits, &[], &[])
    }

    /// One that mounts fronts, and keeps metadata in its folder.
    pub(super) fn start_with_cache(limits: &str) -> Self {
        Self::started(&format!("=fronts{limits}"), &["cache"], &[("FLOE_TEST_KEEP_AFTER_MS", "100")])
    }

    /// The same, with a process that reads images which does something else than it is told to.
    pub(super) fn start_lying(lie: &'static str) -> Self {
        let variables: &'static [(&str, &str)] = match lie {
            "rendering" => &[("FLOE_TEST_LYING", "rendering"), ("FLOE_TEST_KEEP_AFTER_MS", "100")],
            "nothing" => &[("FLOE_TEST_LYING", "nothing"), ("FLOE_TEST_KEEP_AFTER_MS", "100")],
            _ => &[("FLOE_TEST_LYING", "order"), ("FLOE_TEST_KEEP_AFTER_MS", "100")],
        };
        Self::started("=fronts", &["cache"], variables)
    }

    fn started(limits: &str, cache: &[&str], variables: &'static [(&'static str, &'static str)]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
        fs::copy(demo(), folder.path().join("image")).expect("a copy");
        let made =
            run(Command::new("mknod").args(["-m", "666"]).arg(folder.path().join("fuse")).args(["c", "10", "229"]));
        assert!(made.status.success(), "{made:?}");
        let socket = folder.path().join("users").to_str().expect("text").to_owned();
        let cache: Vec<String> = cache
            .iter()
            .map(|name| format!("cache-directory={}", folder.path().join(name).to_str().expect("text")))
            .collect();
        let limits = format!("--users{limits}");
        let further = cache.iter().flat_map(|option| ["-o", option]);
        let arguments: Vec<&str> = [&*limits, "--users-socket", &socket].into_iter().chain(further).collect();
        let service = Service::started(folder, &arguments, variables);
        Self { service }
    }

    /// Kills the broker of a service that mounts fronts, and starts another one, with these limits.
    pub(super) fn replace_broker_of_fronts(&mut self, limits: &str) {
        let text = |path: PathBuf| path.to_str().expect("text").to_owned();
        let (socket, cache) = (text(self.path("users")), format!("cache-directory={}", text(self.path("cache"))));
        // As systemd does, which owns the socket.
        let _ = fs::remove_file(&socket);
        let users = format!("--users=fronts{limits}");
        self.service.replace_broker_with(&[&users, "--users-socket", &socket, "-o", &cache]);
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.service.folder().join(name)
    }

    /// The program, run by a user.
    pub(super) fn as_user(&self, user: u32) -> Command {
        let mut command = Command::new(self.path("floe"));
        command.env("FLOE_SERVICE", self.path("users")).env_remove("XDG_RUNTIME_DIR");
        command.uid(user).gid(user).stdin(Stdio::null());
        command
    }

    pub(super) fn try_mount(&self, user: u32, place: &Path, arguments: &[&str]) -> Output {
        let mut command = self.as_user(user);
        run(command.args(["mount", "--service"]).args(arguments).arg(self.path("image")).arg(place))
    }

    /// Mounts the image for a user.
    fn mount(&self, user: u32) -> Place {
        let place = place_of(user);
        assert_eq!(told(&self.try_mount(user, &place.path, &[])), (Some(0), String::new()));
        assert!(place.is_mounted());
        place
    }

    fn umount(&self, user: u32, place: &Place) -> (Option<i32>, String) {
        place.wait_until_unused();
        told(&run(self.as_user(user).arg("umount").arg(&place.path)))
    }

    /// The number of descriptors of the broker.
    pub(super) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.service.broker())).expect("it runs").count()
    }
}

/// A directory of a user.
pub(super) fn place_of(user: u32) -> Place {
    let place = Place::new();
    chown(&place.path, Some(user), Some(user)).expect("ours");
    place
}

/// The lines that a command run as a user prints.
fn shell(user: u32, script: &str) -> Output {
    run(Command::new("sh").args(["-c", script]).uid(user).gid(user).stdin(Stdio::null()))
}

pub(super) fn ready() -> bool {
    let programs = ["setpriv", "unshare", "nsenter"].map(Need::Peer);
    skip::ready(&[Need::Root, Need::Fuse]) && skip::ready(&programs)
}

#[test]
fn a_user_mounts_reads_asks_and_unmounts() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let before = users.descriptors();
    let place = users.mount(USER);
    let line = place.mount_line();
    for word in [" ro,nosuid,nodev,", " fuse.floe ", "user_id=65533", "group_id=65533", "default_permissions"] {
        assert!(line.contains(word), "{word} in {line}");
    }
    assert!(!line.contains("allow_other"), "{line}");
    let read = shell(USER, &format!("cat {}", place.file("README.txt").display()));
    assert!(read.status.success() && !read.stdout.is_empty(), "{read:?}");
    // The kernel admits nobody else, not even root.
    assert!(fs::read(place.file("README.txt")).is_err());
    let status = run(users.as_user(USER).arg("status").arg(&place.path));
    assert_eq!(told(&status), (Some(0), String::new()));
    assert!(String::from_utf8_lossy(&status.stdout).contains("EROFS"), "{status:?}");
    assert_eq!(told(&run(users.as_user(USER).arg("tune").arg(&place.path).arg("cache=1M"))), (Some(0), String::new()));
    let options = run(users.as_user(USER).arg("tune").arg(&place.path));
    assert!(String::from_utf8_lossy(&options.stdout).contains("cache=1M"), "{options:?}");
    let listed = run(users.as_user(USER).arg("status"));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("service, process"), "{listed:?}");
    // The process is the user's, without rights.
    let domain = users.service.domain().as_raw_nonzero();
    let facts = fs::read_to_string(format!("/proc/{domain}/status")).expect("it runs");
    for line in ["Uid:\t65533\t65533\t65533\t65533", "Gid:\t65533\t65533\t65533\t65533", "CapEff:\t0000000000000000"] {
        assert!(facts.contains(line), "{line} in {facts}");
    }
    let limits = fs::read_to_string(format!("/proc/{domain}/limits")).expect("it runs");
    let memory = limits.lines().find(|line| line.starts_with("Max data size")).expect("a limit");
    assert!(memory.contains(&(1_u64 << 30).to_string()), "{memory}");
    assert_eq!(users.umount(USER, &place), (Some(0), String::new()));
    assert!(!place.is_mounted());
    until("the process ends with its last mount", || users.service.domains().is_empty());
    until("no descriptor is left over", || users.descriptors() <= before);
    assert_eq!(users.service.messages(), "");
}

#[test]
fn a_user_sees_and_changes_only_own_mounts() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let (place, of_other) = (users.mount(USER), users.mount(OTHER));
    let of_root = users.service.mount(&demo(), &[]);
    assert_eq!(users.service.domains().len(), 3, "each user has a process");
    let shown = place.path.to_str().expect("text").to_owned();
    let only = "was mounted by user 65533: only that user can query it";
    for (arguments, expected) in [
        (vec!["status", &shown], only),
        (vec!["tune", &shown, "cache=0"], only),
        (vec!["tune", &shown], only),
        (vec!["upgrade", &shown], only),
        (vec!["umount", &shown], "65533"),
        (vec!["umount", "--lazy", &shown], "65533"),
    ] {
        let output = run(users.as_user(OTHER).args(&arguments));
        let (code, errors) = told(&output);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{arguments:?}: {errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert!(place.is_mounted(), "{arguments:?}");
    }
    let list = |user| String::from_utf8_lossy(&run(users.as_user(user).arg("status")).stdout).into_owned();
    let server = |list: &str, place: &Place| {
        let line = list.lines().find(|line| line.starts_with(place.path.to_str().expect("text")));
        line.expect("it is listed").rsplit("  ").next().expect("a word").to_owned()
    };
    for (user, own, others) in [(USER, &place, [&of_other, &of_root]), (OTHER, &of_other, [&place, &of_root])] {
        let list = list(user);
        assert!(server(&list, own).starts_with("service, process "), "{list}");
        assert!(others.iter().all(|place| server(&list, place) == "of another user"), "{list}");
    }
    let domains = users.service.domains();
    let of_user = domains.iter().find(|domain| {
        let facts = fs::read_to_string(format!("/proc/{domain}/status")).expect("it runs");
        facts.contains("Uid:\t65533\t")
    });
    let domain = of_user.expect("the user has a process");
    for (user, script) in [
        (OTHER, format!("kill -0 {domain}")),
        (OTHER, format!("ls /proc/{domain}/fd")),
        (OTHER, format!("cat /proc/{domain}/maps")),
        (OTHER, format!("cat /proc/{domain}/environ")),
        (OTHER, format!("ls {shown}")),
        (OTHER, format!("stat {shown}/README.txt")),
        // Not even the user looks into the process that has descriptors of the service.
        (USER, format!("ls /proc/{domain}/fd")),
        (USER, format!("cat /proc/{domain}/mem")),
        (USER, format!("cat /proc/{domain}/environ")),
        (0, format!("ls {shown}")),
    ] {
        let output = shell(user, &script);
        assert!(!output.status.success() && output.stdout.is_empty(), "user {user}: {script}: {output:?}");
    }
    // Root sees and changes all.
    let roots = run(users.service.floe().arg("status"));
    let roots = String::from_utf8_lossy(&roots.stdout);
    assert_eq!(roots.lines().filter(|line| line.contains("service, process ")).count(), 3, "{roots}");
    assert_eq!(told(&run(users.service.floe().arg("status").arg(&place.path))), (Some(0), String::new()));
    assert_eq!(told(&run(users.service.floe().arg("tune").arg(&place.path).arg("cache=2M"))), (Some(0), String::new()));
    assert_eq!(users.service.umount(&place), (Some(0), String::new()));
    assert_eq!(users.umount(OTHER, &of_other), (Some(0), String::new()));
    assert_eq!(users.service.umount(&of_root), (Some(0), String::new()));
    until("the processes end", || users.service.domains().is_empty());
}

#[test]
fn the_service_is_roots_alone_until_users_are_permitted() {
    if !ready() {
        return;
    }
    let service = Service::start(&[]);
    assert!(!service.folder().join("users").exists());
    let refused = run(service.floe().args(["serve", "--users=mount=1"]));
    assert!(
        told(&refused).1.contains(
            "--users=mount=1: the limits are mounts=COUNT, memory=SIZE, cpu=PERCENT, real-time and fronts=SIZE"
        ),
        "{refused:?}"
    );
    let mut powerless = Command::new("prlimit");
    powerless.args(["--rtprio=0", "setpriv", "--bounding-set=-sys_resource"]).arg(env!("CARGO_BIN_EXE_floe"));
    let refused = run(powerless.args(["serve", "--users=real-time"]));
    assert!(told(&refused).1.contains("--users=real-time: Operation not permitted"), "{refused:?}");
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    copy_program(env!("CARGO_BIN_EXE_floe"), folder.path().join("floe"));
    let mut command = Command::new(folder.path().join("floe"));
    command.args(["serve", "--users", "--socket"]).arg(folder.path().join("socket")).uid(USER).gid(USER);
    let (code, errors) = told(&run(&mut command));
    assert_eq!((code, errors.lines().count()), (Some(2), 1), "{errors}");
    assert!(errors.contains("--users needs root"), "{errors}");
}

#[test]
fn limits_of_users_are_told() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("=mounts=2,memory=512M");
    let places = [users.mount(USER), users.mount(USER)];
    let another = place_of(USER);
    let (code, errors) = told(&users.try_mount(USER, &another.path, &[]));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("user 65533 has 2 mounts, as many as the service permits"), "{errors}");
    // Another way is taken where it may be; here, users may not open the device.
    let fallback = run(users
        .as_user(USER)
        .args(["mount", "--daemon", "-o", "service=auto"])
        .arg(users.path("image"))
        .arg(&another.path));
    assert!(!said(&fallback).contains("the service"), "{fallback:?}");
    let of_other = users.mount(OTHER);
    assert_eq!(users.umount(USER, &places[0]), (Some(0), String::new()));
    until("the mount counts no more", || users.try_mount(USER, &another.path, &[]).status.success());
    for place in [&places[1], &another] {
        assert_eq!(users.umount(USER, place), (Some(0), String::new()));
    }
    assert_eq!(users.umount(OTHER, &of_other), (Some(0), String::new()));
    until("the processes end", || users.service.domains().is_empty());
}

#[test]
fn the_mount_is_made_in_the_mount_namespace_of_the_client() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let place = place_of(USER);
    // A namespace that root has made for the user.
    let script = "set -e; $FLOE mount --service $IMAGE $DIR > /dev/null; cat $DIR/README.txt > /dev/null; $FLOE status $DIR > /dev/null; \
                  grep -c \" $DIR \" /proc/self/mountinfo; $FLOE umount $DIR; grep -c \" $DIR \" /proc/self/mountinfo || true";
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation",
        "private",
        "setpriv",
        "--reuid",
        "65533",
        "--regid",
        "65533",
        "--clear-groups",
    ]);
    command.args(["sh", "-c", script]).env("FLOE", users.path("floe")).env("IMAGE", users.path("image"));
    command.env("DIR", &place.path).env("FLOE_SERVICE", users.path("users")).env_remove("XDG_RUNTIME_DIR");
    let output = run(&mut command);
    assert_eq!(told(&output), (Some(0), String::new()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n0\n");
    assert!(!place.is_mounted());
    until("the process ends with its last mount", || users.service.domains().is_empty());
}

#[test]
fn a_user_namespace_has_mounts_of_its_own() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let before = users.descriptors();
    let place = place_of(USER);
    let script = "set -e; $FLOE mount --service $IMAGE $DIR > /dev/null; stat -c %u:%g $DIR/README.txt; $FLOE status $DIR | grep -q EROFS; \
                  $FLOE status | grep -c 'service, process'; $FLOE tune $DIR cache=1M; $END";
    let in_namespace = |users: &ForUsers, end: &str| {
        let device = format!("mount --bind {} /dev/fuse && exec setpriv \"$@\"", users.path("fuse").display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &device, "sh"]);
        command.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", "unshare", "-Urm", "sh", "-c"]);
        command.arg(script.replace("$END", end)).env("FLOE", users.path("floe")).env("IMAGE", users.path("image"));
        command.env("DIR", &place.path).env("FLOE_SERVICE", users.path("users")).env_remove("XDG_RUNTIME_DIR");
        run(&mut command)
    };
    let output = in_namespace(&users, "$FLOE umount $DIR; grep -c \" $DIR \" /proc/self/mountinfo || true");
    assert_eq!(told(&output), (Some(0), String::new()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0:0\n1\n0\n");
    until("the process ends with its last mount", || users.service.domains().is_empty());
    // The mount ends with the namespace.
    let output = in_namespace(&users, "true");
    assert_eq!(told(&output), (Some(0), String::new()));
    until("the process ends with its last mount", || users.service.domains().is_empty());
    until("no descriptor is left over", || users.descriptors() <= before);
    assert!(!place.is_mounted());
    assert_eq!(users.service.messages(), "");
}

#[test]
fn a_users_process_that_dies_is_replaced_by_one_of_the_same_user() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let place = users.mount(USER);
    let next = users.service.kill_domain().as_raw_nonzero();
    let facts = fs::read_to_string(format!("/proc/{next}/status")).expect("it runs");
    assert!(facts.contains("Name:\tfloe"), "{facts}");
    until("it is the user's", || {
        fs::read_to_string(format!("/proc/{next}/status")).expect("it runs").contains("Uid:\t65533\t65533")
    });
    let read = shell(USER, &format!("cat {}", place.file("guide/reading.txt").display()));
    assert!(read.status.success() && !read.stdout.is_empty(), "{read:?}");
    // Its user may end it, too, as often as it likes: others do not notice.
    let of_other = users.mount(OTHER);
    kill_process(Pid::from_raw(next.get()).expect("a process"), Signal::STOP).expect("root may");
    let root = users.service.mount(&demo(), &[]);
    assert_eq!(users.service.umount(&root), (Some(0), String::new()));
    assert_eq!(users.umount(OTHER, &of_other), (Some(0), String::new()));
    kill_process(Pid::from_raw(next.get()).expect("a process"), Signal::CONT).expect("root may");
    assert_eq!(users.umount(USER, &place), (Some(0), String::new()));
    until("the processes end", || users.service.domains().is_empty());
}
