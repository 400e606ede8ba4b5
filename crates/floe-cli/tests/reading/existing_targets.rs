//! Extraction into directories that have entries.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
    sync::atomic::AtomicBool,
};

use floe::{ExtractEvent, ExtractOptions, Image, OpenOptions, Parts, extract as extract_image};
use floe_testkit::{
    peer,
    skip::{self, Need},
};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
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

/// The file in the place of an entry of the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    File,
    EmptyDirectory,
    Directory,
    /// A link to a directory outside the target that has a file.
    Link,
}

impl Obstacle {
    fn make(self, place: &Path) {
        match self {
            Self::File => fs::write(place, "old").expect("written"),
            Self::EmptyDirectory => fs::create_dir(place).expect("made"),
            Self::Directory => fs::create_dir_all(place.join("kept")).expect("made"),
            Self::Link => symlink("../outside", place).expect("linked"),
        }
    }

    /// Whether the entry is extracted.
    fn makes_way(self, entry: &str, is_forced: bool) -> bool {
        match (self, entry) {
            (Self::EmptyDirectory | Self::Directory, "directory") => true,
            (Self::Directory, _) => false,
            _ => is_forced,
        }
    }
}

#[test]
fn only_files_links_and_empty_directories_are_replaced() {
    let folder = scene(|tree| {
        fs::create_dir(tree.join("directory")).expect("made");
        fs::write(tree.join("directory/inside"), "new").expect("written");
        fs::write(tree.join("file"), "new").expect("written");
        fs::hard_link(tree.join("file"), tree.join("hard")).expect("linked");
        symlink("file", tree.join("link")).expect("linked");
        mknodat(CWD, tree.join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        // All users may create whiteouts of overlayfs.
        mknodat(CWD, tree.join("whiteout"), FileType::CharacterDevice, Mode::RUSR, makedev(0, 0)).expect("made");
    });
    let here = folder.path();
    let squashfs = skip::ready(&[Need::Peer("mksquashfs")]).then(|| {
        let mut command = Command::new(peer("mksquashfs").expect("it was asked for"));
        run(command.args(["tree", "image.sqfs", "-quiet", "-no-progress"]).current_dir(here))
    });
    let programs: &[(&str, &[&str], &str, i32)] = &[
        ("floe", &["extract", "-q", "-C", "target", "image"], "--force", 1),
        ("fsck.erofs", &["--extract=target", "image"], "--overwrite", 1),
        ("unsquashfs", &["-q", "-n", "-d", "target", "image.sqfs"], "-f", 1),
    ];
    let mut wrong = Vec::new();
    for (program, arguments, force, failed) in programs {
        for entry in ["file", "hard", "link", "fifo", "whiteout", "directory"] {
            for obstacle in [Obstacle::File, Obstacle::EmptyDirectory, Obstacle::Directory, Obstacle::Link] {
                for is_forced in [false, true] {
                    if *program == "unsquashfs" && squashfs.is_none() {
                        continue;
                    }
                    for name in ["target", "outside"] {
                        let _ = fs::remove_dir_all(here.join(name));
                        fs::create_dir(here.join(name)).expect("made");
                    }
                    fs::write(here.join("outside/kept"), "kept").expect("written");
                    let place = here.join("target").join(entry);
                    obstacle.make(&place);
                    let before = fs::symlink_metadata(&place).expect("there").ino();
                    let mut arguments = arguments.to_vec();
                    if is_forced {
                        arguments.insert(1, force);
                    }
                    let output = run(floe().arg0(program).args(arguments).current_dir(here));
                    let (code, complaints) = told(&output);
                    let makes_way = obstacle.makes_way(entry, is_forced);
                    // As with the original, a link or special file is no reason for unsquashfs to end.
                    let is_tolerant = *program == "unsquashfs"
                        && matches!(entry, "link" | "fifo" | "whiteout")
                        && (obstacle, is_forced) != (Obstacle::Directory, true);
                    let expected = if makes_way {
                        0
                    } else if is_tolerant {
                        2
                    } else {
                        *failed
                    };
                    let is_made = match entry {
                        "directory" => fs::read(place.join("inside")).is_ok_and(|content| content == b"new"),
                        "file" | "hard" => {
                            fs::read(&place).is_ok_and(|content| content == b"new") && !place.is_symlink()
                        }
                        "link" => fs::read_link(&place).is_ok_and(|target| target == Path::new("file")),
                        _ => !place.is_dir() && !place.is_file() && !place.is_symlink(),
                    };
                    let is_kept = fs::symlink_metadata(&place).is_ok_and(|found| found.ino() == before);
                    let names = fs::read_dir(here.join("outside")).expect("listed").count();
                    let is_clean = names == 1 && fs::read(here.join("outside/kept")).is_ok_and(|kept| kept == b"kept");
                    if code != Some(expected) || is_made != makes_way || !is_clean || !makes_way && !is_kept {
                        wrong.push(format!(
                            "{program} {entry} {obstacle:?} {is_forced}: {code:?}, made {is_made}, kept {is_kept}, clean \
                             {is_clean}: {complaints}"
                        ));
                    }
                }
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
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
