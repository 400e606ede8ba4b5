//! Under the names of other programs, Floe accepts their options, and has their output and exit codes.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    Versions, check_rows,
    corpus::{Corpus, Format, ImageRecord},
    manifest::{Comparison, differences, sha256_hex},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
    workspace_root,
};

use crate::support::{
    program::{processes_with, until},
    unsquashfs,
};

/// Runs Floe under another name, in the working directory that the original would have.
fn floe_as(name: &str, arguments: &[String], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0(name).args(arguments).current_dir(directory).env("TZ", "UTC").stdin(Stdio::null());
    command.output().expect("floe runs")
}

fn original(name: &str, arguments: &[String], directory: &Path) -> Output {
    let program = peer(name).expect("the test needs it");
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env("TZ", "UTC").stdin(Stdio::null());
    command.output().expect("it runs")
}

fn demo() -> String {
    workspace_root().join("fixtures/demo.erofs").to_str().expect("a plain path").to_owned()
}

/// The demonstration image with a wrong checksum of the superblock.
fn demo_with_wrong_checksum() -> Vec<u8> {
    let mut bytes = fs::read(demo()).expect("the demonstration image");
    bytes[1024 + 64] ^= 0xff;
    bytes
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The differences between both outputs, except lines of ours that `may_differ` from the original's.
fn differing(
    arguments: &[String],
    ours: &Output,
    theirs: &Output,
    may_differ: &dyn Fn(&str, Option<&str>) -> bool,
) -> Vec<String> {
    let mut told = Vec::new();
    if ours.status.code() != theirs.status.code() {
        told.push(format!("{arguments:?}: {} instead of {}: {}", ours.status, theirs.status, text(&ours.stderr)));
    }
    let (ours, theirs) = (text(&ours.stdout), text(&theirs.stdout));
    let mut expected = theirs.lines().peekable();
    for line in ours.lines() {
        if expected.peek() == Some(&line) {
            expected.next();
        } else if may_differ(line, expected.peek().copied()) {
            // A line of theirs replaces it, unless ours has that line later.
            let follows = expected.peek().is_some_and(|next| ours.lines().any(|line| line == *next));
            if !follows {
                expected.next();
            }
        } else {
            told.push(format!("{arguments:?}:\n      {line}\n      instead of\n      {:?}", expected.peek()));
            return told;
        }
    }
    told.extend(expected.next().map(|line| format!("{arguments:?}: without\n      {line}")));
    told
}

fn strings(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

/// Small images of one format.
fn images(corpus: &Corpus, format: Format) -> Vec<ImageRecord> {
    let images = corpus.sample().into_iter();
    images.filter(|image| image.format == format && !image.huge && image.kernel_is_truth()).collect()
}

/// The options for the offset and the extra devices of an image.
fn places(corpus: &Corpus, record: &ImageRecord) -> (Vec<String>, String) {
    let files = corpus.materialise(record);
    let mut options = Vec::new();
    if files.offset > 0 {
        options.push(format!("--offset={}", files.offset));
    }
    options.extend(files.devices.iter().map(|device| format!("--device={}", device.display())));
    (options, files.path.to_str().expect("a plain path").to_owned())
}

#[test]
fn dump_erofs_prints_what_the_original_prints() {
    if !skip::ready(&[Need::PeerOf("dump.erofs", Versions::Series("1.9"))]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let here = workspace_root();
    check_rows(
        &images(&corpus, Format::Erofs),
        |record| record.name.clone(),
        |record| {
            let (place, image) = places(&corpus, record);
            let mut told = Vec::new();
            let mut rows: Vec<Vec<String>> =
                [&["-s"][..], &[], &["--blkid-udev"], &["-S"]].into_iter().map(strings).collect();
            let manifest = corpus.manifest(record);
            let plain = |path: &&[u8]| path.iter().all(|byte| byte.is_ascii_graphic()) && path.len() < 200;
            for letter in ['f', 'd', 'l'] {
                let paths = manifest.entries().filter(|(_, entry)| entry.file_type == letter).map(|(path, _)| path);
                for path in paths.filter(plain).take(2) {
                    let path = format!("--path={}", text(path));
                    rows.push(vec![path.clone()]);
                    match letter {
                        'f' => {
                            // The original reads some old images wrongly.
                            let arguments =
                                [vec!["--cat".into(), path.clone()], place.clone(), vec![image.clone()]].concat();
                            let digest = sha256_hex(&floe_as("dump.erofs", &arguments, &here).stdout);
                            let name = path.trim_start_matches("--path=");
                            if manifest
                                .entry(name.as_bytes())
                                .is_none_or(|entry| entry.sha256.as_ref() != Some(&digest))
                            {
                                told.push(format!("{arguments:?}: {digest}"));
                            }
                            rows.push(vec!["-e".into(), path]);
                        }
                        'd' => rows.push(vec!["--ls".into(), path]),
                        _ => {}
                    }
                }
            }
            for options in rows {
                let arguments: Vec<String> = [options, place.clone(), vec![image.clone()]].concat();
                let (ours, theirs) =
                    (floe_as("dump.erofs", &arguments, &here), original("dump.erofs", &arguments, &here));
                // The original prints holes with the address that means none, and directories as they are stored, some without
                // an entry for themselves.
                told.extend(differing(&arguments, &ours, &theirs, &|ours, theirs| {
                    ours.ends_with(":          0..         0 |       0")
                        && theirs.is_some_and(|line| line.contains(" | "))
                        || ours.ends_with("    2  .") && theirs != Some(ours)
                }));
            }
            told
        },
    );
}

#[test]
fn erofs_tools_have_the_exit_codes_of_the_originals() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let (no_image, broken) = (folder.path().join("none"), folder.path().join("broken"));
    fs::write(&no_image, [1; 8192]).expect("written");
    fs::write(&broken, demo_with_wrong_checksum()).expect("written");
    let [no_image, broken] = [no_image, broken].map(|path| path.to_str().expect("a plain path").to_owned());
    let (content, listing) = ("--path=/README.txt", "--path=/");
    for (name, arguments) in [
        ("dump.erofs", vec![]),
        ("dump.erofs", vec!["--frob"]),
        ("dump.erofs", vec!["-x", &demo()]),
        ("dump.erofs", vec!["/no/such/file"]),
        ("dump.erofs", vec![&no_image]),
        ("dump.erofs", vec!["--path=/nope", &demo()]),
        ("dump.erofs", vec!["--nid=xyz", &demo()]),
        ("dump.erofs", vec![&demo(), "more"]),
        ("dump.erofs", vec!["-e", &demo()]),
        ("dump.erofs", vec![&broken]),
        ("dump.erofs", vec!["-S", &broken]),
        ("dump.erofs", vec!["--cat", content, &broken]),
        ("dump.erofs", vec!["-e", content, &broken]),
        ("dump.erofs", vec!["--ls", listing, &broken]),
        ("fsck.erofs", vec![]),
        ("fsck.erofs", vec!["--frob"]),
        ("fsck.erofs", vec!["/no/such/file"]),
        ("fsck.erofs", vec![&no_image]),
        ("fsck.erofs", vec![&demo()]),
        ("fsck.erofs", vec!["-d3", &demo()]),
        ("fsck.erofs", vec!["-a", "-y", "--extract", &demo()]),
        ("fsck.erofs", vec!["--no-sbcrc", &broken]),
        ("fsck.erofs", vec!["--no-sbcrc", "--extract", &broken]),
        ("fsck.erofs", vec!["--no-sbcrc", "--path=/records", &broken]),
        ("fsck.erofs", vec!["--no-sbcrc", "--path=/records", "--extract", &broken]),
        ("fsck.erofs", vec!["--no-sbcrc", "--path=/nope", &broken]),
        ("fsck.erofs", vec!["--path=/records", "--extract", &demo()]),
        ("fsck.erofs", vec!["--path=/nope", "--extract", &demo()]),
    ] {
        if !skip::ready(&[
            Need::PeerOf("dump.erofs", Versions::Series("1.9")),
            Need::PeerOf("fsck.erofs", Versions::Series("1.9")),
        ]) {
            return;
        }
        let arguments = strings(&arguments);
        let (ours, theirs) = (floe_as(name, &arguments, folder.path()), original(name, &arguments, folder.path()));
        assert_eq!(ours.status.code(), theirs.status.code(), "{name} {arguments:?}: {}", text(&ours.stderr));
        assert_eq!(ours.stderr.is_empty(), theirs.stderr.is_empty(), "{name} {arguments:?}: {}", text(&ours.stderr));
    }
    // The original reports a wrong checksum, but exits with 0.
    assert_eq!(floe_as("fsck.erofs", &[broken], folder.path()).status.code(), Some(1));
}

#[test]
fn fsck_erofs_extracts_what_the_original_extracts() {
    if !skip::ready(&[Need::Root, Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let broken = tempfile::NamedTempFile::new().expect("a file");
    fs::write(broken.path(), demo_with_wrong_checksum()).expect("written");
    for options in [
        &["--preserve"][..],
        &["--no-sbcrc"],
        &["--no-sbcrc", "--path=/records"],
        &["--no-preserve"],
        &["--xattrs"],
        &["--path=/records"],
        &["--no-preserve-owner", "--preserve-perms"],
    ] {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let mut found = Vec::new();
        for run in [floe_as as fn(&str, &[String], &Path) -> Output, original] {
            let target = folder.path().join(format!("target{}", found.len()));
            let mut arguments = strings(options);
            let image = if options.contains(&"--no-sbcrc") { broken.path().display().to_string() } else { demo() };
            arguments.extend([format!("--extract={}", target.display()), image]);
            let output = run("fsck.erofs", &arguments, folder.path());
            assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
            found.push(walk::directory(&target, DirectoryWalk::default()).expect("readable"));
        }
        assert_eq!(differences(&found[1], &found[0], &Comparison::default()), Vec::<String>::new(), "{options:?}");
    }
}

#[test]
fn unsquashfs_lists_what_the_original_lists() {
    if !skip::ready(&[Need::PeerOf("unsquashfs", Versions::Series("4.7"))]) {
        return;
    }
    let corpus = Corpus::locate_or_fixtures();
    let here = workspace_root();
    check_rows(
        &images(&corpus, Format::Squashfs),
        |record| record.name.clone(),
        |record| {
            let files = corpus.materialise(record);
            let image = files.path.to_str().expect("a plain path").to_owned();
            let mut told = Vec::new();
            for options in [
                &["-s"][..],
                &["-mkfs-time"],
                &["-l"],
                &["-ll"],
                &["-lln", "-full", "-d", "there"],
                &["-lc"],
                &["-llc", "-max", "2"],
                &["-d", "", "-ls"],
            ] {
                let mut arguments = strings(options);
                if files.offset > 0 {
                    arguments.extend(["-o".to_owned(), files.offset.to_string()]);
                }
                arguments.push(image.clone());
                let (ours, theirs) =
                    (floe_as("unsquashfs", &arguments, &here), original("unsquashfs", &arguments, &here));
                // The original prints device numbers as if they had 8 bits each, and does not know the options of all of its own
                // images.
                told.extend(differing(&arguments, &ours, &theirs, &|ours, _| {
                    ours.starts_with(['b', 'c']) || ours.contains("High Compression option")
                }));
            }
            told
        },
    );
}

#[test]
fn unsquashfs_extracts_what_the_original_extracts() {
    if !unsquashfs::is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let corpus = Corpus::fixtures();
    fs::copy(corpus.materialise(&corpus.image("sqfs-cbase-gzip")).path, folder.path().join("image")).expect("copied");
    let manifest = corpus.manifest(&corpus.image("sqfs-cbase-gzip"));
    let names: Vec<String> = manifest.entries().map(|(path, _)| text(path)).filter(|path| path != "/").collect();
    let some = names[names.len() / 2].trim_start_matches('/').to_owned();
    let first = format!("{}*", names[0].trim_start_matches('/').chars().next().expect("a name"));
    for operands in [&[][..], &[some.as_str()], &[&first], &["nothing"]] {
        for options in [&[][..], &["-q", "-no-xattrs"], &["-excludes"], &["-max", "1"]] {
            if options.contains(&"-excludes") && operands.is_empty() {
                continue;
            }
            let differing =
                unsquashfs::differing_extractions(options, operands, folder.path(), &mut |run, arguments| {
                    // At the second extraction, files are in the way.
                    if operands.is_empty() && !options.contains(&"-q") {
                        let with_force = [&["-f"], arguments].concat();
                        for (arguments, code) in [(arguments, 1), (&with_force, 0)] {
                            assert_eq!(run(arguments, folder.path()).status.code(), Some(code), "{arguments:?}");
                        }
                    }
                });
            assert_eq!(differing, Vec::<String>::new(), "{options:?} {operands:?}");
        }
    }
}

#[test]
fn images_mount_by_the_names_of_fuse_programs() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let corpus = Corpus::fixtures();
    let squashfs = corpus.materialise(&corpus.image("sqfs-cbase-gzip")).path;
    let squashfs = squashfs.to_str().expect("a plain path").to_owned();
    let folder = tempfile::tempdir().expect("a scratch folder");
    let mountpoint = folder.path().join("mount");
    fs::create_dir(&mountpoint).expect("made");
    fs::copy(demo(), folder.path().join("-image")).expect("a copy");
    let mount = mountpoint.to_str().expect("a plain path").to_owned();
    let is_mounted = || {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("readable");
        table.lines().any(|line| line.contains(&mount))
    };
    for (name, arguments) in [
        ("erofsfuse", vec![demo(), mount.clone()]),
        ("erofsfuse", strings(&["--offset=0", "--dbglevel=1", "-s", "-oallow_other", &demo(), &mount])),
        ("erofsfuse", strings(&["--", "-image", &mount])),
        ("erofsfuse", strings(&[&demo(), "--", &mount])),
        ("squashfuse", vec![squashfs.clone(), mount.clone()]),
        ("squashfuse_ll", strings(&["-o", "uid=12,gid=34,offset=0", &squashfs, &mount])),
        ("squashfuse_ll", strings(&["--", &squashfs, &mount])),
    ] {
        let output = floe_as(name, &arguments, folder.path());
        assert!(output.status.success(), "{name} {arguments:?}: {}", text(&output.stderr));
        assert_eq!(
            (text(&output.stdout), text(&output.stderr)),
            (String::new(), String::new()),
            "{name} {arguments:?}"
        );
        assert!(is_mounted(), "{name}");
        let names = processes_with(&mount).into_iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/comm")));
        let names: Vec<_> = names.flatten().map(|name| name.trim().to_owned()).collect();
        assert!(names.iter().any(|process| process == name), "{name}: {names:?}");
        let first = fs::read_dir(&mountpoint).expect("listed").next().expect("not empty").expect("readable").path();
        if arguments.iter().any(|argument| argument.contains("uid=12")) {
            let metadata = fs::symlink_metadata(first).expect("there");
            use std::os::unix::fs::MetadataExt;
            assert_eq!((metadata.uid(), metadata.gid()), (12, 34));
        }
        let output = Command::new(env!("CARGO_BIN_EXE_floe")).args(["umount", &mount]).output().expect("floe runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(!is_mounted(), "{name}");
    }

    // Unmounts when idle, and reports when the mount works.
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("made");
    let reader = std::thread::spawn({
        let pipe: PathBuf = pipe.clone();
        move || fs::read(pipe).expect("readable")
    });
    let options = format!("timeout=1,notify_pipe={}", pipe.display());
    let output = floe_as("squashfuse_ll", &strings(&["-o", &options, &squashfs, &mount]), folder.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(reader.join().expect("no panic"), b"s");
    until("it is unmounted", || !is_mounted());

    for (name, arguments) in [
        ("squashfuse", strings(&["/no/such/file", &mount])),
        ("squashfuse", strings(&["-o", "frob", &squashfs, &mount])),
    ] {
        let output = floe_as(name, &arguments, folder.path());
        assert_eq!(output.status.code(), Some(1), "{name} {arguments:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{name} {arguments:?}: {}", text(&output.stderr));
    }

    // The image begins elsewhere: the message names the option of the program.
    let behind = folder.path().join("behind");
    fs::write(&behind, [vec![0; 8192], fs::read(demo()).expect("readable")].concat()).expect("written");
    let behind = behind.to_str().expect("a plain path").to_owned();
    for (name, arguments, expected) in [
        ("erofsfuse", strings(&[&behind, &mount]), "one begins at byte 8192: give -o offset=8192\n"),
        ("squashfuse", strings(&[&behind, &mount]), "one begins at byte 8192: give -o offset=8192\n"),
        ("squashfuse_ll", strings(&["-f", &behind, &mount]), "one begins at byte 8192: give -o offset=8192\n"),
        ("mount.floe", strings(&[&behind, &mount]), "one begins at byte 8192: give -o offset=8192\n"),
        ("erofsfuse", strings(&["-ooffset=4096", &demo(), &mount]), "one begins at byte 0: omit -o offset\n"),
        ("dump.erofs", strings(&[&behind]), "one begins at byte 8192: give --offset=8192\n"),
        ("fsck.erofs", strings(&[&behind]), "one begins at byte 8192: give --offset=8192\n"),
        ("fsck.erofs", strings(&["--path=/", &behind]), "one begins at byte 8192: give --offset=8192\n"),
        ("fsck.erofs", strings(&["--extract=out", &behind]), "one begins at byte 8192: give --offset=8192\n"),
        ("fsck.erofs", strings(&["--offset=4096", &demo()]), "one begins at byte 0: omit --offset\n"),
        ("unsquashfs", strings(&["-l", &behind]), "one begins at byte 8192: give -offset 8192\n"),
    ] {
        let errors = text(&floe_as(name, &arguments, folder.path()).stderr);
        assert!(errors.ends_with(expected) && errors.lines().count() == 1, "{name} {arguments:?}: {errors}");
    }
}

#[test]
fn a_symbolic_link_is_enough_for_a_name() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    for name in ["dump.erofs", "fsck.erofs", "erofsfuse", "squashfuse", "squashfuse_ll", "unsquashfs"] {
        let link = folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_floe"), &link).expect("linked");
        let version = if name == "unsquashfs" { "-v" } else { "-V" };
        let output = Command::new(link).arg(version).output().expect("floe runs");
        let said = text(&output.stdout);
        assert!(
            output.status.success() && said.contains("(floe)") && said.contains(name.trim_end_matches("_ll")),
            "{said}"
        );
    }
}
