//! Images inside other files, which `floe mount` finds, and `floe mount IMAGE /dev/fd/N`, with which a container runtime mounts
//! itself.

use std::{
    env,
    ffi::CString,
    fs,
    io::Write,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::Command,
};

use floe_testkit::{
    KernelMount, check_rows,
    corpus::{Corpus, Format},
    manifest::{Comparison, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use crate::support::program::{Place, Serving, demo, floe, run, told, until};

/// The comparable properties of two mounts.
const EVERYTHING: DirectoryWalk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };

/// SquashFS images of several compressors, including those of AppImages and SIF files, and EROFS images, which newer ones
/// contain.
const IMAGES: [&str; 6] =
    ["sqfs-cbase-gzip", "sqfs-cbase-zstd-noI", "sqfs-xz-1m", "sqfs-lz4-hc", "sqfs-nopad", "erofs-cbase-lz4"];

/// A file with an image and other contents.
#[derive(Clone, Copy, Debug)]
enum Container {
    /// A program followed by an image.
    AppImage,
    /// A container of Singularity or Apptainer: a definition and a partition.
    Sif,
}

#[test]
fn images_in_appimages_and_containers_are_mounted() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let has_kernel_mounts = skip::ready(&[Need::KernelSquashfs, Need::KernelErofs]);
    let corpus = Corpus::fixtures();
    let spellings: [&[&str]; 2] = [&["--offset", "auto"], &["-o", "offset=auto"]];
    let containers = [Container::AppImage, Container::Sif];
    let rows: Vec<_> =
        IMAGES.iter().flat_map(|name| containers.iter().zip(spellings).map(move |row| (name, row))).collect();
    check_rows(
        &rows,
        |(name, (container, _))| format!("{name} in {container:?}"),
        |(name, (container, spelling))| {
            let image = corpus.materialise(&corpus.image(name));
            let folder = tempfile::tempdir().expect("a folder");
            let file = container.make(folder.path(), &fs::read(&image.path).expect("the image"));
            let (inside, plain) = (Serving::new(&file, *spelling), Serving::new(&image.path, [""; 0]));
            let format = if image.format == Format::Squashfs { "SquashFS" } else { "EROFS" };
            assert!(inside.ready.contains(&format!("({format}) is mounted on")), "{}", inside.ready);
            let shown = walk::directory(&inside.place.path, EVERYTHING).expect("walked");
            assert!(shown.entries().count() > 10, "there is something to compare");
            let mut expected = vec![walk::directory(&plain.place.path, EVERYTHING).expect("walked")];
            if has_kernel_mounts {
                let mount = KernelMount::new(&image).expect("the kernel mounts it");
                expected.push(walk::directory(&mount.path(), EVERYTHING).expect("walked"));
            }
            expected.iter().flat_map(|expected| differences(expected, &shown, &Comparison::default())).collect()
        },
    );
}

#[test]
fn an_appimage_is_launched_from_a_mount() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("usr/share")).expect("made");
    let launcher = "#!/bin/sh\nread text < \"$APPDIR/usr/share/text\"\necho \"$ARGV0 $1 $text\"\n";
    fs::write(tree.join("AppRun"), launcher).expect("written");
    fs::set_permissions(tree.join("AppRun"), fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(tree.join("usr/share/text"), "of the image\n").expect("written");
    // The compressors of AppImages.
    for compression in ["gzip", "zstd"] {
        let image = folder.path().join("image");
        let _ = fs::remove_file(&image);
        let mut build = floe();
        build.args(["mkfs", "--format", "squashfs", "--compress", compression]).arg(&image).arg(&tree);
        let (code, errors) = told(&run(&mut build));
        assert_eq!(code, Some(0), "{errors}");
        let file = appimage(folder.path(), &fs::read(&image).expect("an image"));
        let serving = Serving::new(&file, ["--offset", "auto"]);
        let mut launch = Command::new(serving.place.file("AppRun"));
        launch.arg("argument").env("APPIMAGE", &file).env("APPDIR", &serving.place.path).env("ARGV0", "Tool.AppImage");
        let output = run(&mut launch);
        assert_eq!(output.stdout, b"Tool.AppImage argument of the image\n", "{compression} {output:?}");
    }
}

