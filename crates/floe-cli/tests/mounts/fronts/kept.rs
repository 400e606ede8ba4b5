//! Mounts with metadata that an earlier mount kept show the same, and use nothing else than that.

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, chown, symlink},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    manifest::{Comparison, Manifest, differences},
    walk::{self, DirectoryWalk},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::{
    front::{Scene, ready},
    program::{Place, Serving, floe, run, until},
};

/// An image that changed less than this ago is not kept.
const SETTLED: Duration = Duration::from_millis(200);

/// One image of so many is mounted twice.
const IMAGES_STEP: usize = 10;

/// A cache directory.
pub(super) struct Cache {
    folder: tempfile::TempDir,
}

impl Cache {
    pub(super) fn new() -> Self {
        thread::sleep(SETTLED);
        Self { folder: tempfile::tempdir().expect("a directory") }
    }

    pub(super) fn mount(&self, image: &Path) -> Serving {
        self.mount_with(image, "")
    }

    pub(super) fn mount_with(&self, image: &Path, options: &str) -> Serving {
        let place = Place::new();
        let mut command = floe();
        command.arg("mount").arg(image).arg(&place.path).env("FLOE_TEST_KEEP_AFTER_MS", "500");
        command.arg("-o").arg(format!("front=kernel,cache-directory={},{options}", self.folder.path().display()));
        Serving::start(command, place)
    }

    /// The complete files.
    fn files(&self) -> Vec<PathBuf> {
        let directories = fs::read_dir(self.folder.path().join("fronts")).into_iter().flatten().flatten();
        let files = directories.map(|entry| entry.path().join("metadata"));
        files.filter(|file| fs::symlink_metadata(file).is_ok()).collect()
    }

    /// Mounts an image until its metadata is kept. Returns the file.
    fn keep(&self, image: &Path) -> PathBuf {
        self.keep_with(image, "")
    }

    pub(super) fn keep_with(&self, image: &Path, options: &str) -> PathBuf {
        let before = self.files();
        let serving = self.mount_with(image, options);
        walked(&serving);
        let new = || self.files().into_iter().find(|file| !before.contains(file));
        until("the metadata is kept", || new().is_some());
        drop(serving);
        new().expect("it is there")
    }
}

/// Whether a mount uses kept metadata.
fn is_kept(serving: &Serving) -> bool {
    let output = run(floe().arg("status").arg(&serving.place.path));
    String::from_utf8_lossy(&output.stdout).contains("with kept metadata")
}

/// All that a program sees, without inode numbers except the root's.
fn walked(serving: &Serving) -> Manifest {
    let walk = DirectoryWalk { numbers: true, segments: true, metadata_only: false };
    let mut manifest = walk::directory(&serving.place.path, walk).expect("it is walked");
    for (_, entry) in manifest.entries_mut().filter(|(path, _)| *path != b"/") {
        entry.inode_number = None;
    }
    manifest
}

#[test]
fn later_mounts_show_the_same() {
    if !ready() {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let images: Vec<_> = crate::support::images(&corpus)
        .into_iter()
        .filter(|image| !image.huge && image.offset == 0 && image.devices.is_empty())
        .step_by(IMAGES_STEP)
        .collect();
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let path = corpus.materialise(image).path;
            let cache = Cache::new();
            let first = cache.mount(&path);
            let expected = walked(&first);
            let mut told = if is_kept(&first) { vec!["kept before".to_owned()] } else { Vec::new() };
            until("the metadata is kept", || !cache.files().is_empty());
            drop(first);
            for _ in 0..2 {
                let later = cache.mount(&path);
                told.extend(differences(&expected, &walked(&later), &Comparison::default()));
                if !is_kept(&later) {
                    told.push("it is rendered again".to_owned());
                }
            }
            told
        },
    );
}

