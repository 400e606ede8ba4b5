//! Both programs named mkfs.erofs, and trees for them.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::{Tree, peer, skip::Need};
use rustix::fs::XattrFlags;

pub(crate) fn ours(folder: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    run(command.arg0("mkfs.erofs").envs(environment.iter().copied()), folder, arguments)
}

pub(crate) fn theirs(folder: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(peer("mkfs.erofs").expect("the test needs it"));
    run(command.envs(environment.iter().copied()), folder, arguments)
}

fn run(command: &mut Command, folder: &Path, arguments: &str) -> Output {
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null()).output().expect("it runs")
}

/// A tree, and an archive of it.
pub(crate) fn scene() -> tempfile::TempDir {
    scene_of(&Tree::small(20))
}

/// As [`scene`], with another tree.
pub(crate) fn scene_of(tree: &Tree) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    tree.write(&folder.path().join("source")).expect("written");
    fs::create_dir_all(folder.path().join("source/docs/deep")).expect("made");
    for name in ["source/docs/a.txt", "source/docs/deep/b.txt", "source/docs/c.md"] {
        fs::write(folder.path().join(name), name.repeat(1000)).expect("written");
    }
    fs::write(folder.path().join("hints"), "# some\n16384 \\.md$\n0 ^docs/deep/\n").expect("written");
    fs::write(folder.path().join("blanks"), "16384  \t \\.md$\n0   ^docs/deep/\n").expect("written");
    fs::write(folder.path().join("sizes"), "0 \\.txt$\n1048577 \\.md$\n8192 \\.md$\n").expect("written");
    fs::hard_link(folder.path().join("source/docs/a.txt"), folder.path().join("source/docs/deep/a.txt"))
        .expect("linked");
    // All users may create whiteouts of overlayfs.
    fs::create_dir(folder.path().join("source/layer")).expect("made");
    let whiteout = folder.path().join("source/layer/gone");
    let made = Command::new("mknod").arg(&whiteout).args(["c", "0", "0"]).status().expect("there is mknod");
    assert!(made.success());
    if Need::Root.missing().is_none() {
        let docs = folder.path().join("source/docs");
        let set = rustix::fs::setxattr(docs, "trusted.overlay.opaque", b"y", XattrFlags::CREATE);
        set.expect("root may set attributes");
    }
    let tar = Command::new("tar")
        .args(["--format=pax", "-cf", "source.tar", "-C", "source", "."])
        .current_dir(folder.path())
        .output()
        .expect("there is tar");
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    folder
}
