//! The commands that read images, run with the built program; extraction of each reference image.

use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    check_rows,
    corpus::Corpus,
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
    workspace_root,
};

fn floe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_floe")).args(arguments).stdin(Stdio::null()).output().expect("floe runs")
}

fn demo() -> String {
    workspace_root().join("fixtures/demo.erofs").to_str().expect("a plain path").to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file with an image behind a program, at byte 4096.
fn app_image(folder: &Path) -> String {
    let path = folder.join("app.AppImage");
    let mut bytes = b"\x7fELF".to_vec();
    bytes.resize(4096, 0);
    bytes.extend(std::fs::read(demo()).expect("the demo image"));
    std::fs::write(&path, bytes).expect("ours");
    path.to_str().expect("a plain path").to_owned()
}

/// A fixture as a plain file.
fn fixture(name: &str) -> PathBuf {
    let corpus = Corpus::fixtures();
    corpus.materialise(&corpus.image(name)).path
}

#[test]
fn mistakes_are_reported_in_one_line() {
    let demo = demo();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let app_image = app_image(folder.path());
    let rows: &[(&[&str], i32, &str)] = &[
        (&[], 2, "a command is missing"),
        (&["frobnicate"], 2, "unrecognized subcommand 'frobnicate'"),
        (&["ls"], 2, "not provided: <IMAGE>"),
        (&["cat", &demo], 2, "not provided: <PATH>..."),
        (&["mount", &demo], 2, "give an image and a directory: floe mount IMAGE DIR"),
        (&["mount", "-o", "threads=0", &demo, "/"], 2, "'0' is not a number of at least 1"),
        (&["ls", "--frob", &demo], 2, "unexpected argument '--frob'"),
        (&["ls", "--offset", "half", &demo], 2, "'half' is neither a number of bytes nor 'auto'"),
        (&["ls", "-R", "-d", &demo], 2, "cannot be used with"),
        (&["extract", "--jobs", "0", &demo], 2, "invalid value '0'"),
        (&["ls", "/no/such/file"], 1, "/no/such/file: No such file or directory"),
        (&["ls", "/"], 1, "/: it is a directory"),
        (&["ls", "/dev/null"], 1, "it is a character device"),
        (&["stat", env!("CARGO_BIN_EXE_floe")], 3, "it looks like an ELF program\n"),
        (&["stat", &app_image], 3, "it looks like an ELF program; one begins at byte 4096: give --offset 4096\n"),
        (&["ls", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], 3, "not an EROFS or SquashFS image"),
        (
            &["ls", "--offset", "4096", &demo],
            3,
            "no EROFS or SquashFS image at byte 4096; one begins at byte 0: omit --offset",
        ),
        (&["ls", "--offset", "1T", &demo], 1, "it ends after 151552 bytes"),
        (&["ls", "--device", &demo, &demo], 1, "1 extra devices given, but the image has 0"),
        (&["ls", "--device", "/no/such", &demo], 1, "1 extra devices given"),
        (&["ls", &demo, "/nowhere"], 1, "\"/nowhere\": no such file or directory in the image"),
        (&["ls", &demo, "/README.txt/x"], 1, "\"/README.txt\": not a directory"),
        (&["cat", &demo, "/guide"], 1, "/guide: is a directory"),
        (&["stat", &demo, "/guide/x"], 1, "\"/guide/x\": no such file"),
        (&["extract", &demo, "/nowhere", "-C", "/nonexistent/x"], 1, "\"/nowhere\": no such file"),
        (&["extract", &demo, "-C", "/nonexistent/x"], 1, "/nonexistent/x: No such file or directory"),
        (&["extract", &demo, "-C", &demo], 1, "Not a directory"),
        (&["push", "--require-verified", &demo, "oci://localhost:1/a"], 2, "unexpected argument '--require-verified'"),
        (&["push", "--cache-size", "1G", &demo, "oci://localhost:1/a"], 2, "unexpected argument '--cache-size'"),
        (
            &["push", "--cache-directory", "/", &demo, "oci://localhost:1/a"],
            2,
            "unexpected argument '--cache-directory'",
        ),
        (&["check"], 16, "not provided: <IMAGE>"),
        (&["check", "--frob", &demo], 16, "unexpected argument '--frob'"),
        (&["check", "/no/such/file"], 8, "/no/such/file: No such file"),
        (&["check", env!("CARGO_BIN_EXE_floe")], 8, "it looks like an ELF program"),
    ];
    let mut wrong = Vec::new();
    for (arguments, code, expected) in rows {
        let output = floe(arguments);
        let complaint = text(&output.stderr);
        let is_one_line = complaint.lines().count() == 1 && complaint.starts_with("floe: ");
        if output.status.code() != Some(*code) || !is_one_line || !complaint.contains(expected) {
            wrong.push(format!("{arguments:?}: {} with {complaint}", output.status));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_has_help_with_examples() {
    for command in ["ls", "cat", "stat", "extract", "check", "demo"] {
        let output = floe(&[command, "--help"]);
        let help = text(&output.stdout);
        assert!(output.status.success() && output.stderr.is_empty(), "{command}");
        assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
    }
}

#[test]
fn dump_quotes_hostile_names() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (tree, image) = (folder.path().join("tree"), folder.path().join("image"));
    std::fs::create_dir_all(tree.join("a\x1b[31m")).expect("made");
    std::fs::write(tree.join("a\x1b[31m/two\nlines"), "content").expect("written");
    let image = image.to_str().expect("a plain path");
    let made = floe(&["mkfs", image, tree.to_str().expect("a plain path")]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let shown = r"$'/a\x1b[31m/two\nlines'";
    for (options, lines) in [
        (&[][..], &[format!("Path : {shown}")][..]),
        (&["--extents"], &[format!("Path : {shown}"), format!("{shown}: 1 extents found")]),
    ] {
        let output = floe(&[&["dump"], options, &[image, "/a\x1b[31m/two\nlines"]].concat());
        let said = text(&output.stdout);
        assert!(output.status.success() && !said.contains('\x1b'), "{said:?}");
        for line in lines {
            assert!(said.lines().any(|said| said == line), "{said:?} has no line {line:?}");
        }
    }
}

#[test]
fn the_options_of_a_mount_are_listed_without_a_mount() {
    let page = std::fs::read_to_string(workspace_root().join("docs/options.md")).expect("the page");
    assert_eq!(text(&floe(&["mount", "-o", "help=markdown"]).stdout), page);
    let list = floe(&["mount", "-o", "help"]);
    let (list, help) = (text(&list.stdout), text(&floe(&["mount", "--help"]).stdout));
    assert!(list.contains("\n  cache=SIZE[+SIZE]  ") && help.contains(list.trim_end()), "{help}");
    // The default of `threads` is described, not the value on this machine.
    assert!(list.contains("[the number of CPUs, at least 2]") && help.contains("at least 2]"), "{help}");
}

#[test]
fn ls_and_stat_match_the_manifest() {
    let corpus = Corpus::locate_or_fixtures();
    for name in ["erofs-plain-meta", "erofs-cbase-lz4", "sqfs-meta"] {
        let Some(record) = corpus.images().into_iter().find(|image| image.name == name) else { continue };
        let path = corpus.materialise(&record).path;
        let output = floe(&["ls", "-R", "--json", path.to_str().expect("a plain path")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let listed = Manifest::parse(&text(&output.stdout), &Default::default()).expect("manifest lines");
        let mut expected = Manifest::default();
        for (path, entry) in corpus.manifest(&record).entries().filter(|(path, _)| *path != b"/") {
            let mut entry = entry.clone();
            (entry.sha256, entry.link_of) = (None, None);
            entry.xattrs.clear();
            expected.insert(path.to_vec(), entry);
        }
        assert_eq!(differences(&expected, &listed, &Comparison::default()), Vec::<String>::new(), "{name}");

        // The same with attributes, for a part: a command line has its limits.
        let mut arguments = vec!["stat".into(), "--json".into(), path.into_os_string()];
        let manifest = corpus.manifest(&record);
        let names: Vec<&[u8]> =
            manifest.entries().map(|(path, _)| path).filter(|path| path.len() < 500).take(2000).collect();
        arguments.extend(names.iter().map(|name| std::os::unix::ffi::OsStringExt::from_vec(name.to_vec())));
        let output = Command::new(env!("CARGO_BIN_EXE_floe")).args(arguments).output().expect("floe runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let shown = Manifest::parse(&text(&output.stdout), &Default::default()).expect("manifest lines");
        let mut expected = Manifest::default();
        for name in names {
            let mut entry = manifest.entry(name).expect("listed").clone();
            (entry.sha256, entry.link_of) = (None, None);
            expected.insert(name.to_vec(), entry);
        }
        assert_eq!(differences(&expected, &shown, &Comparison::default()), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn ls_shows_a_tree_as_ls_does() {
    let output = floe(&["ls", "-l", &demo(), "/records"]);
    let listing = text(&output.stdout);
    let lines: Vec<&str> = listing.lines().collect();
    assert_eq!(lines.len(), 6, "{listing}");
    assert_eq!(lines[0], "-r--r--r-- 2 0 0 91532 2023-11-14T22:13:20Z 2021.csv");
    assert_eq!(lines[5], "lrwxrwxrwx 1 0 0     8 2023-11-14T22:13:20Z latest -> 2024.csv");
    let output = floe(&["ls", "-R", &demo(), "/guide", "/maps"]);
    assert_eq!(text(&output.stdout), "/guide:\nreading.txt\n\n/maps:\ndrift.txt\nopen-water\n");
    let output = floe(&["ls", "-d", &demo(), "/guide", "maps/drift.txt"]);
    assert_eq!(text(&output.stdout), "/guide\nmaps/drift.txt\n");
}

#[test]
fn names_that_are_not_text_are_quoted() {
    let image = fixture("erofs-plain-meta");
    let output = floe(&["ls", "-R", image.to_str().expect("a plain path")]);
    let listing = String::from_utf8(output.stdout).expect("only text is written");
    assert!(listing.lines().all(|line| !line.chars().any(char::is_control)));
    assert!(listing.contains("$'"), "the image has names with control bytes");
}

#[test]
fn cat_is_exact_and_its_range_too() {
    let corpus = Corpus::fixtures();
    let record = corpus.image("demo");
    let manifest = corpus.manifest(&record);
    for (path, entry) in manifest.entries().filter(|(_, entry)| entry.file_type == 'f') {
        let output = floe(&["cat", &demo(), &text(path)]);
        let digest = floe_testkit::manifest::sha256_hex(&output.stdout);
        assert_eq!(Some(digest), entry.sha256, "{}", text(path));
    }
    let whole = floe(&["cat", &demo(), "records/latest", "README.txt"]).stdout;
    let part = |start: &str, length: &str| {
        floe(&["cat", "--start", start, "--length", length, &demo(), "records/latest"]).stdout
    };
    assert_eq!(part("0", "10"), whole[..10]);
    assert_eq!(part("70000", "4097"), whole[70_000..74_097]);
    assert_eq!(part("91520", "100"), whole[91_520..91_523]);
    assert_eq!(part("18446744073709551615", "18446744073709551615"), b"");
}

#[test]
fn a_closed_pipe_ends_ls_silently() {
    let mut commands: Vec<Vec<String>> = vec![vec!["cat".into(), demo()]];
    commands[0].extend((0..64).map(|_| "/maps/open-water".to_owned()));
    let meta = fixture("erofs-plain-meta").to_str().expect("a plain path").to_owned();
    commands.push(vec!["ls".into(), "-lR".into(), meta]);
    for arguments in commands {
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("floe runs");
        let mut byte = [0];
        child.stdout.take().expect("piped").read_exact(&mut byte).expect("it writes");
        let output = child.wait_with_output().expect("it ends");
        assert_eq!((output.status.code(), output.status.signal()), (Some(0), None), "{arguments:?}");
        assert_eq!(text(&output.stderr), "");
    }
}

#[test]
fn check_reports_faults_and_has_the_exit_codes_of_fsck() {
    let output = floe(&["check", &demo()]);
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stdout);
    assert!(
        said.lines().count() == 1 && said.contains(": EROFS, 13 inodes, ") && said.ends_with(": no faults\n"),
        "{said}"
    );
    assert_eq!(floe(&["check", "--quiet", &demo()]).stdout, b"");

    let folder = tempfile::tempdir().expect("a scratch folder");
    let broken = folder.path().join("broken.erofs");
    let mut bytes = std::fs::read(demo()).expect("the demonstration image");
    // The label: the checksum covers it.
    bytes[1024 + 64] ^= 0xff;
    // The middle of a compressed block.
    bytes[9 * 4096 + 2048..][..64].fill(0xff);
    std::fs::write(&broken, bytes).expect("written");
    let broken = broken.to_str().expect("a plain path");
    let output = floe(&["check", broken]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("error: ") && said.contains("checksum") && said.contains("2 errors, 0 warnings"), "{said}");
    let output = floe(&["check", "--json", broken]);
    let records: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect();
    assert_eq!(records.len(), 3);
    assert_eq!((&records[2]["errors"], &records[2]["format"]), (&2.into(), &"EROFS".into()));
    assert!(records.iter().any(|record| record["path"].is_string()), "{records:?}");
    let output = floe(&["check", "--metadata-only", broken]);
    assert!(text(&output.stdout).contains("1 error, 0 warnings"), "{}", text(&output.stdout));
}

#[test]
fn the_demonstration_reads_everything_with_and_without_a_mount() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.arg("demo").args(arguments).env("TMPDIR", folder.path()).stdin(Stdio::null());
        let output = command.output().expect("floe runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let left: Vec<_> = std::fs::read_dir(folder.path()).expect("listed").collect();
        assert!(left.is_empty(), "{left:?}");
        text(&output.stdout)
    };
    let expected = "14 names, 9 files with 1.45 MiB";
    let said = run(&["--no-mount"]);
    assert!(said.contains(expected) && said.contains("without a mount in"), "{said}");
    if floe_testkit::skip::ready(&[floe_testkit::skip::Need::Fuse]) {
        let said = run(&[]);
        assert!(said.matches(expected).count() == 2 && said.contains("unmounted in"), "{said}");
    }
}

/// The space for extracting two huge images at a time.
const HUGE_BYTES: u64 = 10 << 30;

/// The space for extracting two other images.
const USUAL_BYTES: u64 = 256 << 20;

#[test]
fn extracted_trees_match_their_manifests() {
    let is_root = Need::Root.missing().is_none();
    if !is_root {
        skip::skipped("owners, devices and attributes of all kinds need root; only the rest is compared");
    }
    let corpus = Corpus::locate_or_fixtures();
    check_rows(
        &crate::support::images(&corpus),
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let room_bytes = if image.huge { HUGE_BYTES } else { USUAL_BYTES };
            let folder = tempfile::tempdir_in(crate::support::scratch(room_bytes)).expect("a folder");
            let target = folder.path().join("tree");
            let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
            command.args(["extract", "--quiet"]).args(crate::support::image_arguments(&files)).arg(&files.path);
            if is_root {
                command.arg("--strict");
            }
            let output = command.arg("-C").arg(&target).output().expect("floe runs");
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() || is_root && !words.is_empty() {
                return vec![format!("{}: {words}", output.status)];
            }
            let extracted = walk::directory(&target, DirectoryWalk::default()).expect("walked");
            let comparison =
                Comparison { directory_shape_is_free: true, privileges_are_free: !is_root, ..Comparison::default() };
            differences(&corpus.manifest(image), &extracted, &comparison)
        },
    );
}
