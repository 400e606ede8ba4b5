//! Attributes by rules: SELinux labels, as the original sets them, and Android's owners, modes and capabilities.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use floe::OpenOptions;
use floe_testkit::{
    Versions,
    manifest::{Manifest, differences},
    skip::{self, Need},
};
use rustix::fs::XattrFlags;

use crate::{
    mkfs_erofs::{FREE_DIRECTORIES, manifest_of},
    support::mkfs_erofs::{ours, theirs},
};

const CONTEXTS: &str = "# rules\n\
    /(.*)?                   u:object_r:rootfs:s0\n\
    /system(/.*)?            u:object_r:system_file:s0\n\
    /bin/.*             --   u:object_r:program:s0\n\
    /system/bin/tool         u:object_r:tool_exec:s0\n\
    /system/bin(/.*)?        u:object_r:bin_file:s0\n\
    /system/lib.*\\.so  --   u:object_r:library:s0\n\
    /etc/(hosts|motd)   --   u:object_r:names:s0\n\
    /etc                -d   u:object_r:etc_dir:s0\n\
    /etc/link           -l   u:object_r:a_link:s0\n\
    /etc/plain\\+name        u:object_r:literal:s0\n\
    /etc/none                <<none>>\n";

const CONFIG: &str = "/ 0 0 0755\n\
    system/bin 0 2000 0751\n\
    system/bin/tool 0 3004 02750 capabilities=0x3000\n\
    system/lib1.so 0 0 0644\n\
    system/etc 1000 1000 0700\n\
    system/etc/hosts 1000 1000 0640\nsystem/etc/motd 0 0 0644\nsystem/etc/link 0 0 0777\n\
    system/etc/plain+name 0 0 0644\nsystem/etc/none 0 0 0644\n";

fn scene() -> tempfile::TempDir {
    let scene = tempfile::tempdir().expect("a folder");
    let tree = scene.path().join("tree");
    for path in ["bin/tool", "lib1.so", "etc/hosts", "etc/motd", "etc/plain+name", "etc/none"] {
        let path = tree.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, "content").expect("there is room");
    }
    symlink("hosts", tree.join("etc/link")).expect("linked");
    fs::write(scene.path().join("contexts"), CONTEXTS).expect("there is room");
    fs::write(scene.path().join("config"), CONFIG).expect("there is room");
    scene
}

fn manifest(folder: &Path, image: &str) -> Manifest {
    manifest_of(&folder.join(image), &OpenOptions::default())
}

fn floe(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(arguments.split_whitespace()).current_dir(folder).output().expect("floe runs")
}

fn text(value: Option<&Vec<u8>>) -> Option<String> {
    value.map(|value| String::from_utf8_lossy(value).into_owned())
}

#[test]
fn labels_are_those_of_the_original() {
    let scene = scene();
    let folder = scene.path();
    let label = |manifest: &Manifest, path: &str| {
        let entry = manifest.entry(path.as_bytes()).unwrap_or_else(|| panic!("{path}"));
        text(entry.xattrs.get(&b"security.selinux"[..]))
    };
    let has_original = Need::PeerOf("mkfs.erofs", Versions::Since("1.9.4")).missing().is_none();
    for mount_point in ["", "--mount-point=/", "--mount-point=/system", "--mount-point=system/"] {
        let arguments = format!("--quiet -d0 -Eforce-inode-extended --file-contexts=contexts {mount_point}");
        let output = ours(folder, &format!("{arguments} ours tree"), &[]);
        assert!(output.status.success(), "{mount_point}: {output:?}");
        let found = manifest(folder, "ours");
        let is_system = mount_point.contains("system");
        for (path, at_root, in_system) in [
            ("/", "rootfs", "system_file"),
            ("/bin", "rootfs", "bin_file"),
            ("/bin/tool", "program", "tool_exec"),
            ("/lib1.so", "rootfs", "library"),
            ("/etc", "etc_dir", "system_file"),
            ("/etc/hosts", "names", "system_file"),
            ("/etc/link", "a_link", "system_file"),
            ("/etc/plain+name", "literal", "system_file"),
        ] {
            let expected = format!("u:object_r:{}:s0", if is_system { in_system } else { at_root });
            assert_eq!(label(&found, path), Some(expected), "{mount_point} {path}");
        }
        assert_eq!(label(&found, "/etc/none").is_some(), is_system);
        if has_original {
            let output = theirs(folder, &format!("{arguments} theirs tree"), &[]);
            // Some builds of it know no labels.
            if output.status.success() {
                let told = differences(&manifest(folder, "theirs"), &found, &FREE_DIRECTORIES);
                assert_eq!(told, Vec::<String>::new(), "{mount_point}");
            }
        }
        // Both formats, and all sources.
        let tar = Command::new("tar").args(["-cf", "tree.tar", "-C", "tree", "."]).current_dir(folder).status();
        assert!(tar.expect("there is tar").success());
        for build in ["--format squashfs image tree", "--format squashfs -z lz4 image tree.tar", "image ours"] {
            let output = floe(folder, &format!("mkfs --quiet --file-contexts contexts {mount_point} {build}"));
            assert!(output.status.success(), "{build}: {output:?}");
            let labels = |manifest: &Manifest| -> Vec<_> {
                let paths = manifest.entries().map(|(path, _)| String::from_utf8_lossy(path).into_owned());
                let paths: Vec<String> = paths.collect();
                paths.into_iter().map(|path| (label(manifest, &path), path)).collect()
            };
            assert_eq!(labels(&manifest(folder, "image")), labels(&found), "{build}");
        }
    }
}

