//! `floe mkfs` from images: the new image has what the old one has.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use floe_testkit::{
    KernelMount, Tree, check_rows,
    corpus::{Format, Materialised},
    manifest::{Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::XattrFlags;

use crate::mkfs_erofs::FREE_DIRECTORIES;

/// An access control list: the owner, user 77, the group, the mask, others.
const ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 77, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 4, 0,
    255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
];

fn floe(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("floe runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub(crate) fn mkfs(folder: &Path, arguments: &str) -> Result<String, String> {
    floe(folder, &["mkfs", "--quiet"].into_iter().chain(arguments.split_whitespace()).collect::<Vec<_>>())
}

/// A tree with all types of files, holes, long values and access control lists.
fn make_tree(root: &Path) {
    let tree = Tree {
        file_count: 20,
        file_bytes_max: 150_000,
        wide_directory_entries: 500,
        nesting_depth: 9,
        ..Tree::small(11)
    };
    tree.write(root).expect("there is room");
    let sparse = fs::File::create(root.join("sparse")).expect("there is room");
    for offset in [0, 30_000_001, 1 << 27] {
        sparse.write_all_at(b"data", offset).expect("there is room");
    }
    sparse.set_len(1 << 28).expect("there is room");
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        rustix::fs::setxattr(root.join("wide"), name, &ACL, XattrFlags::empty()).expect("the file system has lists");
    }
}

/// What the kernel shows of an image.
fn kernel_manifest(image: PathBuf, format: Format) -> Manifest {
    let mount = KernelMount::new(&Materialised::single(image, format));
    let mount = mount.unwrap_or_else(|error| panic!("{error}"));
    walk::directory(&mount.path(), DirectoryWalk::default()).expect("it can be read")
}

/// Removes what SquashFS cannot store, and where data lies.
fn reduced(mut manifest: Manifest, is_squashfs: bool) -> Manifest {
    for (_, entry) in manifest.entries_mut() {
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
        if is_squashfs {
            entry.modified = (entry.modified.0.clamp(0, i64::from(u32::MAX)), 0);
            entry.xattrs.retain(|name, _| !name.starts_with(b"system."));
        }
    }
    manifest
}

#[test]
fn images_become_images_of_either_format() {
    if !skip::ready(&[Need::Root, Need::KernelErofs, Need::KernelSquashfs]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    make_tree(&source);
    let expected = walk::directory(&source, DirectoryWalk::default()).expect("it can be read");
    mkfs(folder.path(), "old.erofs source -z lz4hc,9 -C 64k --fragments tails").expect("it is built");
    mkfs(folder.path(), "plain.erofs source").expect("it is built");
    mkfs(folder.path(), "old.sqfs source --format squashfs -z zstd,3 --fragments tails").expect("it is built");
    let rows = [
        ("old.erofs", "", Format::Erofs),
        ("old.erofs", "-z lz4 --fragments all --dedupe -C 16k --verify full", Format::Erofs),
        ("plain.erofs", "-z lz4 --inline-tails -b 1k", Format::Erofs),
        ("plain.erofs", "--chunk 8k --jobs 1", Format::Erofs),
        ("plain.erofs", "--format squashfs -z gzip,1 --verify full", Format::Squashfs),
        ("old.erofs", "--format squashfs -z lz4 -b 4k", Format::Squashfs),
        ("old.sqfs", "-z lz4 --verify full", Format::Erofs),
        ("old.sqfs", "", Format::Erofs),
        ("old.sqfs", "--format squashfs -z xz -b 1M", Format::Squashfs),
    ];
    check_rows(
        &rows,
        |(old, options, _)| format!("{old} {options}"),
        |(old, options, format)| {
            let place = rows.iter().position(|row| (row.0, row.1) == (*old, *options)).expect("it is one of them");
            if let Err(error) = mkfs(folder.path(), &format!("new-{place} {old} {options}")) {
                return vec![error];
            }
            let new = folder.path().join(format!("new-{place}"));
            let mut told = Vec::new();
            if fs::metadata(&new).is_ok_and(|status| status.len() > 20 << 20) {
                told.push("holes became data".to_owned());
            }
            let is_squashfs = *format == Format::Squashfs || old.ends_with(".sqfs");
            let found = reduced(kernel_manifest(new, *format), is_squashfs);
            told.extend(differences(&reduced(expected.clone(), is_squashfs), &found, &FREE_DIRECTORIES));
            told
        },
    );
}

#[test]
fn a_rebuilt_image_has_the_bytes_of_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    Tree::small(3).write(&folder.path().join("source")).expect("there is room");
    for options in ["-z zstd,3 -C 64k --fragments tails --dedupe", "--format squashfs"] {
        mkfs(folder.path(), &format!("first source {options}")).expect("it is built");
        mkfs(folder.path(), &format!("second first {options}")).expect("it is built");
        let bytes = ["first", "second"].map(|name| fs::read(folder.path().join(name)).expect("it is there"));
        if options.contains("squashfs") {
            // Whole seconds are rounded once.
            assert_eq!(bytes[0].len(), bytes[1].len(), "{options}");
        } else {
            assert!(bytes[0] == bytes[1], "{options}");
        }
    }
}

