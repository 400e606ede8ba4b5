//! The extra devices of an image: opened only when a user names them, never because the image names them.

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

use crate::support::program::{Place, Serving, floe, run, told};

/// A folder with `image`, and the extra device `blob` with its data.
struct Scene {
    folder: tempfile::TempDir,
    /// The offset of the device's name in the image. It has room for 64 bytes.
    name_at: usize,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut scene = Self { folder, name_at: 0 };
        fs::create_dir(scene.path("source")).expect("ours");
        fs::write(scene.path("source/file"), "what is in the device".repeat(1000)).expect("ours");
        let mut command = floe();
        std::os::unix::process::CommandExt::arg0(&mut command, "mkfs.erofs");
        let options = ["--quiet", "--chunksize=4096", "--blobdev=blob", "image", "source"];
        let made = run(command.args(options).current_dir(scene.folder.path()));
        assert!(made.status.success(), "{made:?}");
        let image = fs::read(scene.path("image")).expect("ours");
        let found = image.windows(5).position(|bytes| bytes == b"blob\0");
        scene.name_at = found.expect("the device has its name");
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Changes the name of the device in the image.
    fn rename_device(&self, name: &str) {
        let mut image = fs::read(self.path("image")).expect("ours");
        image[self.name_at..][..64].fill(0);
        image[self.name_at..][..name.len()].copy_from_slice(name.as_bytes());
        // Removes the first feature, the checksum, which would be wrong now.
        image[1024 + 8] &= !1;
        fs::write(self.path("image"), image).expect("ours");
    }

    /// A command of Floe, or of a program that it replaces.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = floe();
        let (name, arguments) = words.split_first().expect("a name");
        match name.contains('.') {
            true => drop(std::os::unix::process::CommandExt::arg0(&mut command, name)),
            false => drop(command.arg(name)),
        }
        command.args(arguments).current_dir(self.folder.path());
        command
    }
}

#[test]
fn an_image_names_no_files_by_itself() {
    let scene = Scene::new();
    let rows: &[&[&str]] = &[
        &["ls", "image"],
        &["cat", "image", "/file"],
        &["stat", "image", "/file"],
        &["check", "image"],
        &["dump", "image"],
        &["extract", "image", "-C", "target"],
        &["mount", "image", "source"],
        &["fsck.erofs", "image"],
        &["dump.erofs", "-S", "image"],
    ];
    check_rows(
        rows,
        |words| words.join(" "),
        |words| {
            let (code, errors) = told(&run(&mut scene.command(words)));
            let is_told = match words[0].contains('.') {
                true => errors.contains("image: needs extra device 1: give its file with --device"),
                false => {
                    errors.contains("image: needs extra device 1, \"blob\": give its file with --device")
                        && errors.contains("--device-directory")
                }
            } && errors.lines().count() == 1;
            if code != Some(0) && is_told { Vec::new() } else { vec![format!("{code:?}: {errors}")] }
        },
    );
}

#[test]
fn devices_are_opened_in_the_directory_that_is_given() {
    let scene = Scene::new();
    for words in [
        ["cat", "--device", "blob", "image", "/file"],
        ["cat", "--device-directory", ".", "image", "/file"],
        ["check", "--device-directory", ".", "--", "image"],
    ] {
        let output = run(&mut scene.command(&words));
        assert_eq!(told(&output), (Some(0), String::new()), "{words:?}");
        assert!(words[0] != "cat" || output.stdout.len() == 21_000, "{words:?}");
    }
    let blob = scene.path("blob");
    fs::create_dir_all(scene.path("inner/directory")).expect("ours");
    symlink(&blob, scene.path("inner/link")).expect("ours");
    symlink(scene.folder.path(), scene.path("inner/folder")).expect("ours");
    let fifo = run(Command::new("mkfifo").arg(scene.path("inner/fifo")));
    assert!(fifo.status.success(), "{fifo:?}");
    for (name, expected) in [
        ("link", "it is a symbolic link"),
        ("folder/blob", "its name leads out of the device directory"),
        ("../blob", "its name leads out of the device directory"),
        (blob.to_str().expect("text"), "its name leads out of the device directory"),
        ("..", "its name leads out of the device directory"),
        (".", "its name leads out of the device directory"),
        ("fifo", "not a regular file or a block device"),
        ("directory", "is a directory"),
        ("missing", "No such file"),
        ("", "it has no name in the image"),
    ] {
        scene.rename_device(name);
        let (code, errors) = told(&run(&mut scene.command(&["cat", "--device-directory", "inner", "image", "/file"])));
        assert_eq!(code, Some(1), "{name}: {errors}");
        let is_told = errors.contains("image: extra device 1, ") && errors.contains(expected);
        assert!(is_told && errors.lines().count() == 1, "{name}: {errors}");
    }
}

#[test]
fn mounts_open_devices_where_they_are_asked_to() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let scene = Scene::new();
    let directory = scene.folder.path().to_str().expect("text").to_owned();
    for options in [
        ["--device-directory".to_owned(), directory.clone()],
        ["-o".to_owned(), format!("device-directory={directory}")],
    ] {
        let serving = Serving::new(&scene.path("image"), &options);
        assert_eq!(fs::read(serving.place.file("file")).expect("data").len(), 21_000, "{options:?}");
    }
    // The content of a device of root is not shown to other users.
    scene.rename_device("secret");
    fs::rename(scene.path("blob"), scene.path("secret")).expect("ours");
    let place = Place::new();
    let (code, errors) = told(&run(floe().arg("mount").arg(scene.path("image")).arg(Path::new(&place.path))));
    assert!(code == Some(1) && errors.contains("needs extra device 1, \"secret\""), "{code:?}: {errors}");
    assert!(!place.is_mounted());
}
