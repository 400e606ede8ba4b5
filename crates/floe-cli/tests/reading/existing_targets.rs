//! Extraction into directories that have entries.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::Output,
    sync::atomic::AtomicBool,
};

use floe::{ExtractEvent, ExtractOptions, Image, OpenOptions, Parts, extract as extract_image};
use tempfile::TempDir;

use crate::support::program::{floe, run, told};

/// Makes `image` in a folder, an EROFS image of what `fill` puts into a directory.
fn scene(fill: impl FnOnce(&Path)) -> TempDir {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).expect("made");
    fill(&tree);
    let built = run(floe().arg("mkfs").arg(folder.path().join("image")).arg(&tree));
    assert_eq!(told(&built), (Some(0), String::new()));
    folder
}

fn extract(folder: &Path, arguments: &[&str]) -> Output {
    run(floe().args(["extract", "--quiet", "image", "-C", "target"]).args(arguments).current_dir(folder))
}

#[test]
fn a_hard_link_never_leads_to_a_file_that_existed() {
    let folder = scene(|tree| {
        for directory in ["d", "e", "i"] {
            fs::create_dir(tree.join(directory)).expect("made");
        }
        fs::write(tree.join("d/f"), "new").expect("written");
        fs::hard_link(tree.join("d/f"), tree.join("e/h")).expect("linked");
        fs::hard_link(tree.join("d/f"), tree.join("i/j")).expect("linked");
    });
    let target = folder.path().join("target");
    fs::create_dir_all(target.join("d")).expect("made");
    fs::write(target.join("d/f"), "old").expect("written");
    let output = extract(folder.path(), &[]);
    let (code, complaints) = told(&output);
    assert_eq!(code, Some(1), "{complaints}");
    assert!(complaints.starts_with("floe: /d/f: already exists"), "{complaints}");
    let content = |name: &str| fs::read_to_string(target.join(name)).expect("readable");
    let inode = |name: &str| fs::metadata(target.join(name)).expect("there").ino();
    assert_eq!((content("d/f"), content("e/h")), ("old".to_owned(), "new".to_owned()));
    // The other names still belong together.
    assert_eq!(inode("e/h"), inode("i/j"));
    let output = extract(folder.path(), &["--force"]);
    assert_eq!(told(&output), (Some(0), String::new()));
    assert_eq!(content("d/f"), "new");
    assert!(inode("d/f") == inode("e/h") && inode("d/f") == inode("i/j"));
}

#[test]
fn a_directory_in_use_gets_the_attributes_of_the_root() {
    let folder = scene(|tree| {
        fs::write(tree.join("file"), "new").expect("written");
        fs::set_permissions(tree, fs::Permissions::from_mode(0o710)).expect("set");
    });
    let image = folder.path().join("image");
    let image = image.to_str().expect("a plain path");
    let given: &[&str] = &["extract", "-q", image, "-C", "../target"];
    for (name, arguments, is_finished) in [
        ("floe", given, true),
        ("floe", &["extract", "-q", image], false),
        ("fsck.erofs", &["--preserve", "--extract=../target", image], true),
    ] {
        let target = folder.path().join("target");
        fs::create_dir(&target).expect("made");
        fs::create_dir(target.join("lost+found")).expect("made");
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).expect("set");
        let output = run(floe().arg0(name).args(arguments).current_dir(&target));
        assert_eq!(told(&output), (Some(0), String::new()), "{name} {arguments:?}");
        let mode = fs::metadata(&target).expect("there").mode() & 0o7777;
        assert_eq!(mode == 0o710, is_finished, "{name} {arguments:?}: {mode:o}");
        fs::remove_dir_all(&target).expect("removed");
    }
}

#[test]
fn fsck_erofs_refuses_to_extract_a_file_as_a_directory() {
    let folder = scene(|tree| fs::write(tree.join("file"), "new").expect("written"));
    let arguments = ["--extract=target", "--path=/file", "image"];
    let (code, complaints) = told(&run(floe().arg0("fsck.erofs").args(arguments).current_dir(folder.path())));
    assert_eq!((code, complaints.lines().count()), (Some(1), 1), "{complaints}");
    assert!(complaints.contains("extracts only a directory"), "{complaints}");
    assert!(!folder.path().join("target").exists());
}

#[test]
fn a_directory_that_was_replaced_keeps_its_attributes() {
    let folder = scene(|tree| {
        fs::create_dir(tree.join("d")).expect("made");
        fs::write(tree.join("d/file"), "new").expect("written");
    });
    let (image, target) = (folder.path().join("image"), folder.path().join("target"));
    let image = Image::open(&image, &OpenOptions::default()).expect("an image");
    let tell = |event: ExtractEvent<'_>| {
        // Only the directories are still to be finished.
        if matches!(event, ExtractEvent::Made) && !target.join("moved").exists() {
            fs::rename(target.join("d"), target.join("moved")).expect("renamed");
            fs::create_dir(target.join("d")).expect("made");
            fs::set_permissions(target.join("d"), fs::Permissions::from_mode(0o700)).expect("set");
        }
    };
    let options = ExtractOptions::default();
    let summary = extract_image(&image, Parts::All, &target, &options, &tell, &AtomicBool::new(false));
    assert_eq!(summary.expect("extracted").failures, 1);
    assert_eq!(fs::metadata(target.join("d")).expect("there").mode() & 0o777, 0o700);
}
