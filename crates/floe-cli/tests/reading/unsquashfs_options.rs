//! Options of `unsquashfs` that choose names, times and extended attributes, compared with the original.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_testkit::{
    Versions, check_rows,
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

fn ours(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("unsquashfs");
    run(command, arguments, directory)
}

fn theirs(arguments: &[&str], directory: &Path) -> Output {
    run(Command::new(peer("unsquashfs").expect("it was asked for")), arguments, directory)
}

fn run(mut command: Command, arguments: &[&str], directory: &Path) -> Output {
    command.args(arguments).current_dir(directory).env("TZ", "UTC").stdin(Stdio::null()).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes `image` in a folder: files with attributes, and links that lead to files, to each other, out of the image, and to
/// nothing.
fn make_image(folder: &Path) {
    let tree = folder.join("tree");
    for directory in ["etc/conf.d", "usr/lib", "empty"] {
        fs::create_dir_all(tree.join(directory)).expect("made");
    }
    for file in ["etc/a.conf", "etc/b.conf", "etc/*", "etc/conf.d/c", "usr/lib/x"] {
        fs::write(tree.join(file), file).expect("written");
    }
    for (target, link) in [
        ("../usr/lib", "etc/lib"),
        ("x", "usr/lib/y"),
        ("etc/lib", "chain"),
        ("nothing", "etc/dangling"),
        ("loop2", "loop1"),
        ("loop1", "loop2"),
        ("../../..", "etc/out"),
        ("/usr", "absolute"),
        ("usr/lib/", "slash"),
    ] {
        symlink(target, tree.join(link)).expect("linked");
    }
    for (name, value) in [("user.one", "1"), ("user.two", "2"), ("trusted.three", "3")] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(tree.join("usr/lib/x"), name, value.as_bytes(), flags).expect("set");
    }
    let mut command = Command::new(peer("mksquashfs").expect("it was asked for"));
    let made = command.args(["tree", "image", "-quiet", "-no-progress"]).current_dir(folder).output().expect("it runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
}

#[test]
fn unsquashfs_chooses_names_times_and_attributes_as_the_original_does() {
    let version = Versions::Series("4.7");
    if !skip::ready(&[Need::Root, Need::PeerOf("unsquashfs", version), Need::PeerOf("mksquashfs", version)]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    make_image(folder);
    let rows: &[(&str, &[&str])] = &[
        ("-no-wildcards", &["etc/*"]),
        ("-no-wild", &["etc/*.conf"]),
        ("-match", &["etc/a.conf"]),
        ("-match", &["etc/a.conf", "nothing"]),
        ("-match", &["etc/*.conf"]),
        ("-match", &["etc/lib/x"]),
        ("-match", &["etc/dangling"]),
        ("-match -regex", &["etc"]),
        ("-match -excludes", &["etc"]),
        ("-missing", &["chain/y"]),
        ("-missing", &["etc/out"]),
        ("-missing -ex usr ;", &["chain/y"]),
        ("-follow-symlinks", &["chain/y"]),
        ("-follow", &["etc/lib"]),
        ("-follow", &["slash"]),
        ("-follow", &["absolute/lib/x"]),
        ("-follow", &["etc/dangling", "etc/out", "loop1", "nothing"]),
        ("-follow", &["etc/dangling/x"]),
        ("-follow", &["etc/a.conf/x"]),
        ("-follow", &["etc/lib/../lib/x"]),
        ("-follow", &["../etc/a.conf"]),
        ("-follow -max 2", &["chain/y"]),
        ("-follow", &[]),
        ("-L", &["etc/lib/y"]),
        ("-all-time 77", &[]),
        ("-all 4294967295", &["etc"]),
        ("-all-time @5", &["etc/lib"]),
        ("-all-time 2023-02-15", &["etc"]),
        ("-all-time nonsense", &[]),
        ("-all-time 2200-01-01", &[]),
        ("-all-time 1960-01-01", &[]),
        ("-xattrs-include ^user.", &[]),
        ("-xattrs-exclude ^user.", &[]),
        ("-xattrs-include user -xattrs-exclude two", &[]),
        ("-xattrs-exclude two -xattrs-exclude one", &[]),
        ("-xattrs-include two -no-xattrs", &[]),
        ("-no-xattrs -xattrs-exclude two", &[]),
        ("-u -xattrs-exclude two", &[]),
        ("-xattrs-include one -user-xattrs", &[]),
        ("-xattrs-include (two|e$)", &[]),
        ("-xattrs-exclude (", &[]),
    ];
    check_rows(
        rows,
        |(options, names)| format!("{options} {}", names.join(" ")),
        |(options, names)| {
            let options: Vec<&str> = options.split(' ').collect();
            let mut told = Vec::new();
            for form in [&["-lln", "-full"][..], &["-pf", "-"]] {
                let arguments = [form, &options, &["image"], names].concat();
                let (ours, theirs) = (ours(&arguments, folder), theirs(&arguments, folder));
                // With an option that it refuses, the original prints its help.
                let is_same = ours.stdout == theirs.stdout || !theirs.status.success();
                if ours.status.code() != theirs.status.code() || !is_same {
                    let [ours_text, theirs_text] = [&ours, &theirs].map(|output| text(&output.stdout));
                    told.push(format!(
                        "{form:?}: {}, {} instead of {}\n{ours_text}instead of\n{theirs_text}",
                        text(&ours.stderr),
                        ours.status,
                        theirs.status
                    ));
                }
            }
            let mut found = Vec::new();
            let targets = tempfile::tempdir().expect("a folder for this row");
            for (target, run) in [("ours", ours as fn(&[&str], &Path) -> Output), ("theirs", theirs)] {
                let target = targets.path().join(target);
                let place = ["-n", "-q", "-d", target.to_str().expect("a plain path")];
                let output = run(&[&place, &options[..], &["image"], names].concat(), folder);
                let tree =
                    target.exists().then(|| walk::directory(&target, DirectoryWalk::default()).expect("readable"));
                let is_silent = output.stderr.is_empty() && output.status.success();
                found.push((output.status.code(), is_silent, tree));
            }
            let [(our_code, our_silence, our_tree), (code, silence, tree)] = &found[..] else { unreachable!("two") };
            if (our_code, our_silence) != (code, silence) {
                told.push(format!("extracting: {our_code:?} instead of {code:?}, silent {our_silence}, not {silence}"));
            }
            match (our_tree, tree) {
                (Some(ours), Some(theirs)) => told.extend(differences(theirs, ours, &Comparison::default())),
                (None, None) => {}
                _ => told.push("only one made the target".to_owned()),
            }
            told
        },
    );
}
