//! Mounts of the reference images: manifests, the kernel's mounts, and the results of system calls.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::{ffi::OsStrExt, fs::DirEntryExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format, ImageRecord, Materialised},
    file_system_label,
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::{
    fs::{lgetxattr, llistxattr},
    io::Errno,
};

use crate::support::{
    Served, front,
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

/// The values of `front=` that are possible here.
fn fronts() -> impl Iterator<Item = &'static str> {
    ["fuse", "kernel"].into_iter().filter(|front| *front == "fuse" || front::ready())
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
    for (name, front) in
        ["erofs-cbase-lz4", "sqfs-cbase-gzip"].into_iter().flat_map(|name| fronts().map(move |front| (name, front)))
    {
        let image = corpus.materialise(&corpus.image(name));
        let (kernel, served) =
            (KernelMount::new(&image).expect("the kernel mounts it"), Served::new(&image, front).expect("mounted"));
        let paths = paths(&kernel.path());
        assert!(paths.len() > 10, "there is something to compare");
        for path in paths {
            let (expected, found) =
                (attribute_answers(&kernel.path().join(&path)), attribute_answers(&served.path().join(&path)));
            let differing: Vec<_> = found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
            assert!(differing.is_empty() && found.len() == expected.len(), "{name} {front} {path:?}: {differing:#?}");
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
    let image = Materialised::single(path, Format::Squashfs);
    let mount = KernelMount::new(&image).expect("the kernel mounts it");
    let mut room = [0; 100];
    for front in fronts() {
        let served = Served::new(&image, front).expect("mounted");
        // After the ENOSYS that ends these requests, FUSE reports that attributes are not supported. SquashFS reports that there
        // is no attribute with this name, but lists none either; EROFS lists nothing. Of ACLs, a FUSE mount without
        // them says that there are none.
        let (absent, list, acl) = match front {
            "fuse" => (Errno::OPNOTSUPP, Err(Errno::OPNOTSUPP), Errno::NODATA),
            _ => (Errno::NODATA, Ok(0), Errno::OPNOTSUPP),
        };
        for path in [".", "directory"] {
            let (kernel, served) = (mount.path().join(path), served.path().join(path));
            assert_eq!(llistxattr(&kernel, &mut room[..]), Err(Errno::OPNOTSUPP), "{path}");
            assert_eq!(llistxattr(&served, &mut room[..]), list, "{front} {path}");
            for name in ["user.a", "security.capability"] {
                assert_eq!(lgetxattr(&kernel, name, &mut room[..]), Err(Errno::NODATA), "{path}");
                assert_eq!(lgetxattr(&served, name, &mut room[..]), Err(absent), "{front} {path}");
            }
            for name in ["system.posix_acl_access", "system.posix_acl_default"] {
                assert_eq!(lgetxattr(&kernel, name, &mut room[..]), Err(Errno::OPNOTSUPP), "{path} {name}");
                assert_eq!(lgetxattr(&served, name, &mut room[..]), Err(acl), "{front} {path} {name}");
            }
        }
        assert_eq!(served.end(), Vec::<String>::new());
    }
}

#[test]
fn labels_are_answered_as_by_the_kernel() {
    if !skip::ready(&[Need::Root, Need::Fuse, Need::KernelErofs, Need::KernelSquashfs]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.path().join("source/directory")).expect("ours");
    fs::write(folder.path().join("source/file"), "text").expect("ours");
    let image = |path: PathBuf, format| Materialised::single(path, format);
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

/// The comparable properties of two mounts.
const EVERYTHING: DirectoryWalk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };

#[test]
fn mounts_match_manifests_and_the_kernel() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let kernel_mounts = |format| match format {
        Format::Erofs => skip::ready(&[Need::KernelErofs]),
        Format::Squashfs => skip::ready(&[Need::KernelSquashfs]),
    };
    let (erofs, squashfs) = (kernel_mounts(Format::Erofs), kernel_mounts(Format::Squashfs));
    check_rows(
        &crate::support::images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let served = match Served::new(&files, "fuse") {
                Ok(served) => served,
                Err(refusal) => return vec![refusal],
            };
            let shown = walk::directory(&served.path(), EVERYTHING).expect("walked");
            // If the kernel cannot mount the image, its manifest comes from a tool whose directories may differ.
            let directory_shape_is_free = !image.kernel_is_truth();
            let comparison = Comparison { directory_shape_is_free, ..Comparison::default() };
            let mut told = differences(&corpus.manifest(image), &shown, &comparison);
            let is_mounted_too = if image.format == Format::Erofs { erofs } else { squashfs };
            if is_mounted_too && image.kernel_is_truth() {
                match KernelMount::new(&files) {
                    Ok(mount) => told.extend(beside_kernel(image, &shown, &served.path(), &mount.path())),
                    Err(refusal) => told.push(refusal),
                }
            }
            told.extend(served.end());
            told
        },
    );
}

/// The differences between a mount and the kernel's.
fn beside_kernel(image: &ImageRecord, shown: &Manifest, served: &Path, mounted: &Path) -> Vec<String> {
    // The kernel takes long to read huge images. Their content is compared only with the manifest.
    let walk = DirectoryWalk { metadata_only: image.huge, ..EVERYTHING };
    let expected = walk::directory(mounted, walk).expect("the kernel's mount is walked");
    let mut shown = shown.clone();
    if image.huge {
        shown.entries_mut().for_each(|(_, entry)| entry.sha256 = None);
    }
    let comparison = Comparison { xattrs_are_free: image.xattrs_from.is_some(), ..Comparison::default() };
    let mut told = differences(&expected, &shown, &comparison);
    told.iter_mut().for_each(|line| *line = format!("beside the kernel: {line}"));
    let (of_kernel, of_floe) = (statistics(mounted), statistics(served));
    if of_floe != of_kernel {
        told.push(format!("statfs is {of_floe}, not {of_kernel}"));
    }
    for (path, entry) in shown.entries().filter(|(_, entry)| entry.file_type == 'd') {
        let below = |root: &Path| root.join(OsStr::from_bytes(path).to_string_lossy().trim_start_matches('/'));
        // Names that are not UTF-8 are compared by the walk, but not the order of their directories.
        if std::str::from_utf8(path).is_ok() && listing(&below(served)) != listing(&below(mounted)) {
            told.push(format!("{} (of {} bytes) is listed otherwise", String::from_utf8_lossy(path), entry.size));
        }
    }
    told
}

/// Names in the order of the directory, with the numbers that `readdir` gives.
fn listing(directory: &Path) -> Vec<(Vec<u8>, u64)> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed"));
    entries.map(|entry| (entry.file_name().as_bytes().to_vec(), entry.ino())).collect()
}

/// The result of `statfs`, except what FUSE and Linux decide: the type of the file system and the number of possible inodes
/// (the kernel's EROFS returns the largest number). Also the result of `stat` for missing names of 255 to 257 bytes.
fn statistics(root: &Path) -> String {
    let said = rustix::fs::statvfs(root).expect("statfs");
    let inodes_in_use = said.f_files.wrapping_sub(said.f_ffree);
    let missing = [255, 256, 257].map(|len| rustix::fs::stat(root.join("%".repeat(len))).err());
    format!(
        "{} blocks of {} ({}), {} free; {inodes_in_use} inodes; names of {} bytes, {missing:?}",
        said.f_blocks, said.f_frsize, said.f_bsize, said.f_bfree, said.f_namemax
    )
}
