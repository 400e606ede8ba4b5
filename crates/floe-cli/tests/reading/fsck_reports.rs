//! What `fsck.erofs --extract` reports of owners, devices and attributes that it may not set, compared with the original.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    process::{Command, Stdio},
};

use floe_testkit::{
    Versions, copy_program, peer,
    skip::{self, Need},
};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

use crate::support::program::{floe, run, told};

/// The words by which complaints are told apart.
const WORDS: &[&str] = &["failed to change ownership", "failed to create special file", "xattr", "Failed to extract"];

#[test]
fn fsck_erofs_reports_what_the_original_reports() {
    if !skip::ready(&[Need::Root, Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let folder = tempfile::tempdir_in(crate::support::scratch(64 << 20)).expect("a scratch folder");
    let programs = tempfile::tempdir().expect("a folder that programs may run from");
    copy_program(env!("CARGO_BIN_EXE_floe"), programs.path().join("fsck.erofs"));
    copy_program(peer("fsck.erofs").expect("it was asked for"), programs.path().join("original"));
    let at = |name: &str| folder.path().join(name);
    for (image, has_device, xattr) in [
        ("plain", false, None),
        ("device", true, None),
        ("user", false, Some("user.a")),
        ("trusted", false, Some("trusted.a")),
    ] {
        let tree = at(&format!("{image}.tree"));
        fs::create_dir(&tree).expect("made");
        for file in ["a", "b"] {
            fs::write(tree.join(file), file).expect("written");
            chown(tree.join(file), Some(1000), Some(1000)).expect("set");
            if let Some(xattr) = xattr {
                setxattr(tree.join(file), xattr, b"value", XattrFlags::empty()).expect("set");
            }
        }
        if has_device {
            mknodat(CWD, tree.join("null"), FileType::CharacterDevice, Mode::RUSR, makedev(1, 3)).expect("made");
        }
        assert_eq!(told(&run(floe().args(["mkfs", "-q"]).arg(at(image)).arg(&tree))), (Some(0), String::new()));
    }
    for path in [folder.path(), programs.path()] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("set");
    }
    let mut wrong = Vec::new();
    for image in ["plain", "device", "user", "trusted"] {
        for user in ["root", "namespace", "other"] {
            for options in ["", "--preserve", "--xattrs", "--no-preserve --xattrs", "-d1 --preserve"] {
                let [ours, theirs] = ["fsck.erofs", "original"].map(|program| {
                    let place = tempfile::tempdir_in(folder.path()).expect("a folder");
                    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).expect("set");
                    let program = programs.path().join(program);
                    let mut command =
                        Command::new(if user == "namespace" { "unshare".as_ref() } else { program.as_path() });
                    match user {
                        "namespace" => command.arg("-Ur").arg(&program),
                        "other" => command.uid(65_534).gid(65_534),
                        _ => &mut command,
                    };
                    command.arg("--extract=target").args(options.split_whitespace()).arg(at(image));
                    let output = command.current_dir(place.path()).stdin(Stdio::null()).output().expect("it runs");
                    let said = String::from_utf8_lossy(&output.stderr).into_owned();
                    let count = |words: &&str| said.lines().any(|line| line.contains(words));
                    (output.status.success(), WORDS.iter().map(count).collect::<Vec<_>>())
                });
                // At an error, the original ends, and Floe goes on.
                if ours.0 != theirs.0 || ours.0 && ours.1 != theirs.1 {
                    wrong.push(format!("{image} {user} {options}: {ours:?} instead of {theirs:?}"));
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}
