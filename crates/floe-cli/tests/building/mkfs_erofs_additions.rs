//! Floe under the name mkfs.erofs: `--incremental` and `--xattr-inode-digest`.

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::OpenOptions;
use floe_testkit::{
    Versions,
    manifest::{Manifest, differences},
    peer,
    skip::{self, Need},
};

use crate::{
    mkfs_erofs::{FREE_DIRECTORIES, manifest_of},
    support::{
        mkfs_erofs::{ours, scene, theirs},
        program::until,
    },
};

fn manifest(folder: &Path, image: &str) -> Manifest {
    manifest_of(&folder.join(image), &OpenOptions::default())
}

/// Runs a peer, and returns what it prints.
fn told(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(peer(program).expect("the test needs it")).args(arguments).current_dir(folder).output();
    let output = output.expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {text}");
    text
}

#[test]
fn digests_of_files_are_those_of_the_original() {
    let needs = ["mkfs.erofs", "fsck.erofs", "dump.erofs"].map(|name| Need::PeerOf(name, Versions::Since("1.9.4")));
    if !skip::ready(&needs) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    for options in [
        "--xattr-inode-digest source",
        "--xattr-inode-digest=trusted.digest source",
        "--xattr-prefix=user.a --xattr-inode-digest=user.b source",
        "-zlz4 -Efragments --xattr-inode-digest source",
        "--xattr-inode-digest --tar=f source.tar",
    ] {
        let (options, source) = options.rsplit_once(' ').expect("it has a source");
        for (image, build) in [("ours", ours as fn(&Path, &str, &[(&str, &str)]) -> _), ("theirs", theirs)] {
            let output = build(folder, &format!("--quiet {options} {image} {source}"), &[]);
            assert!(output.status.success(), "{options}: {output:?}");
        }
        let found = manifest(folder, "ours");
        let shown = found.entry(b"/docs/a.txt").map(|entry| entry.xattrs.len());
        assert_eq!(shown, Some(usize::from(options.contains("digest="))), "{options}");
        assert_eq!(differences(&manifest(folder, "theirs"), &found, &FREE_DIRECTORIES), Vec::<String>::new());
        for image in ["theirs", "ours"] {
            assert!(told(folder, "dump.erofs", &["-s", image]).contains("ishare_xattrs"), "{options}");
            let checked = told(folder, "fsck.erofs", &["-d3", "--xattr-inode-digest", image]);
            assert!(!checked.contains("MISMATCH"), "{options}: {checked}");
            // The packed inode has none.
            let skipped = checked.matches("no digest xattr").count();
            assert_eq!(skipped, usize::from(options.contains("fragments")), "{options}: {checked}");
        }
    }
}

/// Makes the directory `more`, which replaces and adds files of `source`.
fn make_more(folder: &Path) {
    for path in ["more/docs/deep", "more/new"] {
        fs::create_dir_all(folder.join(path)).expect("made");
    }
    for (path, text) in [("more/docs/a.txt", "replaced"), ("more/docs/deep/z", "added"), ("more/new/file", "new")] {
        fs::write(folder.join(path), text).expect("written");
    }
}