#[test]
fn labels_of_sources_are_replaced() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    for path in ["tree/etc/none", "tree/etc/motd"] {
        let set = rustix::fs::setxattr(folder.join(path), "security.selinux", b"old", XattrFlags::empty());
        if set.is_err() {
            return skip::skipped("this file system or this kernel refuses labels");
        }
    }
    let output = floe(folder, "mkfs --quiet --file-contexts contexts image tree");
    assert!(output.status.success(), "{output:?}");
    let found = manifest(folder, "image");
    let label =
        |path: &str| text(found.entry(path.as_bytes()).expect("it is there").xattrs.get(&b"security.selinux"[..]));
    assert_eq!(label("/etc/motd").as_deref(), Some("u:object_r:names:s0"));
    assert_eq!(label("/etc/none"), None);
}

#[test]
fn an_android_partition_has_its_configured_attributes() {
    let scene = scene();
    let folder = scene.path();
    let android = "--quiet -zlz4hc,9 -T 1230768000 --mount-point /system --fs-config-file config --file-contexts contexts \
                   --product-out out";
    let output = ours(folder, &format!("{android} image tree"), &[]);
    assert!(output.status.success(), "{output:?}");
    let squashfs =
        "mkfs --quiet --format squashfs --mount-point /system --fs-config-file config --file-contexts contexts";
    let output = floe(folder, &format!("{squashfs} image.sqfs tree"));
    assert!(output.status.success(), "{output:?}");
    for image in ["image", "image.sqfs"] {
        let found = manifest(folder, image);
        for (path, uid, gid, mode) in [
            ("/", 0, 0, 0o755),
            ("/bin", 0, 2000, 0o751),
            ("/bin/tool", 0, 3004, 0o2750),
            ("/etc", 1000, 1000, 0o700),
            ("/etc/hosts", 1000, 1000, 0o640),
        ] {
            let entry = found.entry(path.as_bytes()).expect("it is there");
            assert_eq!((entry.uid, entry.gid, entry.mode), (uid, gid, mode), "{image} {path}");
        }
        let tool = found.entry(b"/bin/tool").expect("it is there");
        let capability = tool.xattrs.get(&b"security.capability"[..]).expect("it has capabilities");
        assert_eq!(capability[..8], [1, 0, 0, 2, 0, 0x30, 0, 0]);
        assert_eq!(text(tool.xattrs.get(&b"security.selinux"[..])).as_deref(), Some("u:object_r:tool_exec:s0"));
    }
    // What cannot be right ends the build with a line.
    fs::write(folder.join("tree/etc/new"), "").expect("there is room");
    fs::write(folder.join("wrong"), "/a b c d e\n").expect("there is room");
    for (arguments, expected) in [
        ("--fs-config-file config --mount-point /system other tree", "has no line for system/etc/new"),
        ("--fs-config-file wrong other tree", "wrong: file system configuration, line 1: a line is a path"),
        ("--file-contexts wrong other tree", "wrong: file contexts, line 1: a rule is an expression"),
        ("--file-contexts missing other tree", "missing: No such file or directory"),
    ] {
        for output in [ours(folder, arguments, &[]), floe(folder, &format!("mkfs {arguments}"))] {
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && told.contains(expected), "{arguments}: {told}");
            assert!(!folder.join("other").exists(), "{arguments}");
        }
    }
}
