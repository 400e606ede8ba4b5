//! Hostile users of a service for all users.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
    process::Command,
};

use floe_testkit::skip::{self, Need};
use rustix::mount::{UnmountFlags, unmount};

use super::users::{ForUsers, place_of, ready};
use crate::support::program::{demo, run, until};

const USER: u32 = 65_531;

#[test]
fn a_hostile_user_gets_one_line_and_leaves_nothing() {
    if !ready() || !skip::ready(&[Need::Peer("python3")]) {
        return;
    }
    let mut users = ForUsers::start("");
    let before = users.descriptors();
    let place = place_of(USER);
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    let image = folder.path().join("image");
    fs::copy(demo(), &image).expect("a copy");
    let with = |suffix: &str| PathBuf::from(format!("{}{suffix}", folder.path().join("mnt").display()));
    for (suffix, owner, mode) in
        [("", USER, 0o755), (".root", 0, 0o755), (".sticky", 0, 0o1777), (".covered", USER, 0o755)]
    {
        fs::create_dir(with(suffix)).expect("ours");
        chown(with(suffix), Some(owner), Some(owner)).expect("ours");
        fs::set_permissions(with(suffix), fs::Permissions::from_mode(mode)).expect("ours");
    }
    let secret = folder.path().join("image.secret");
    fs::copy(demo(), &secret).expect("a copy");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("ours");
    let mut command = Command::new("python3");
    command.arg("-c").arg(include_str!("client.py")).arg(users.path("users")).arg(USER.to_string());
    let output = run(command.arg(&image).arg(with("")));
    let _ = unmount(with(".covered"), UnmountFlags::DETACH);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let expected = [
        ("a directory as the image", "it is not a regular file or a block device"),
        ("a file open for writing", "it must be open for reading, and not for writing"),
        ("a file open for writing alone", "it must be open for reading, and not for writing"),
        ("a path of the image", "it must be open for reading, and not for writing"),
        ("a file that only root may read", "it must be open for reading, and not for writing"),
        ("a pipe", "it is not a regular file or a block device"),
        ("a file as the directory", "it is not a directory"),
        ("a readable directory", "the directory must be opened with O_PATH"),
        ("a directory of root", "this user may not write to the directory"),
        ("a sticky directory", "the directory is sticky, and does not belong to this user"),
        ("a covered directory", "something is mounted on the directory"),
        ("a symbolic link", "it is not a directory"),
        ("the target of a link", "this user may not write to the directory"),
        ("the root directory", "this user may not write to the directory"),
        ("a directory of the kernel", "this user may not write to the directory"),
        ("other users", "root must add the line user_allow_other"),
        ("the label of a security module", "is not available to users"),
        ("the kernel's read-ahead", "is not available to users"),
        ("a missing descriptor", "the request needs descriptors"),
        ("another connection", "the connection must be that of a FUSE mount"),
        ("a device as the connection", "the connection must be that of a FUSE mount"),
        ("another unmount", "the service has no such mount of this user"),
        ("another control socket", "the service has no such mount of this user"),
        ("a directory that is gone", "it has another name by now"),
        ("a process that has ended", "is gone, or another user's by now"),
    ];
    for (what, reason) in expected {
        let line =
            text.lines().find(|line| line.split(": ").next() == Some(what)).unwrap_or_else(|| panic!("{what}: {text}"));
        assert!(line.contains("refused: ") && line.contains(reason), "{line}");
    }
    let answered = [
        ("descriptors beside a list", "answer 4"),
        ("a broken message", "answer none"),
        ("after many connections", "answer 6"),
        ("a moved directory", "answer 2"),
        ("the mount", "True, False"),
        ("the unmount", "answer 3"),
        ("the end", "False"),
    ];
    for (what, answer) in answered {
        assert!(text.contains(&format!("{what}: {answer}\n")), "{what}: {text}");
    }
    assert_eq!(text.lines().count(), expected.len() + answered.len(), "{text}");
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the mount table");
    assert!(!table.contains(folder.path().to_str().expect("text")), "{table}");
    until("no descriptor is left over", || users.descriptors() <= before);
    until("no process is left over", || users.service.domains().is_empty());
    assert!(users.try_mount(USER, &place.path, &[]).status.success());
    assert!(place.is_mounted());
    assert_eq!(users.service.messages(), "");
    drop(place);
    until("no process is left over", || users.service.domains().is_empty());
}