#[test]
fn additions_are_those_of_the_original() {
    if !skip::ready(&[Need::Root, Need::PeerOf("mkfs.erofs", Versions::Since("1.9.4"))]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    make_more(folder);
    let mut tar = Command::new("tar");
    tar.args(["--format=pax", "-cf", "more.tar", "-C", "more", "."]).current_dir(folder);
    assert!(tar.status().expect("there is tar").success());
    for (first, second, source) in [
        ("", "--incremental", "more"),
        ("-zlz4", "-zlz4 --incremental=data", "more"),
        ("--tar=f", "--tar=f --incremental=data", "more.tar"),
        ("--all-root", "--all-root --incremental", "more"),
    ] {
        let manifests =
            [("theirs", theirs as fn(&Path, &str, &[(&str, &str)]) -> _), ("ours", ours)].map(|(image, build)| {
                let original = if source == "more" { "source" } else { "source.tar" };
                for arguments in [format!("{first} {image} {original}"), format!("{second} {image} {source}")] {
                    let output: Output = build(folder, &format!("--quiet -d0 -Eforce-inode-extended {arguments}"), &[]);
                    assert!(output.status.success(), "{arguments}: {output:?}");
                }
                manifest(folder, image)
            });
        let [mut expected, found] = manifests;
        // The original still counts the name that was replaced.
        let (path, entry) = expected.entries_mut().find(|(path, _)| *path == b"/docs/deep/a.txt").expect("it is there");
        assert_eq!(std::mem::replace(&mut entry.link_count, 1), 2, "{path:?}");
        assert_eq!(differences(&expected, &found, &FREE_DIRECTORIES), Vec::<String>::new(), "{second}");
    }
}

#[test]
fn builds_from_images_are_confined() {
    let scene = scene();
    let folder = scene.path();
    let output = ours(folder, "--quiet image source", &[]);
    assert!(output.status.success(), "{output:?}");
    let archive = fs::read(folder.join("source.tar")).expect("it is there");
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("mkfs.erofs").args(["--sandbox=require", "--quiet", "--incremental", "--tar=f", "image"]);
    let mut child = command.current_dir(folder).stdin(Stdio::piped()).spawn().expect("it starts");
    let status = format!("/proc/{}/status", child.id());
    until("the process that has read the image waits for the archive, confined", || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        status.lines().any(|line| line == "Seccomp:\t2")
    });
    child.stdin.take().expect("a pipe").write_all(&archive).expect("it is read");
    assert!(child.wait().expect("our own child").success());
    for (arguments, source) in [("-Enoinline_data one", "source"), ("-Enoinline_data two", "source"), ("", "one two")] {
        let image = if arguments.is_empty() {
            "--sandbox=require --blobdev=blob --chunksize=4096 --clean merged"
        } else {
            arguments
        };
        let output = ours(folder, &format!("--quiet {image} {source}"), &[]);
        assert!(output.status.success(), "{arguments}: {output:?}");
    }
    assert!(folder.join("blob").exists());
}

#[test]
fn sources_are_added_to_an_image() {
    let scene = scene();
    let folder = scene.path();
    make_more(folder);
    let shell = |script: &str| {
        let done = Command::new("sh").args(["-ec", script]).current_dir(folder).status();
        assert!(done.expect("there is a shell").success(), "{script}");
    };
    shell("tar --format=pax -cf more.tar -C more . && cp -a source both && cp -a more/. both");
    // An added directory has its own attributes; `cp` keeps those of the earlier one.
    let _ = rustix::fs::removexattr(folder.join("both/docs"), "trusted.overlay.opaque");
    let built = |arguments: &str| {
        let output = ours(folder, &format!("--quiet {arguments}"), &[]);
        assert!(output.status.success(), "{arguments}: {output:?}");
    };
    for (options, source) in [("--incremental", "more"), ("--incremental=data --tar=f", "more.tar")] {
        built("-zlz4 -b1024 -U 01234567-89ab-4def-8123-456789abcdef image source");
        built(&format!("-zzstd {options} image {source}"));
        built("-b1024 expected both");
        let found = manifest(folder, "image");
        assert_eq!(differences(&manifest(folder, "expected"), &found, &FREE_DIRECTORIES), Vec::<String>::new());
        let image = floe::Image::open(folder.join("image"), &OpenOptions::default()).expect("it is an image");
        let info = image.file_system().info();
        assert_eq!(info.uuid.map(|uuid| uuid[0]), Some(1));
        assert_eq!(info.block_size, 1024);
    }
    for (arguments, words) in [
        ("--incremental missing more", "--incremental needs an image to add to"),
        ("--incremental=rvsp image more", "--incremental=rvsp is not offered by floe"),
        ("--incremental image image", "layers are merged without it"),
    ] {
        let output = ours(folder, arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{arguments}: {said}");
    }
}
