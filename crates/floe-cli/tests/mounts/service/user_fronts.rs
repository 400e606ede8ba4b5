//! The kernel's EROFS in front for users other than root.

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use floe_testkit::skip::{self, Need};
use rustix::process::Signal;

use super::users::{ForUsers, place_of};
use crate::support::{
    front,
    program::{Place, run, told, until},
};

const USER: u32 = 65_529;
const OTHER: u32 = 65_528;

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

/// The rows of each table.
const CHECKS_MIN: usize = 30;

fn ready() -> bool {
    super::users::ready() && skip::ready(&[Need::Peer("python3")]) && front::ready()
}

/// A service that mounts fronts for users, with a tree that has all that a mount shows, and its image.
struct Fronts {
    users: ForUsers,
    image: PathBuf,
}

/// What `view.py` prints.
fn view(arguments: &[&str]) -> String {
    let output = run(Command::new("python3").arg("-c").arg(include_str!("view.py")).args(arguments));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// The lines of two views that differ.
fn differences(expected: &str, found: &str) -> Vec<String> {
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    assert_eq!(expected.len(), found.len(), "{expected:#?}\n{found:#?}");
    let pairs = expected.iter().zip(&found).filter(|(expected, found)| expected != found);
    pairs.map(|(expected, found)| format!("{found}\n  instead of {expected}")).collect()
}

impl Fronts {
    fn start(limits: &str, has_devices: bool) -> Self {
        let users = ForUsers::start_with_cache(limits);
        let tree = users.path("tree");
        view(&["tree", shown(&tree), &USER.to_string(), if has_devices { "devices" } else { "plain" }]);
        let image = users.path("tree.erofs");
        let made = run(users.service.floe().args(["mkfs", "--compress", "lz4"]).arg(&image).arg(&tree));
        assert!(made.status.success(), "{made:?}");
        thread::sleep(SETTLED);
        Self { users, image }
    }

    fn try_mount(&self, user: u32, place: &Path, options: &str) -> Output {
        let mut command = self.users.as_user(user);
        run(command.args(["mount", "--service", "-o", options]).arg(&self.image).arg(place))
    }

    fn mount(&self, user: u32, options: &str) -> Place {
        let place = place_of(user);
        assert_eq!(told(&self.try_mount(user, &place.path, options)), (Some(0), String::new()));
        assert!(place.is_mounted());
        place
    }

    fn umount(&self, user: u32, place: &Place) -> (Option<i32>, String) {
        place.wait_until_unused();
        told(&run(self.users.as_user(user).arg("umount").arg(&place.path)))
    }

    fn kept_files(&self) -> Vec<PathBuf> {
        let users = fs::read_dir(self.users.path("cache/fronts-of-users")).into_iter().flatten().flatten();
        let images = users.flat_map(|user| fs::read_dir(user.path()).into_iter().flatten().flatten());
        images.map(|image| image.path().join("metadata")).filter(|file| file.exists()).collect()
    }
}

/// A user namespace and a mount namespace of a user, in which a process waits.
struct Namespaces {
    process: Child,
    users: PathBuf,
}

impl Namespaces {
    /// With this mapping of users and of groups.
    fn start(fronts: &Fronts, map: &str) -> Self {
        let mut command = Command::new("setpriv");
        let user = USER.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "unshare", "-U", "-m", "sleep", "1000"]);
        let process = command.stdin(Stdio::null()).spawn().expect("it starts");
        let of = |name: &str| fs::read_link(format!("/proc/{}/ns/{name}", process.id())).ok();
        let own = fs::read_link("/proc/self/ns/mnt").ok();
        until("it has its namespaces", || of("mnt").is_some() && of("mnt") != own);
        for file in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{}/{file}", process.id()), map).expect("root may");
        }
        Self { process, users: fronts.users.path("users") }
    }

    fn id(&self) -> String {
        self.process.id().to_string()
    }

    /// A command of the administrator there.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.id(), "-U", "-m", "-S", "0", "-G", "0"]).arg(program);
        command.env("FLOE_SERVICE", &self.users).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null());
        command
    }

    fn table(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.process.id())).expect("it runs")
    }

    fn line_of(&self, place: &Path) -> Option<String> {
        self.table().lines().rfind(|line| line.contains(shown(place))).map(str::to_owned)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_users_front_shows_what_the_kernels_mount_shows() {
    if !ready() {
        return;
    }
    let mut fronts = Fronts::start("", true);
    let before = fronts.users.descriptors();
    let (reference, user) = (place_of(0), USER.to_string());
    view(&["mount", shown(&fronts.image), shown(&reference.path), "0"]);
    let expected = view(&["facts", shown(&reference.path), &user, "0"]);
    assert!(expected.lines().count() >= CHECKS_MIN, "{expected}");
    for round in 0..2 {
        let place = fronts.mount(USER, if round == 0 { "front=kernel" } else { "front=auto" });
        let line = place.mount_line();
        for word in [" ro,nosuid,nodev,", " erofs floe\\043"] {
            assert!(line.contains(word), "{word} in {line}");
        }
        assert_eq!(differences(&expected, &view(&["facts", shown(&place.path), &user, "0"])), Vec::<String>::new());
        // The root directory belongs to the user alone.
        let root = fs::metadata(&place.path).expect("everybody may see it");
        assert_eq!((root.mode(), root.uid(), root.gid()), (0o040_700, USER, 65_534));
        let status = run(fronts.users.as_user(USER).arg("status").arg(&place.path));
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(status.contains("kernel (") && status.contains("with kept metadata"), "{status}");
        let list = run(fronts.users.as_user(USER).arg("status"));
        assert!(String::from_utf8_lossy(&list.stdout).contains("service, process"), "{list:?}");
        assert_eq!(fronts.kept_files().len(), 1);
        assert_eq!(fronts.umount(USER, &place), (Some(0), String::new()));
        until("the process ends with its last mount", || fronts.users.service.domains().is_empty());
    }
    until("no descriptor is left over", || fronts.users.descriptors() <= before + 1);
    assert_eq!(fronts.users.service.messages(), "");
}

#[test]
fn a_second_user_gets_nothing_of_a_users_front() {
    if !ready() {
        return;
    }
    let mut fronts = Fronts::start("", true);
    let place = fronts.mount(USER, "front=kernel");
    let path = shown(&place.path).to_owned();
    let domain = fronts.users.service.domain().as_raw_nonzero();
    let kept = fronts.kept_files().remove(0);
    let floe = fronts.users.path("floe");
    let floe = shown(&floe);
    let denied = [
        format!("ls {path}"),
        format!("cd {path}"),
        format!("cat {path}/plain"),
        format!("stat {path}/plain"),
        format!("readlink {path}/link"),
        format!("test -e {path}/plain"),
        format!("{path}/program"),
        format!("find {path}/open -name inside | grep ."),
        format!("echo new > {path}/sticky/new"),
        format!("cat {path}/open/inside"),
        format!("cat {path}/open/../plain"),
        format!("ls /proc/{domain}/fd"),
        format!("ls /proc/{domain}/root"),
        format!("kill -0 {domain}"),
        format!("cat {}", kept.display()),
        format!("ls {}", fronts.users.path("cache").display()),
    ];
    for script in &denied {
        for user in [OTHER, 0] {
            // Root may do what does not lead into the mount.
            if user == 0 && !script.contains(&path) {
                continue;
            }
            let output = run(Command::new("sh").args(["-c", script]).uid(user).gid(user).stdin(Stdio::null()));
            assert!(!output.status.success() && output.stdout.is_empty(), "user {user}: {script}: {output:?}");
        }
    }
    let told_of_other =
        [("status", "only that user can query it"), ("tune", "only that user can query it"), ("umount", "")];
    for (command, expected) in told_of_other {
        let (code, errors) = told(&run(fronts.users.as_user(OTHER).arg(command).arg(&place.path)));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{floe} {command}: {errors}");
        assert!(errors.contains(expected), "{command}: {errors}");
    }
    let list = run(fronts.users.as_user(OTHER).arg("status"));
    assert!(!String::from_utf8_lossy(&list.stdout).contains("service, process"), "{list:?}");
    assert!(denied.len() + told_of_other.len() + 1 >= 20 && place.is_mounted());
    // Nobody else keeps the mount of root from ending.
    assert_eq!(fronts.users.service.umount(&place), (Some(0), String::new()));
    until("the process ends with its last mount", || fronts.users.service.domains().is_empty());
}

#[test]
fn a_namespace_attaches_a_front_with_its_own_owners() {
    if !ready() {
        return;
    }
    let mut fronts = Fronts::start("", false);
    let before = fronts.users.descriptors();
    let (place, reference) = (place_of(USER), place_of(USER));
    let floe = fronts.users.path("floe");
    // As unshare -r maps, and as rootless Podman does.
    for map in [format!("0 {USER} 1"), format!("0 {USER} 1\n1 1000000 65535")] {
        let namespaces = Namespaces::start(&fronts, &map);
        let mut command = namespaces.command(&floe);
        command.args(["mount", "--service", "-o", "front=kernel"]).arg(&fronts.image).arg(&place.path);
        assert_eq!(told(&run(&mut command)), (Some(0), String::new()), "{map}");
        let line = namespaces.line_of(&place.path).expect("it is mounted there");
        assert!(
            line.contains(" ro,nosuid,nodev,") && line.contains(",idmapped") && line.contains(" erofs floe"),
            "{line}"
        );
        assert!(!place.is_mounted());
        view(&["mount", shown(&fronts.image), shown(&reference.path), &namespaces.id()]);
        for what in ["facts", "overlay", "devices"] {
            let of = |path: &Path| view(&[what, shown(path), &USER.to_string(), &namespaces.id()]);
            let expected = of(&reference.path);
            assert!(what != "facts" || expected.lines().count() >= CHECKS_MIN, "{expected}");
            assert_eq!(differences(&expected, &of(&place.path)), Vec::<String>::new(), "{map}");
        }
        let status = run(namespaces.command(&floe).arg("status").arg(&place.path));
        assert!(String::from_utf8_lossy(&status.stdout).contains("with kept metadata"), "{status:?}");
        for is_upgrade in [false, true] {
            if is_upgrade {
                assert_eq!(
                    fronts.users.service.upgrade(Path::new(env!("CARGO_BIN_EXE_floe"))),
                    (Some(0), String::new())
                );
            } else {
                fronts.users.service.kill_domain();
            }
            let read = run(namespaces.command(Path::new("cat")).arg(place.path.join("large")));
            assert_eq!(read.stdout, fs::read(fronts.users.path("tree/large")).expect("ours"), "{:?}", read.stderr);
        }
        assert_eq!(told(&run(namespaces.command(&floe).arg("umount").arg(&place.path))), (Some(0), String::new()));
        assert_eq!(namespaces.line_of(&place.path), None);
        until("the process ends with its last mount", || fronts.users.service.domains().is_empty());
    }
    until("no descriptor is left over", || fronts.users.descriptors() <= before + 1);
    assert!(!fronts.users.service.messages().contains("is lost"), "{}", fronts.users.service.messages());
}

#[test]
fn a_front_ends_with_its_namespace_and_goes_on_without_its_process() {
    if !ready() {
        return;
    }
    let mut fronts = Fronts::start("", false);
    let place = place_of(USER);
    let namespaces = Namespaces::start(&fronts, &format!("0 {USER} 1"));
    let mut command = namespaces.command(&fronts.users.path("floe"));
    command.args(["mount", "--service", "-o", "front=kernel"]).arg(&fronts.image).arg(&place.path);
    assert_eq!(told(&run(&mut command)), (Some(0), String::new()));
    drop(namespaces);
    until("the process ends with the namespace", || fronts.users.service.domains().is_empty());

    let place = fronts.mount(USER, "front=auto");
    let large = fs::read(fronts.users.path("tree/large")).expect("ours");
    for signal in [Signal::KILL, Signal::ABORT] {
        // The one before the upgrade may still be ending.
        until("one process is left", || fronts.users.service.domains().len() == 1);
        fronts.users.replace_broker_of_fronts("");
        let list = || String::from_utf8_lossy(&run(fronts.users.service.floe().arg("status")).stdout).into_owned();
        until("the next broker knows the mount", || list().contains("service, process"));
        fronts.users.service.end_domain(signal);
        let mut command = Command::new("cat");
        let read = run(command.arg(place.file("large")).uid(USER).gid(USER));
        assert!(read.stdout == large, "{:?}", String::from_utf8_lossy(&read.stderr));
        assert_eq!(fronts.users.service.upgrade(Path::new(env!("CARGO_BIN_EXE_floe"))), (Some(0), String::new()));
    }
    assert_eq!(fronts.umount(USER, &place), (Some(0), String::new()));
    until("the process ends with its last mount", || fronts.users.service.domains().is_empty());
}

#[test]
fn what_excludes_a_users_front_is_told_or_replaced_by_fuse() {
    if !ready() {
        return;
    }
    let fronts = Fronts::start("", true);
    let devices = "device files, which the owner of a user namespace could open";
    for (options, reason) in [
        ("access=allow-root", "users may not admit others"),
        ("deadline=10m", "needs deadline= of at most 90 seconds"),
        ("deadline=off", "needs deadline= of at most 90 seconds"),
        ("default_permissions,offset=0", "this image or its options exclude it"),
        ("front-metadata=render", "this image or its options exclude it"),
        ("cache-directory=/root/elsewhere,subdir=open", "this image or its options exclude it"),
    ] {
        let place = place_of(USER);
        let (code, errors) = told(&fronts.try_mount(USER, &place.path, &format!("front=kernel,{options}")));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{options}: {errors}");
        assert!(errors.contains(reason) && !place.is_mounted(), "{options}: {errors}");
        if options != "access=allow-root" {
            let place = fronts.mount(USER, options);
            assert!(place.mount_line().contains(" fuse.floe "), "{options}");
            assert_eq!(fronts.umount(USER, &place), (Some(0), String::new()));
        }
    }
    assert!(!Path::new("/root/elsewhere").exists());
    // Labels of security modules.
    let tree = fronts.users.path("labelled");
    fs::create_dir(&tree).expect("ours");
    fs::write(tree.join("file"), "text").expect("ours");
    let label = "import os, sys; os.setxattr(sys.argv[1], 'security.floe_test', b'x')";
    let set = run(Command::new("python3").args(["-c", label]).arg(tree.join("file")));
    if set.status.success() {
        let image = fronts.users.path("labelled.erofs");
        assert!(run(fronts.users.service.floe().arg("mkfs").arg(&image).arg(&tree)).status.success());
        let labelled = Fronts { users: fronts.users, image };
        let place = place_of(USER);
        let (code, errors) = told(&labelled.try_mount(USER, &place.path, "front=kernel"));
        assert!(code == Some(1) && errors.contains("labels of security modules"), "{errors}");
        check_devices(&Fronts { image: labelled.users.path("tree.erofs"), users: labelled.users }, devices);
    } else {
        check_devices(&fronts, devices);
    }
}

/// Checks that the owner of a namespace gets no front with device files, but a FUSE mount.
fn check_devices(fronts: &Fronts, reason: &str) {
    let place = place_of(USER);
    let namespaces = Namespaces::start(fronts, &format!("0 {USER} 1"));
    let mut command = namespaces.command(&fronts.users.path("floe"));
    command.args(["mount", "--service", "-o", "front=kernel"]).arg(&fronts.image).arg(&place.path);
    let (code, errors) = told(&run(&mut command));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains(reason), "{errors}");
    let script = "mount --bind \"$1\" /dev/fuse && exec \"$2\" mount --service \"$3\" \"$4\"";
    let mut command = namespaces.command(Path::new("sh"));
    command.args(["-c", script, "sh"]).arg(fronts.users.path("fuse")).arg(fronts.users.path("floe"));
    assert_eq!(told(&run(command.arg(&fronts.image).arg(&place.path))), (Some(0), String::new()));
    let line = namespaces.line_of(&place.path).expect("it is mounted there");
    assert!(line.contains(" fuse.floe "), "{line}");
}

