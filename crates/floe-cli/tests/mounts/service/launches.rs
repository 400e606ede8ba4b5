//! Recorded launches (`-o profile=FILE`) of mounts of the service.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use floe_testkit::skip::{Need, ready};
use serde_json::Value;

use super::users::{ForUsers, place_of, ready as can_serve_users};
use crate::support::{
    front::{self, Scene},
    program::{Place, floe, run, told, until},
    service::Service,
};

const USER: u32 = 65_531;

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

/// The sizes of the files of the launch: a small one, and one whose data is apart from the others in a front.
const SMALL_BYTES: usize = 50_000;
const LARGE_BYTES: usize = 600_000;

/// An image with a launch in each format.
struct Launch {
    scene: Scene,
    profile: PathBuf,
}

impl Launch {
    fn new() -> Self {
        let scene = Scene::new(&[("bin/first", 9000), ("lib/small", SMALL_BYTES), ("lib/large", LARGE_BYTES)]);
        let profile = scene.folder.path().join("launch.profile");
        let text = format!(
            "# floe profile 2\nname /bin/first\n0 9000 /bin/first\nmissing /lib/none\nlist /lib\nname /lib/small\n0 {SMALL_BYTES} \
             /lib/small\n0 {LARGE_BYTES} /lib/large\n"
        );
        fs::write(&profile, text).expect("ours");
        Self { scene, profile }
    }

    /// The images in both formats. Others than root may read them and the profile.
    fn images(&self) -> [PathBuf; 2] {
        let squashfs = self.scene.folder.path().join("launch.squashfs");
        let made = run(floe().args(["mkfs", "--format", "squashfs"]).arg(&squashfs).arg(&self.scene.image));
        assert!(made.status.success(), "{made:?}");
        thread::sleep(SETTLED);
        [self.scene.image.clone(), squashfs]
    }

    fn options(&self, more: &str) -> String {
        format!("profile={},{more}", self.profile.display())
    }
}

/// The launch of a mount, as the program of a user reports it.
fn launch_of(command: &mut Command, place: &Place) -> Value {
    let output = run(command.args(["status", "--json"]).arg(&place.path));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    report.get("mounts").map_or(report.clone(), |mounts| mounts[0].clone())["launch"].clone()
}

/// Waits until a launch is replayed, and checks the replay.
fn check_replay(mut command: impl FnMut() -> Command, place: &Place, has_walk: bool) {
    let mut report = Value::Null;
    until(&format!("the launch of {} is replayed", place.path.display()), || {
        report = launch_of(&mut command(), place);
        ["replayed", "stopped", "left", "unavailable", "none"].iter().any(|state| report["state"] == *state)
    });
    assert_eq!(report["state"], "replayed", "{report}");
    assert_eq!((&report["skipped_steps"], &report["failed_names"]), (&Value::from(0), &Value::from(0)), "{report}");
    if has_walk {
        assert!(report["found_names"].as_u64() >= Some(3) && report["missing_names"] == 1, "{report}");
    }
    assert!(report["range_bytes"].as_u64() >= Some(LARGE_BYTES as u64), "{report}");
}

/// The content of the files of a launch, as a user reads them.
fn check_content(user: u32, scene: &Scene, place: &Place) {
    for (name, expected) in &scene.contents {
        let mut cat = Command::new("cat");
        if user != 0 {
            cat.uid(user).gid(user);
        }
        let read = run(cat.arg(place.path.join(name)));
        assert!(read.stdout == *expected, "{}: {:?}", name.display(), String::from_utf8_lossy(&read.stderr));
    }
}

#[test]
fn a_mount_of_the_service_replays_a_recorded_launch() {
    if !ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let launch = Launch::new();
    let mut service = Service::start_with(&[("FLOE_TEST_KEEP_AFTER_MS", "100")]);
    let cache = service.folder().join("cache");
    let fronts: &[&str] =
        if front::ready() { &["front=fuse", "front=kernel,front-data=floe"] } else { &["front=fuse"] };
    for image in launch.images() {
        for front in fronts {
            let options = launch.options(&format!("{front},cache-directory={}", cache.display()));
            let place = service.mount(&image, &["-o", &options]);
            assert_eq!(launch_of(&mut service.floe(), &place)["state"], "waiting", "{front}");
            fs::read(place.file("bin/first")).expect("the mount works");
            check_replay(|| service.floe(), &place, true);
            check_content(0, &launch.scene, &place);
            // The next process continues the mount without the launch, which is over.
            service.kill_domain();
            check_content(0, &launch.scene, &place);
            assert_eq!(launch_of(&mut service.floe(), &place)["state"], "off");
            assert_eq!(service.umount(&place), (Some(0), String::new()));
            until("the process ends with its last mount", || service.domains().is_empty());
        }
    }
}