#[test]
fn an_image_is_a_layer_among_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["base/gone", "base/kept", "base/cleared/old", "base/both/one", "next/both/two", "last/kept"] {
        fs::create_dir_all(path(name).parent().expect("a folder")).expect("made");
        fs::write(path(name), name).expect("written");
    }
    // The marks of overlayfs, as mkfs.erofs stores them.
    fs::create_dir_all(path("layer/cleared")).expect("made");
    for name in ["layer/.wh.gone", "layer/cleared/.wh..wh..opq", "layer/cleared/new"] {
        fs::write(path(name), name).expect("written");
    }
    let tar = Command::new("tar").args(["-cf", "layer.tar", "-C", "layer", "."]).current_dir(folder.path()).status();
    assert!(tar.expect("there is tar").success());
    let program = path("mkfs.erofs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_floe"), &program).expect("linked");
    let aufs = ["--aufs", "--quiet", "--tar=f", "layer.erofs", "layer.tar"];
    assert!(Command::new(&program).args(aufs).current_dir(folder.path()).status().expect("it runs").success());
    mkfs(folder.path(), "base.sqfs base --format squashfs").expect("it is built");
    mkfs(folder.path(), "merged base.sqfs next layer.erofs last --whiteouts").expect("it is built");
    let listed = floe(folder.path(), &["ls", "-R", "merged"]).expect("it is listed");
    for (name, is_there) in
        [("gone", false), ("old", false), ("kept", true), ("new", true), ("one", true), ("two", true), (".wh", false)]
    {
        assert_eq!(listed.contains(name), is_there, "{name}: {listed}");
    }
    assert_eq!(floe(folder.path(), &["cat", "merged", "/kept"]).expect("it is read"), "last/kept");
    let xattrs = floe(folder.path(), &["stat", "merged", "/cleared"]).expect("it is read");
    assert!(!xattrs.contains("overlay"), "{xattrs}");
    // Without the option, the marks are kept.
    mkfs(folder.path(), "kept base.sqfs layer.erofs").expect("it is built");
    let listed = floe(folder.path(), &["ls", "-l", "kept"]).expect("it is listed");
    assert!(listed.lines().any(|line| line.starts_with('c') && line.ends_with("gone")), "{listed}");
}

#[test]
fn extra_devices_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    Tree::small(5).write(&folder.path().join("source")).expect("there is room");
    let program = folder.path().join("mkfs.erofs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_floe"), &program).expect("linked");
    let flags = ["--quiet", "--chunksize=4096", "--blobdev=blob", "old", "source"];
    assert!(Command::new(&program).args(flags).current_dir(folder.path()).status().expect("it runs").success());
    mkfs(folder.path(), "direct source -z lz4").expect("it is built");
    mkfs(folder.path(), "new old --device blob -z lz4").expect("it is built");
    let bytes = ["direct", "new"].map(|name| fs::read(folder.path().join(name)).expect("it is there"));
    assert!(bytes[0] == bytes[1]);
    for (arguments, expected) in [
        ("other old", "device"),
        ("other source --device blob", "--device belongs to an image: exactly one source must be an image"),
        ("other old old --device blob", "--device belongs to an image: exactly one source must be an image"),
        ("old old --device blob", "the output old is also a source"),
    ] {
        let told = mkfs(folder.path(), arguments).expect_err("it is refused");
        assert!(told.contains(expected) && told.lines().count() == 1, "{arguments}: {told}");
        assert!(!folder.path().join("other").exists(), "{arguments}");
    }
}

#[test]
fn a_truncated_image_gives_no_image() {
    let folder = tempfile::tempdir().expect("a folder");
    Tree::small(6).write(&folder.path().join("source")).expect("there is room");
    for options in ["", "--format squashfs"] {
        mkfs(folder.path(), &format!("old source {options}")).expect("it is built");
        let bytes = fs::read(folder.path().join("old")).expect("it is there");
        fs::write(folder.path().join("old"), &bytes[..bytes.len() / 2]).expect("written");
        let told = mkfs(folder.path(), "new old").expect_err("it is broken");
        assert!(told.contains("old") && told.lines().count() == 1, "{told}");
        assert!(!folder.path().join("new").exists());
    }
}