#[test]
fn users_have_no_fronts_until_root_permits_them() {
    if !ready() {
        return;
    }
    let mut users = ForUsers::start("");
    let place = place_of(USER);
    let reason = "root permits it to users with floe serve --users=fronts";
    let (code, errors) = told(&users.try_mount(USER, &place.path, &["-o", "front=kernel"]));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains(reason), "{errors}");
    assert_eq!(told(&users.try_mount(USER, &place.path, &[])), (Some(0), String::new()));
    assert!(place.mount_line().contains(" fuse.floe "));
    assert_eq!(told(&run(users.as_user(USER).arg("umount").arg(&place.path))), (Some(0), String::new()));
    until("the process ends with its last mount", || users.service.domains().is_empty());
}

#[test]
fn the_room_for_metadata_of_a_user_is_limited() {
    if !ready() {
        return;
    }
    let fronts = Fronts::start("=4K", false);
    let place = place_of(USER);
    let (code, errors) = told(&fronts.try_mount(USER, &place.path, "front=kernel"));
    assert_eq!((code, errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("has no room for it"), "{errors}");
    assert_eq!(fronts.kept_files(), Vec::<PathBuf>::new());
    let place = fronts.mount(USER, "");
    assert!(place.mount_line().contains(" fuse.floe "));
    assert_eq!(fronts.umount(USER, &place), (Some(0), String::new()));
}

#[test]
fn a_process_that_renders_something_else_or_never_answers_is_refused() {
    if !ready() {
        return;
    }
    for (lie, reason) in [
        ("rendering", "a root directory that admits others"),
        ("nothing", "it is not a complete kept image"),
        ("order", "breaks the protocol"),
    ] {
        let fronts = Fronts { users: ForUsers::start_lying(lie), image: PathBuf::new() };
        let fronts = Fronts { image: fronts.users.path("image"), ..fronts };
        thread::sleep(SETTLED);
        let place = place_of(USER);
        let (code, errors) = told(&fronts.try_mount(USER, &place.path, "front=kernel"));
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{lie}: {errors}");
        assert!(errors.contains(reason) && !place.is_mounted(), "{lie}: {errors}");
        let kept = fs::read_dir(fronts.users.path(&format!("cache/fronts-of-users/{USER}"))).into_iter().flatten();
        assert_eq!(kept.count(), usize::from(lie == "order"), "{lie}");
        let mut users = fronts.users;
        until("the process ends", || users.service.domains().is_empty());
        until("no descriptor is left over", || users.descriptors() < 40);
    }
}
