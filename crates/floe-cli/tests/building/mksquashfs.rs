//! Floe under the name mksquashfs: the same options give images with the same content, the same lines and exit codes.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::OpenOptions;
use floe_testkit::{
    Tree, Versions, check_rows,
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
};

use crate::mkfs_erofs::manifest_of;

const VERSION: Versions = Versions::Series("4.7");

fn ours(folder: &Path, arguments: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_floe")).arg0("mksquashfs"), folder, arguments)
}

fn theirs(folder: &Path, arguments: &[&str]) -> Output {
    run(&mut Command::new(peer("mksquashfs").expect("the test needs it")), folder, arguments)
}

fn run(command: &mut Command, folder: &Path, arguments: &[&str]) -> Output {
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("it runs")
}

/// A tree, and lists for options.
fn scene() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let tree =
        Tree { file_count: 15, file_bytes_max: 60_000, wide_directory_entries: 60, nesting_depth: 3, ..Tree::small(9) };
    tree.write(&folder.path().join("source")).expect("there is room");
    fs::create_dir_all(folder.path().join("source/docs/deep")).expect("there is room");
    for name in ["source/docs/a.txt", "source/docs/deep/b.txt", "source/docs/c.md", "more"] {
        fs::write(folder.path().join(name), name.repeat(1000)).expect("there is room");
    }
    for (name, text) in [
        ("excludes", "docs/deep\n# comment\nwide/entry-000007\n"),
        ("sorting", "docs 100\nwide/entry-000003 -5\n"),
        (
            "pseudo",
            "# devices\n/dev d 755 0 0\n/dev/null c 666 0 0 1 3\n/made f 600 1 2 echo made\n/one-more \\\ns 777 0 0 docs/a.txt\n",
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("there is room");
    }
    folder
}

fn manifest(image: &Path, offset: u64) -> Manifest {
    let offset = if offset == 0 { floe::Offset::None } else { floe::Offset::At(offset) };
    let mut manifest = manifest_of(image, &OpenOptions { offset, ..OpenOptions::default() });
    for (_, entry) in manifest.entries_mut() {
        // Pseudo files have the time of the build.
        if entry.modified.0 > 1_720_000_000 {
            entry.modified = (0, 0);
        }
    }
    manifest
}

/// Command lines after the image for which both programs must give the same content.
const SAME: [&str; 32] = [
    "",
    "-comp gzip -Xcompression-level 3 -Xwindow-size 10 -Xstrategy default,fixed",
    "-comp xz -Xdict-size 50% -Xbcj x86,arm -b 64K",
    "-comp lz4 -Xhc -b 1M",
    "-comp lzo -b 4096",
    "-comp zstd -Xcompression-level 3 -tailends",
    "-comp lzma -no-fragments",
    "-noI -noD -noF -noX -noId",
    "-no-compression -no-duplicates -no-sparse",
    "-no-xattrs -no-exports -always-use-fragments",
    "-all-root -mkfs-time 77 -all-time 78",
    "-force-uid 7 -force-gid 8 -repro",
    "-uid-gid-offset 1000 -repro-time 1600000000",
    "-root-mode 700 -root-uid 5 -root-gid 6 -root-time 1500000000",
    "-no-hardlinks -nopad",
    "-e docs/deep wide/entry-000001",
    "-ef excludes -e source/nothing",
    "-wildcards -e docs/*.txt wide/entry-00000[1-5]",
    "-ef excludes -wildcards",
    "-regex -e docs/^a.*t$ wide/[13579]$",
    "-sort sorting -processors 1 -mem 64M",
    "-pf pseudo",
    "-keep-as-directory",
    "-keep-as-directory -e docs",
    "-no-progress -exit-on-error -no-recovery",
    "-offset 8192",
    "-o 4K -comp zstd -Xcompression-level 1",
    "-mkfs-time inode -inode-time @1600000000",
    "-single-reader -small-readers 2 -block-readers 2 -overcommit 0",
    "-no-tailends -exports -xattrs",
    "-tailends -b 8K",
    "-percentage -root-owned",
];