#[test]
fn files_without_an_image_are_refused_in_one_line() {
    if !skip::ready(&[Need::Fuse]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (container, content) in [
        (Container::AppImage, &[][..]),
        (Container::Sif, &[]),
        (Container::AppImage, &[7; 9000]),
        (Container::Sif, &[7; 9000]),
    ] {
        let file = container.make(folder.path(), content);
        for spelling in [&["--offset", "auto"][..], &["-o", "offset=auto"], &[]] {
            let place = Place::new();
            let (code, errors) = told(&run(floe().arg("mount").args(spelling).arg(&file).arg(&place.path)));
            let case = format!("{container:?} with {} bytes, {spelling:?}: {code:?} {errors}", content.len());
            assert!(code == Some(3) && errors.lines().count() == 1, "{case}");
            assert!(errors.contains(file.to_str().expect("text")), "{case}");
            assert!(!place.is_mounted(), "{case}");
        }
    }
}

impl Container {
    /// Builds such a file around `image`.
    fn make(self, folder: &Path, image: &[u8]) -> PathBuf {
        match self {
            Self::AppImage => appimage(folder, image),
            Self::Sif => sif(folder, image),
        }
    }
}

/// An AppImage of type 2: a program, this one, with the mark in its header, followed by the image.
fn appimage(folder: &Path, image: &[u8]) -> PathBuf {
    let path = folder.join("Tool.AppImage");
    fs::copy(env::current_exe().expect("this program"), &path).expect("a copy");
    let mut file = fs::File::options().append(true).open(&path).expect("the copy");
    file.write_all(image).expect("the image");
    let file = fs::File::options().write(true).open(&path).expect("the copy");
    file.write_all_at(b"AI\x02", 8).expect("the mark");
    path
}

/// A SIF file, version 01: the launching line, the header, descriptors of 585 bytes, then the objects.
fn sif(folder: &Path, image: &[u8]) -> PathBuf {
    const DESCRIPTORS: usize = 4096;
    const DEFINITION: &[u8] = b"bootstrap: docker\nfrom: alpine\n";
    let objects = [(0x4001_u32, 36_864_usize, DEFINITION), (0x4004, 40_960, image)];
    let mut bytes = vec![0; 40_960];
    let mut put = |offset: usize, field: &[u8]| bytes[offset..offset + field.len()].copy_from_slice(field);
    put(0, b"#!/usr/bin/env run-singularity\n");
    put(32, b"SIF_MAGIC\x0001\0");
    // The numbers of free and of all descriptors, and their offset.
    put(80, &46_u64.to_le_bytes());
    put(88, &48_u64.to_le_bytes());
    put(96, &(DESCRIPTORS as u64).to_le_bytes());
    for (index, (data_type, offset, content)) in objects.into_iter().enumerate() {
        let descriptor = DESCRIPTORS + index * 585;
        put(descriptor, &data_type.to_le_bytes());
        put(descriptor + 4, &[1]);
        put(descriptor + 17, &(offset as u64).to_le_bytes());
        put(descriptor + 25, &(content.len() as u64).to_le_bytes());
        if data_type == 0x4004 {
            // A compressed SquashFS partition with the system to run, the usual type. Readers examine the content.
            put(descriptor + 201, &1_u32.to_le_bytes());
            put(descriptor + 205, &2_u32.to_le_bytes());
        }
    }
    put(36_864, DEFINITION);
    bytes.extend_from_slice(image);
    let path = folder.join("system.sif");
    fs::write(&path, bytes).expect("the container");
    path
}

/// A descriptor of the device that programs inherit, and the command that serves it.
fn device() -> (OwnedFd, Command) {
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the device");
    fcntl_setfd(&device, FdFlags::empty()).expect("it is inherited");
    let mut command = floe();
    command.arg("mount").arg(demo()).arg(format!("/dev/fd/{}", device.as_raw_fd()));
    (device.into(), command)
}

fn mount_as_a_runtime(device: &OwnedFd, directory: &Path) {
    let data = format!("fd={},rootmode=40755,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let data = CString::new(data).expect("text");
    mount("runtime", directory, "fuse.runtime", MountFlags::RDONLY, data.as_c_str()).expect("a mount");
}

#[test]
fn a_mounted_descriptor_is_served() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let place = Place::new();
    let (device, command) = device();
    mount_as_a_runtime(&device, &place.path);
    let mut serving = Serving::start(command, place);
    let expected = format!("{} (EROFS) is mounted on /dev/fd/{}\n", demo().display(), device.as_raw_fd());
    assert_eq!(serving.ready, expected);
    drop(device);
    assert!(!fs::read(serving.place.file("README.txt")).expect("data").is_empty());
    // A program that another test is starting may still hold copies of this process's descriptors.
    until("it is unmounted", || unmount(&serving.place.path, UnmountFlags::empty()).is_ok());
    assert_eq!(serving.end().0.code(), Some(0));
}

#[test]
fn a_descriptor_that_is_not_mounted_is_refused() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for arguments in [&[][..], &["--sandbox=off"], &["--daemon"]] {
        let (device, mut command) = device();
        let (code, errors) = told(&run(command.args(arguments)));
        let expected =
            "floe: the descriptor of /dev/fuse is not mounted: mount it with fd=N before the program starts\n";
        assert_eq!((code, errors.as_str()), (Some(1), expected), "{arguments:?}");
        drop(device);
    }
}
