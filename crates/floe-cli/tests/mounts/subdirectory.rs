//! `-o subdir=PATH`: a directory of an image is mounted as its root.

use std::{fs, os::unix::process::CommandExt, path::Path, process::Command};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    skip::{self, Need},
};

use crate::support::program::{Place, demo, floe, run, told};

/// Types, modes, owners and content of everything in a directory.
fn tree(directory: &Path) -> String {
    let script = "find . ! -path . -printf '%P %y %m %U %G %l\\n' | sort; \
        find . -type f -exec md5sum {} + | sort -k 2";
    let output = run(Command::new("sh").args(["-c", script]).current_dir(directory));
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command that mounts an image, by the name of a program.
fn mounting(name: &str, options: &str, image: &Path, place: &Place) -> Command {
    let mut command = floe();
    command.arg0(name);
    if name == "floe" {
        command.args(["mount", "--daemon"]);
    }
    command.args(["-o", options]).arg(image).arg(&place.path);
    command
}

#[test]
fn a_directory_is_mounted_as_the_root() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let corpus = Corpus::fixtures();
    let squashfs = corpus.materialise(&corpus.image("sqfs-meta"));
    let (erofs, squashfs) = (demo(), squashfs.path.clone());
    let mut rows = Vec::new();
    for (name, options) in [("floe", "front=fuse"), ("floe", "front=auto"), ("erofsfuse", "ro")] {
        for path in ["guide", "/guide", "guide/", "//guide", "", "/"] {
            rows.push((name, options, erofs.clone(), path));
        }
    }
    for (name, options) in
        [("floe", "front=fuse"), ("floe", "front=auto"), ("squashfuse", "ro"), ("squashfuse_ll", "uid=0")]
    {
        for path in ["dirs", "/small/", "/hard"] {
            rows.push((name, options, squashfs.clone(), path));
        }
    }
    check_rows(
        &rows,
        |(name, options, image, path)| format!("{name} {options} {} {path}", image.display()),
        |(name, options, image, path)| {
            let (whole, part) = (Place::new(), Place::new());
            for (options, place) in [((*options).to_owned(), &whole), (format!("{options},subdir={path}"), &part)] {
                let mounted = run(&mut mounting(name, &options, image, place));
                assert_eq!(told(&mounted), (Some(0), String::new()), "{options}");
            }
            let expected = tree(&whole.path.join(path.trim_matches('/')));
            assert!(!expected.is_empty());
            let found = tree(&part.path);
            if found == expected { Vec::new() } else { vec![format!("{found} instead of {expected}")] }
        },
    );
}

#[test]
fn what_is_no_directory_of_the_image_is_refused() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    for (name, options, code, expected) in [
        ("floe", "subdir=nowhere", 1, "subdir=nowhere: \"/nowhere\": no such file or directory in the image"),
        ("floe", "subdir=README.txt", 1, "not a directory"),
        ("floe", "front=fuse,subdir=guide/nowhere", 1, "\"/guide/nowhere\": no such file"),
        ("floe", "subdir=guide,profile=learn", 2, "omit subdir="),
        ("floe", "subdir=guide,profile=/dev/null", 2, "omit subdir="),
        ("erofsfuse", "subdir=nowhere", 1, "\"/nowhere\": no such file"),
    ] {
        let place = Place::new();
        let (found, errors) = told(&run(&mut mounting(name, options, &demo(), &place)));
        assert!(found == Some(code) && errors.contains(expected), "{name} {options}: {found:?} {errors}");
        assert!(!place.is_mounted() && fs::read_dir(&place.path).is_ok_and(|entries| entries.count() == 0));
    }
}