#[test]
fn the_same_options_give_the_same_content() {
    if !skip::ready(&[Need::Root, Need::PeerOf("mksquashfs", VERSION)]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    check_rows(
        &SAME,
        |options| format!("mksquashfs {options}"),
        |&options| {
            let place = SAME.iter().position(|row| *row == options).expect("it is one of them");
            let words: Vec<&str> = options.split_whitespace().collect();
            let is_offset = words.first().is_some_and(|word| matches!(*word, "-offset" | "-o"));
            let offset = match words.get(1) {
                Some(&"8192") if is_offset => 8192,
                Some(&"4K") if is_offset => 4096,
                _ => 0,
            };
            let mut manifests = Vec::new();
            for (name, program) in [("ours", ours as fn(&Path, &[&str]) -> Output), ("theirs", theirs)] {
                let image = format!("{name}-{place}");
                let output = program(folder, &[&["source", &image, "-quiet"], words.as_slice()].concat());
                if !output.status.success() {
                    return vec![format!("{image}: {output:?}")];
                }
                manifests.push(manifest(&folder.join(image), offset));
            }
            differences(&manifests[1], &manifests[0], &Comparison::default())
        },
    );
}

#[test]
fn several_sources_are_entries_of_a_root() {
    if !skip::ready(&[Need::Root, Need::PeerOf("mksquashfs", VERSION)]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    for options in [&[][..], &["-e", "source/docs"], &["-wildcards", "-e", "source/d*"], &["-e", "docs"]] {
        let mut manifests = Vec::new();
        for (image, program) in [("ours", ours as fn(&Path, &[&str]) -> Output), ("theirs", theirs)] {
            let sources = ["source", "more", image, "-noappend", "-quiet", "-no-progress"];
            let output = program(folder, &[&sources, options].concat());
            assert!(output.status.success(), "{output:?}");
            manifests.push(manifest(&folder.join(image), 0));
        }
        assert_eq!(differences(&manifests[1], &manifests[0], &Comparison::default()), Vec::<String>::new());
    }
    let output = ours(folder, &["source/docs", "source/../source/docs", "two", "-quiet"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("another source has the same name"), "{told}");
}

#[test]
fn archives_are_read_from_standard_input() {
    let scene = scene();
    let tar = Command::new("tar").args(["-cf", "tar", "-C", "source", "docs"]).current_dir(scene.path()).status();
    assert!(tar.expect("there is tar").success());
    for (name, arguments, has_deep) in [
        ("mksquashfs", &["-", "image", "-tar", "-quiet", "-noappend"][..], true),
        ("mksquashfs", &["-", "image", "-tar", "-quiet", "-noappend", "-e", "docs/deep"], false),
        ("sqfstar", &["-quiet", "-noappend", "image"], true),
        ("sqfstar", &["-quiet", "-noappend", "-comp", "lz4", "image", "docs/deep"], false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg0(name).args(arguments).current_dir(scene.path());
        let archive = fs::File::open(scene.path().join("tar")).expect("it is there");
        let output = command.stdin(archive).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let manifest = manifest(&scene.path().join("image"), 0);
        assert!(manifest.entry(b"/docs/a.txt").is_some());
        assert_eq!(manifest.entry(b"/docs/deep/b.txt").is_some(), has_deep, "{name} {arguments:?}");
    }
}

#[test]
fn each_file_is_told() {
    let scene = scene();
    let output =
        ours(scene.path(), &["source/docs", "image", "-info", "-p", "hard l a.txt", "-p", "again f 644 0 0 cat more"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let len = fs::metadata(scene.path().join("source/docs/a.txt")).expect("it is there").len();
    for line in [
        format!("file /a.txt, uncompressed size {len} bytes "),
        format!("file /hard, uncompressed size {len} bytes LINK"),
        "file /again, uncompressed size 4000 bytes ".to_owned(),
    ] {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
    assert!(text.contains("\ndirectory /deep inode 0x") && text.contains("\ndirectory / inode 0x"), "{text}");
}

/// The lines of a summary. Numbers in lines about sizes depend on the encoders.
fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // The original counts empty files as duplicates, too, and shows large ids as negative numbers. Fragments may be fuller.
    let free = ["size", "%", "duplicate files", "fragments ", "unknown"];
    let is_free = |line: &str| free.iter().any(|word| line.contains(word));
    let line = |line: &str| {
        let line = line.replace("theirs", "ours");
        if is_free(&line) { line.replace(|char: char| char.is_ascii_digit() || char == '-', "") } else { line }
    };
    text.lines().map(line).collect()
}

#[test]
fn the_summary_has_the_lines_of_the_original() {
    if !skip::ready(&[Need::Root, Need::PeerOf("mksquashfs", VERSION)]) {
        return;
    }
    let scene = scene();
    for options in [&[][..], &["-no-duplicates", "-no-exports"], &["-noI", "-noX", "-no-fragments"], &["-no-xattrs"]] {
        let told = [("ours", ours as fn(&Path, &[&str]) -> Output), ("theirs", theirs)].map(|(image, program)| {
            let arguments = ["source", image, "-noappend", "-no-progress", "-processors", "2"];
            lines(&program(scene.path(), &[&arguments, options].concat()))
        });
        assert_eq!(told[0], told[1], "{options:?}");
    }
}

#[test]
fn wrong_command_lines_are_refused_in_a_line() {
    let scene = scene();
    fs::write(scene.path().join("exists"), "something").expect("there is room");
    for (arguments, expected) in [
        (&["source"][..], "name sources and an image"),
        (&["source", "exists"], "exists exists, and floe does not append to images: use -noappend to replace it"),
        (&["nothing", "image"], "Cannot stat source directory \"nothing\" because No such file or directory"),
        (&["source", "image", "-bogus"], "-bogus is an invalid option"),
        (&["source", "image", "-b"], "-b needs a value"),
        (&["source", "image", "-e"], "-e needs a value"),
        (&["source", "image", "-b", "5000"], "-b 5000 is invalid: a block has 4K to 1M, a power of two"),
        (&["source", "image", "-comp", "lzip"], "-comp lzip is unknown: use gzip, lzo, lz4, xz, zstd, lzma"),
        (&["source", "image", "-comp", "lz4", "-Xbcj", "x86"], "-Xbcj is not an option of lz4"),
        (&["source", "image", "-action", "x"], "-action is not offered by floe: there are no actions"),
        (&["source", "image", "-root-becomes", "x"], "-root-becomes is not offered by floe: images are always built"),
        (&["source", "image", "-force-uid", "nobody-at-all"], "-force-uid nobody-at-all is invalid"),
        (&["source", "image", "-all-root", "-root-uid", "1"], "-root-uid cannot be combined"),
        (&["source", "image", "-p", "x q 1 2 3"], "the pseudo definition 'x q 1 2 3' is wrong"),
        (&["source", "image", "-p", "no/where d 755 0 0"], "the directory of the pseudo file does not exist"),
        (&["source", "image", "-wildcards", "-e", "/"], "'/' excludes nothing"),
        (&["source", "-"], "an image cannot be written to standard output"),
        (&["source", "image", "-tar"], "with -tar, the only source is -"),
        (&["source", "image", "-mkfs-time", "never"], "'never' is not a time"),
    ] {
        let output = ours(scene.path(), arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {told}");
        assert!(told.contains(expected) && told.lines().count() == 1, "{arguments:?}: {told}");
        assert!(!scene.path().join("image").exists(), "{arguments:?}");
    }
    assert_eq!(fs::read(scene.path().join("exists")).expect("it is there"), b"something");
}

#[test]
fn what_does_not_fit_is_told_and_ignored() {
    let scene = scene();
    let definitions = ["-p", "docs d 700 1 1", "-p", "absent m 700 1 1", "-p", "hard l docs/a.txt", "-e", "absent"];
    let output = ours(scene.path(), &[&["source", "image", "-quiet"], &definitions[..]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    for expected in [
        "docs: the sources have something there; it was ignored",
        "absent: the sources have nothing there to change; it was ignored",
        "Cannot stat exclude dir/file absent, ignoring",
    ] {
        assert!(told.contains(expected), "{told}");
    }
    let manifest = manifest(&scene.path().join("image"), 0);
    assert_eq!(manifest.entry(b"/hard").expect("it was added").link_count, 2);
}