#[test]
fn anything_else_than_the_kept_file_is_not_mounted() {
    if !ready() {
        return;
    }
    let scenes = [Scene::many(200, 3000), Scene::many(180, 3001)];
    type Attack = (&'static str, fn(&Path, &Path));
    let attacks: [Attack; 10] = [
        ("truncated", |file, _| {
            let file = File::options().write(true).open(file).expect("there");
            let len = file.metadata().expect("there").len();
            file.set_len(len - 4096).expect("truncated");
        }),
        ("empty", |file, _| drop(File::create(file).expect("emptied"))),
        ("of another image", |file, other| fs::rename(other, file).expect("renamed")),
        ("without its header", |file, _| {
            let file = File::options().write(true).open(file).expect("there");
            file.write_all_at(&[0; 4096], 4096).expect("written");
        }),
        ("with a changed superblock", |file, _| {
            let file = File::options().write(true).open(file).expect("there");
            file.write_all_at(&[7], 1024 + 64).expect("written");
        }),
        ("with changed metadata", |file, _| {
            let file = File::options().read(true).write(true).open(file).expect("there");
            let (at, mut bytes) = (8192, [0; 4096]);
            file.read_exact_at(&mut bytes, at).expect("read");
            let used = bytes.iter().position(|byte| *byte != 0).expect("it is not zero");
            file.write_all_at(&[bytes[used] ^ 1], at + used as u64).expect("written");
        }),
        ("of another user", |file, _| chown(file, Some(12_345), None).expect("given away")),
        ("a link", |file, other| {
            fs::remove_file(file).expect("removed");
            symlink(other, file).expect("linked");
        }),
        ("a directory", |file, _| {
            fs::remove_file(file).expect("removed");
            fs::create_dir(file).expect("made");
        }),
        ("in a directory of another user", |file, _| {
            chown(file.parent().expect("a parent"), Some(12_345), None).expect("given away");
        }),
    ];
    check_rows(
        &attacks,
        |attack| attack.0.to_owned(),
        |(_, attack)| {
            let cache = Cache::new();
            let files = scenes.each_ref().map(|scene| cache.keep(&scene.image));
            let intact = cache.mount(&scenes[0].image);
            let mut told = scenes[0].wrong(&intact.place.path);
            if !is_kept(&intact) {
                told.push("the intact file is not used".to_owned());
            }
            drop(intact);
            attack(&files[0], &files[1]);
            let serving = cache.mount(&scenes[0].image);
            told.extend(scenes[0].wrong(&serving.place.path));
            if is_kept(&serving) {
                told.push("it is used".to_owned());
            }
            told
        },
    );
}

#[test]
fn a_changed_image_is_rendered_again() {
    if !ready() {
        return;
    }
    let scenes = [Scene::many(200, 3000), Scene::many(180, 3001)];
    let cache = Cache::new();
    cache.keep(&scenes[0].image);
    // The file stays, with another content.
    fs::copy(&scenes[1].image, &scenes[0].image).expect("copied");
    thread::sleep(SETTLED);
    let serving = cache.mount(&scenes[0].image);
    assert!(!is_kept(&serving));
    assert_eq!(scenes[1].wrong(&serving.place.path), Vec::<String>::new());
    until("the metadata is kept", || cache.files().len() == 2);
    drop(serving);
    let serving = cache.mount(&scenes[0].image);
    assert!(is_kept(&serving));
    assert_eq!(scenes[1].wrong(&serving.place.path), Vec::<String>::new());
}

#[test]
fn two_mounts_at_once_do_not_disturb_each_other() {
    if !ready() {
        return;
    }
    let scene = Scene::many(200, 3000);
    let cache = Cache::new();
    let both = [cache.mount(&scene.image), cache.mount(&scene.image)];
    for serving in &both {
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
    }
    until("the metadata is kept", || !cache.files().is_empty());
    thread::sleep(Duration::from_secs(1));
    let third = cache.mount(&scene.image);
    assert!(is_kept(&third));
    for serving in both.iter().chain([&third]) {
        assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
    }
    let folder = cache.files()[0].parent().expect("a parent").to_owned();
    until("nothing but the complete file is left", || {
        let names: Vec<_> = fs::read_dir(&folder).expect("there").flatten().map(|entry| entry.file_name()).collect();
        names == ["metadata"]
    });
}

#[test]
fn nothing_is_kept_on_a_full_disk_or_where_the_kernel_cannot_mount_files() {
    if !ready() {
        return;
    }
    let scene = Scene::many(2000, 100);
    for (options, keeps) in [(c"size=64k", false), (c"size=64m", true)] {
        let cache = Cache::new();
        mount("none", cache.folder.path(), "tmpfs", MountFlags::empty(), options).expect("a file system");
        for _ in 0..2 {
            let serving = cache.mount(&scene.image);
            assert!(!is_kept(&serving));
            assert_eq!(scene.wrong(&serving.place.path), Vec::<String>::new());
            if keeps {
                until("the metadata is kept", || !cache.files().is_empty());
            } else {
                thread::sleep(Duration::from_secs(3));
                until("nothing is left", || {
                    let left = fs::read_dir(cache.folder.path().join("fronts")).into_iter().flatten().flatten();
                    left.map(|entry| fs::read_dir(entry.path()).expect("there").count()).sum::<usize>() == 0
                });
            }
        }
        unmount(cache.folder.path(), UnmountFlags::DETACH).expect("unmounted");
    }
}

#[test]
fn a_mount_that_is_not_used_or_renders_keeps_nothing() {
    if !ready() {
        return;
    }
    let scene = Scene::many(2000, 100);
    let cache = Cache::new();
    let unused = cache.mount(&scene.image);
    thread::sleep(Duration::from_secs(2));
    drop(unused);
    let rendering = cache.mount_with(&scene.image, "front-metadata=render");
    assert_eq!(scene.wrong(&rendering.place.path), Vec::<String>::new());
    thread::sleep(Duration::from_secs(2));
    drop(rendering);
    assert_eq!(cache.files(), Vec::<PathBuf>::new());
    cache.keep(&scene.image);
    let rendering = cache.mount_with(&scene.image, "front-metadata=render");
    assert!(!is_kept(&rendering));
    assert_eq!(scene.wrong(&rendering.place.path), Vec::<String>::new());
}
