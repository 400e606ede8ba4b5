//! Results of system calls on a mount of Floe, compared with the kernel's mount of the same image.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    KernelMount,
    corpus::{Corpus, Format, Materialised},
    file_system_label, peer,
    skip::{self, Need},
};
use rustix::{
    fs::{lgetxattr, llistxattr},
    io::Errno,
};

use crate::support::{
    Served,
    program::{floe, run},
};

/// Names of attributes: of each namespace and of none, too short and too long.
fn names() -> Vec<String> {
    let plain = [
        "foo",
        "user",
        "user.",
        "user.a",
        "User.a",
        ".a",
        "xyz.a",
        "os2.a",
        "trusted",
        "trusted.",
        "trusted.a",
        "security.",
        "security.a",
        "security.capability",
        "system.",
        "system.a",
        "system.posix_acl",
        "system.posix_acl_access",
        "system.posix_acl_default",
    ];
    let long =
        [format!("user.{}", "x".repeat(250)), format!("user.{}", "x".repeat(251)), "x".repeat(255), "x".repeat(256)];
    plain.map(str::to_owned).into_iter().chain(long).collect()
}

/// Attribute calls on a path, with their results.
fn attribute_answers(path: &Path) -> Vec<String> {
    let mut answers = Vec::new();
    let mut list = vec![0; 70_000];
    let listed = llistxattr(path, &mut list[..]);
    let own = list[..listed.unwrap_or(0)].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let own: Vec<String> = own.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    for name in names().iter().chain(&own) {
        for size in [0, 1, 4, 70_000] {
            let mut value = vec![0; size];
            let result = lgetxattr(path, name.as_str(), &mut value[..]);
            answers.push(format!("getxattr {name} {size}: {result:?} {:?}", &value[..value.len().min(100)]));
        }
    }
    for size in [0, 1, 10, 65_536, 70_000] {
        answers.push(format!("listxattr {size}: {:?}", llistxattr(path, &mut list[..size])));
    }
    answers
}

/// Paths of each kind below a directory, including the directory.
fn paths(directory: &Path) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::new()];
    let mut next = 0;
    while next < paths.len() && paths.len() < 60 {
        let at = directory.join(&paths[next]);
        if at.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            let mut names: Vec<_> =
                fs::read_dir(&at).expect("listed").map(|entry| entry.expect("read").file_name()).collect();
            names.sort();
            let parent = paths[next].clone();
            paths.extend(names.iter().take(8).map(|name| parent.join(name)));
        }
        next += 1;
    }
    paths
}

#[test]
fn attributes_are_answered_as_by_the_kernel() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs, Need::KernelSquashfs]) {
        return;
    }
    let corpus = Corpus::fixtures();
    for name in ["erofs-cbase-lz4", "sqfs-cbase-gzip"] {
        let image = corpus.materialise(&corpus.image(name));
        let (kernel, served) =
            (KernelMount::new(&image).expect("the kernel mounts it"), Served::new(&image, "fuse").expect("mounted"));
        let paths = paths(&kernel.path());
        assert!(paths.len() > 10, "there is something to compare");
        for path in paths {
            let (expected, found) =
                (attribute_answers(&kernel.path().join(&path)), attribute_answers(&served.path().join(&path)));
            let differing: Vec<_> = found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
            assert!(differing.is_empty() && found.len() == expected.len(), "{name} {path:?}: {differing:#?}");
        }
        assert_eq!(served.end(), Vec::<String>::new());
    }
}

#[test]
fn an_image_without_attributes_answers_as_the_kernel() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelSquashfs, Need::Peer("mksquashfs")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("source/directory")).expect("ours");
    let path = folder.path().join("image");
    let made = Command::new(peer("mksquashfs").expect("it is there"))
        .arg(folder.path().join("source"))
        .arg(&path)
        .args(["-no-xattrs", "-quiet", "-no-progress"])
        .output()
        .expect("it runs");
    assert!(made.status.success(), "{made:?}");
    let image = Materialised { path, format: Format::Squashfs, offset: 0, devices: Vec::new() };
    let (kernel, served) =
        (KernelMount::new(&image).expect("the kernel mounts it"), Served::new(&image, "fuse").expect("mounted"));
    let mut room = [0; 100];
    for path in [".", "directory"] {
        let (kernel, served) = (kernel.path().join(path), served.path().join(path));
        assert_eq!(llistxattr(&served, &mut room[..]), llistxattr(&kernel, &mut room[..]), "{path}");
        // After the ENOSYS that ends these requests, FUSE reports that attributes are not supported. SquashFS reports that there
        // is no attribute with this name.
        for name in ["user.a", "security.capability"] {
            assert_eq!(lgetxattr(&kernel, name, &mut room[..]), Err(Errno::NODATA), "{path}");
            assert_eq!(lgetxattr(&served, name, &mut room[..]), Err(Errno::OPNOTSUPP), "{path}");
        }
    }
    assert_eq!(served.end(), Vec::<String>::new());
}

#[test]
fn labels_are_answered_as_by_the_kernel() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs, Need::KernelSquashfs]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("source/directory")).expect("ours");
    fs::write(folder.path().join("source/file"), "text").expect("ours");
    let image = |path: PathBuf, format| Materialised { path, format, offset: 0, devices: Vec::new() };
    let mut images = Vec::new();
    for label in ["", "a label", "fifteen-bytes-a"] {
        let path = folder.path().join(format!("image {label}"));
        let mut command = floe();
        command.arg0("mkfs.erofs").args(["--quiet", "-L", label]).arg(&path).arg(folder.path().join("source"));
        let made = run(&mut command);
        assert!(made.status.success(), "{made:?}");
        images.push(image(path, Format::Erofs));
    }
    let corpus = Corpus::fixtures();
    images.push(corpus.materialise(&corpus.image("sqfs-cbase-gzip")));
    for image in images {
        let (kernel, served) =
            (KernelMount::new(&image).expect("the kernel mounts it"), Served::new(&image, "fuse").expect("mounted"));
        let shown = paths(&kernel.path()).into_iter();
        let shown = shown.filter(|path| {
            let metadata = kernel.path().join(path).symlink_metadata().expect("there");
            metadata.is_dir() || metadata.is_file()
        });
        for path in shown {
            let label = |root: PathBuf| {
                let label = file_system_label(&File::open(root.join(&path)).expect("opened"));
                label.map_err(|error| error.raw_os_error())
            };
            match label(kernel.path()) {
                // Linux supports the call for EROFS only since 6.17.
                Err(Some(libc::ENOTTY)) if image.format == Format::Erofs => {}
                expected => assert_eq!(label(served.path()), expected, "{:?} {path:?}", image.path),
            }
        }
        assert_eq!(served.end(), Vec::<String>::new());
    }
}
