//! Extraction into directories that have entries.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Output};

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
