//! `mount -a`, run again while the images of its table are mounted.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    check_rows,
    skip::{self, Need},
};

use crate::support::{
    front,
    program::{Place, demo, floe, processes_with, run, told, umount, until},
};

/// Mounts the table `$2` three times in a namespace of its own, in which mount(8) finds the helpers of the folder `$1`. Prints
/// the mounts on `$3`.
const THRICE: &str = r#"
set -e
mount --bind "$1" "$(readlink -f /sbin)"
trap 'umount --lazy "$3"' EXIT
for attempt in 1 2 3; do
    timeout 60 mount -a -T "$2" || echo "attempt $attempt: exit code $?" >&2
done
grep " $3 " /proc/self/mountinfo
"#;

/// A table of mounts, and the helpers of mount(8).
struct Scene {
    folder: tempfile::TempDir,
    helpers: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let helpers = folder.path().join("helpers");
        fs::create_dir(&helpers).expect("ours");
        for name in ["mount.floe", "mount.fuse.floe"] {
            symlink(env!("CARGO_BIN_EXE_floe"), helpers.join(name)).expect("a link");
        }
        Self { folder, helpers }
    }

    /// Runs `mount -a` three times with a table of one line. Returns its messages, and the number of mounts unless it is one.
    fn complaints(&self, image: &Path, kind: &str, options: &str) -> Vec<String> {
        let place = Place::new();
        let table = tempfile::NamedTempFile::new_in(self.folder.path()).expect("ours");
        let line = format!("{}  {}  {kind}  {options}  0  0\n", image.display(), place.path.display());
        fs::write(table.path(), line).expect("ours");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", THRICE, "sh"]);
        let output = run(command.arg(&self.helpers).arg(table.path()).arg(&place.path));
        until("the program ends", || processes_with(place.path.to_str().expect("text")).is_empty());
        let mut complaints = Vec::new();
        if told(&output) != (Some(0), String::new()) {
            complaints.push(format!("{output:?}"));
        }
        let mounts = String::from_utf8_lossy(&output.stdout).lines().count();
        if mounts != 1 {
            complaints.push(format!("{mounts} mounts"));
        }
        complaints
    }
}

#[test]
fn mount_all_leaves_images_that_are_mounted_alone() {
    let programs = ["mount", "umount", "unshare", "timeout"].map(Need::Peer);
    if !skip::ready(&[Need::Root, Need::Fuse]) || !skip::ready(&programs) {
        return;
    }
    let scene = Scene::new();
    let link = scene.folder.path().join("link");
    symlink(demo(), &link).expect("a link");
    let mut rows = vec![
        (demo(), "floe", "front=fuse"),
        (demo(), "fuse.floe", "front=fuse"),
        (link.clone(), "floe", "front=fuse"),
        (demo(), "floe", "front=fuse,fsname=a/name"),
    ];
    if front::ready() {
        rows.extend([
            (demo(), "floe", "defaults"),
            (demo(), "floe", "front=kernel"),
            (demo(), "fuse.floe", "front=kernel"),
            (link, "floe", "front=kernel"),
            (demo(), "floe", "front=kernel,fsname=a/name"),
        ]);
    }
    check_rows(
        &rows,
        |(image, kind, options)| format!("{} {kind} {options}", image.display()),
        |(image, kind, options)| scene.complaints(image, kind, options),
    );
}

#[test]
fn the_helper_replaces_no_other_image() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let (scene, place) = (Scene::new(), Place::new());
    let other = scene.folder.path().join("other.erofs");
    fs::copy(demo(), &other).expect("a copy");
    let helper = |image: &Path, options: &str| {
        let mut command = Command::new(scene.helpers.join("mount.floe"));
        told(&run(command.arg(image).arg(&place.path).args(["-o", options])))
    };
    assert_eq!(helper(&demo(), "front=fuse,transport=dev"), (Some(0), String::new()));
    for (image, options, code) in [
        (&demo(), "front=fuse", 0),
        (&demo(), "offset=0", 0),
        (&demo(), "offset=auto", 0),
        (&demo(), "offset=512", 32),
        (&other, "front=fuse", 32),
    ] {
        let (found, errors) = helper(image, options);
        let expected = if code == 0 { "" } else { "is already mounted on" };
        let is_right = found == Some(code) && errors.contains(expected) && errors.is_empty() == (code == 0);
        assert!(is_right, "{} {options}: {found:?} {errors}", image.display());
    }
    // The process that takes the mount over has the same arguments.
    assert_eq!(told(&run(floe().arg("upgrade").arg(&place.path))), (Some(0), String::new()));
    assert!(fs::read(place.file("README.txt")).is_ok_and(|data| !data.is_empty()));
    assert_eq!(umount(&place.path), (Some(0), String::new()));
    assert!(!place.is_mounted(), "it was mounted once");
}