#[test]
fn a_users_mount_replays_a_recorded_launch() {
    if !can_serve_users() {
        return;
    }
    let launch = Launch::new();
    let has_fronts = front::ready();
    let mut users = if has_fronts { ForUsers::start_with_cache("") } else { ForUsers::start("") };
    open_to_all(launch.scene.folder.path());
    let before = users.descriptors();
    let fronts: &[&str] = if has_fronts { &["front=fuse", "front=kernel"] } else { &["front=fuse"] };
    for image in launch.images() {
        for front in fronts {
            let place = place_of(USER);
            let mut mount = users.as_user(USER);
            mount.args(["mount", "--service", "-o", &launch.options(front)]).arg(&image).arg(&place.path);
            assert_eq!(told(&run(&mut mount)), (Some(0), String::new()), "{front}");
            let first = run(Command::new("cat").arg(place.file("bin/first")).uid(USER).gid(USER));
            assert!(first.status.success(), "{first:?}");
            check_replay(|| users.as_user(USER), &place, true);
            check_content(USER, &launch.scene, &place);
            until("no process looks up names any more", || walkers().is_empty());
            place.wait_until_unused();
            let unmounted = run(users.as_user(USER).arg("umount").arg(&place.path));
            assert_eq!(told(&unmounted), (Some(0), String::new()));
            until("the process ends with its last mount", || users.service.domains().is_empty());
        }
    }
    // A mount that ends before the launch has begun leaves nothing behind.
    let place = place_of(USER);
    let mut mount = users.as_user(USER);
    mount.args(["mount", "--service", "-o", &launch.options("front=fuse")]).arg(&launch.scene.image).arg(&place.path);
    assert_eq!(told(&run(&mut mount)), (Some(0), String::new()));
    assert_eq!(told(&run(users.as_user(USER).arg("umount").arg(&place.path))), (Some(0), String::new()));
    until("no process looks up names any more", || walkers().is_empty());
    until("no descriptor is left over", || users.descriptors() <= before + 1);
    assert!(!users.service.messages().contains("lost"), "{}", users.service.messages());
}

/// Lets other users read a directory and the files in it.
fn open_to_all(directory: &Path) {
    let made = run(Command::new("chmod").args(["-R", "a+rX"]).arg(directory));
    assert!(made.status.success(), "{made:?}");
}

/// The processes of this user that look up names.
fn walkers() -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").expect("procfs").flatten().map(|entry| entry.path());
    let is_walker = |process: &PathBuf| {
        let is_users = fs::metadata(process).is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == USER);
        is_users && fs::read_to_string(process.join("comm")).is_ok_and(|name| name == "floe-walk\n")
    };
    processes.filter(is_walker).collect()
}

#[test]
fn profiles_that_are_none_are_refused() {
    if !ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (launch, service) = (Launch::new(), Service::start(&[]));
    let folder = launch.scene.folder.path();
    fs::write(folder.join("garbage"), "\x7fELF").expect("ours");
    let fifo = run(Command::new("mkfifo").arg(folder.join("fifo")));
    assert!(fifo.status.success(), "{fifo:?}");
    for (profile, more, reason) in [
        ("garbage", "", "the first line"),
        ("absent", "", "No such file"),
        ("fifo", "", "it is not a regular file"),
        ("launch.profile", ",subdir=lib", "a profile is of the whole image"),
    ] {
        let place = Place::new();
        let options = format!("profile={}{more}", folder.join(profile).display());
        let (code, errors) = told(&service.try_mount(&launch.scene.image, &place.path, &["-o", &options]));
        assert!(matches!(code, Some(1 | 2)), "{profile}: {code:?} {errors}");
        assert_eq!(errors.lines().count(), 1, "{profile}: {errors}");
        assert!(errors.contains(reason) && !place.is_mounted(), "{profile}: {errors}");
    }
    let place = service.mount(&launch.scene.image, &[]);
    assert_eq!(service.umount(&place), (Some(0), String::new()));
}
