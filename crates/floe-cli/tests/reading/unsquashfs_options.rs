//! Options of `unsquashfs` that choose names, times and extended attributes, compared with the original.

use std::{fs, os::unix::fs::symlink, path::Path};

use floe_testkit::check_rows;

use crate::support::unsquashfs::{
    Program, differing_extractions, differing_outputs, is_ready, make_image, ours, theirs,
};

/// What both programs do with options and names: the options are one text.
type Row<'a> = (&'a str, &'a [&'a str]);

/// Compares listings, pseudo files and extractions of `image` in a folder.
fn check(rows: &[Row<'_>], folder: &Path) {
    check_rows(
        rows,
        |(options, names)| format!("{options} {}", names.join(" ")),
        |(options, names)| {
            let options: Vec<&str> = options.split_whitespace().collect();
            let mut told = Vec::new();
            for form in [&["-lln", "-full"][..], &["-pf", "-"]] {
                told.extend(differing_outputs(&[form, &options, &["image"], names].concat(), folder));
            }
            told.extend(differing_extractions(&[&["-q"], &options[..]].concat(), names, folder, &mut |_, _| {}));
            told
        },
    );
}

/// Makes `tree` in a folder: files with attributes, and links that lead to files, to each other, out of the image, and to
/// nothing.
fn make_tree(folder: &Path) {
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
}

#[test]
fn unsquashfs_chooses_names_times_and_attributes_as_the_original_does() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    make_tree(folder);
    make_image(folder);
    let rows: &[Row<'_>] = &[
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
    check(rows, folder);
}

/// Names that patterns tell apart.
const NAMES: &[&str] = &[
    "a", "b", "c", "B", "5", "ab", "abab", "abc", "a-b", "a]b", "a*b", "a\\b", "a b", "#a", "...", ".a", ".ab", "x.o",
    "y.o", "x.c", "]", "[", "!", "a(b)", "ä",
];

#[test]
fn unsquashfs_matches_names_as_the_original_does() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    for directory in ["", "src", "src/lib", "src/lib/src", ".hidden"] {
        fs::create_dir_all(folder.join("tree").join(directory)).expect("made");
        for name in NAMES {
            fs::write(folder.join("tree").join(directory).join(name), name).expect("written");
        }
    }
    make_image(folder);
    for (list, content) in [
        ("list", "a\n  x.?\n\n# comment\n   # comment\n\\#a\n\\\\[\nsrc/lib/[[:upper:]]\n... not sticky here\n"),
        ("sticky", "... *.o\n... lib/[[:digit:]]\n\\... .a\n\tsrc/@(a|b)\n"),
        ("slash", "a\n/\n"),
        ("empty", "\n# nothing\n"),
    ] {
        fs::write(folder.join(list), content).expect("written");
    }
    fs::write(folder.join("long"), "x".repeat(16_384)).expect("written");
    let rows: &[Row<'_>] = &[
        ("", &["[[:alpha:]]"]),
        ("", &["[[:digit:][:upper:]]"]),
        ("", &["[a-b]", "[!a-c]"]),
        ("", &["[^[:alnum:]]"]),
        ("", &["a[]-]b", "[]]", "[[]", "[!]a]"]),
        ("", &["[[.a.]]", "[[=b=]]", "[[.nothing.]]", "[[:nothing:]]"]),
        ("", &["*"]),
        ("", &[".*"]),
        ("", &["?", "??"]),
        ("", &["[.]a", "[!b]a"]),
        ("", &["\\a", "a\\*b", "a\\\\b", "a\\"]),
        ("", &["?(a)b", "@(x|y).o"]),
        ("", &["+(ab)"]),
        ("", &["*(ab)c"]),
        ("", &["!(a|b|c)"]),
        ("", &["!(*.o)"]),
        ("", &["!(.a)"]),
        ("", &["@(a|@(b|c))"]),
        ("", &["a(b)", "a\\(b)", "@(a(b))", "@(a"]),
        ("", &["@([ab]|x.[!c])"]),
        ("", &["s*/l?b/[[:lower:]]"]),
        ("", &["*/@(lib|x*)/*/a"]),
        ("", &["src/", "//src//lib//a"]),
        ("", &["*/a", "src"]),
        ("", &["a/b", "src/a/b"]),
        ("", &["src/lib", "src/*/a", "s*/lib/b"]),
        ("", &[""]),
        ("", &["/"]),
        ("-regex", &["^.$"]),
        ("-regex", &["[[:digit:]]", "src/^a"]),
        ("-regex", &["^(ab){,2}$", "src/^a[{,]b$"]),
        ("-regex", &["a{2}", "{,2}"]),
        ("-no-wildcards", &["[", "a*b", "@(a|b)", "src/*"]),
        ("-max 1", &["s*"]),
        ("-max 0", &["s*"]),
        ("-excludes", &["[[:alpha:]]", "src/lib"]),
        ("-excludes", &["!(src)"]),
        ("-excludes", &["src/!(lib)", "*/lib/@(a|b)"]),
        ("-excludes", &["... *.o"]),
        ("-excludes", &["... [[:alpha:]]", "src/x.o"]),
        ("-excludes", &["... lib/a"]),
        ("-excludes", &["... src/lib/src", "... src/a"]),
        ("-excludes", &["... /lib"]),
        ("-excludes", &["... "]),
        ("-excludes", &["...", "...a"]),
        ("-excludes -max 2", &["... ?"]),
        ("-excludes -no-wildcards", &["... *", "... a*b"]),
        ("-excludes -regex", &["... ^a", "src/^x"]),
        ("-ex a b ;", &["[a-d]"]),
        ("-exclude-list src/lib ; -ex .a ;", &[]),
        ("-ex ;", &[]),
        ("-ex a b", &[]),
        ("-extract-file list", &[]),
        ("-e list -no-wildcards", &["b"]),
        ("-ef list -exclude-file sticky", &["src"]),
        ("-exc sticky", &[]),
        ("-excf sticky", &["src/lib", "*.o"]),
        ("-e list -excludes", &["x.o", "... B"]),
        ("-e empty -exc empty", &[]),
        ("-e slash", &[]),
        ("-exc slash", &[]),
        ("-e long", &[]),
        ("-exc missing", &[]),
        ("-follow -e list", &["src/lib/a"]),
    ];
    check(rows, folder);
}

#[test]
fn unsquashfs_writes_the_files_that_the_original_writes() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    make_tree(folder);
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("tree/etc/fifo"), rustix::fs::Mode::RUSR).expect("made");
    make_image(folder);
    let rows: &[Row<'_>] = &[
        ("", &[]),
        ("", &["etc/a.conf"]),
        ("", &["/etc//a.conf", "usr/lib/x"]),
        ("", &["etc/*.conf"]),
        ("", &["etc/[[:alpha:]].conf", "etc/+(b).conf"]),
        ("", &["etc/\\*", "*/lib/x"]),
        ("", &["*/*"]),
        ("", &["*"]),
        ("", &["etc"]),
        ("", &["/", "."]),
        ("", &[""]),
        ("", &["nothing"]),
        ("", &["etc/nothing*", "etc/a.conf"]),
        ("", &["nothing/a", "etc/a.conf/b"]),
        ("", &["etc/fifo"]),
        ("", &["etc/fifo/x"]),
        ("", &["usr/lib/y", "chain/x", "etc/lib/y"]),
        ("", &["chain"]),
        ("", &["etc/dangling"]),
        ("", &["loop1", "absolute/lib/x", "etc/out"]),
        ("", &["s*h/x"]),
        ("", &["etc/../usr/./lib/x", "./etc/./a.conf"]),
        ("", &["../etc/a.conf"]),
        ("", &["etc/a.conf/."]),
        ("", &["etc/conf.d/.."]),
        ("", &["*/../etc/a.conf"]),
        ("-no-exit-code", &["nothing", "etc/a.conf"]),
        ("-no-wildcards", &["etc/*", "etc/*.conf"]),
        ("-regex", &["etc/^[ab]"]),
        ("-regex", &["(", "etc/^a"]),
        ("-excludes", &["etc/a.conf"]),
        // Of several tasks, the same one is done.
        ("-pf pseudo", &["etc/a.conf"]),
        ("-pf - -stat", &[]),
        ("-mkfs-time", &["etc/a.conf"]),
        ("-mkfs-time -stat", &[]),
        ("-stat -mkfs-time -pf -", &[]),
        ("-stat", &["etc/a.conf"]),
    ];
    check_rows(
        rows,
        |(options, names)| format!("{options} {}", names.join(" ")),
        |(options, names)| {
            let options: Vec<&str> = options.split_whitespace().collect();
            differing_outputs(&[&["-cat"], &options[..], &["image"], names].concat(), folder)
        },
    );
    assert!(!folder.join("pseudo").exists());
}

#[test]
fn unsquashfs_ends_at_faults_as_the_original_does() {
    if !is_ready() {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let folder = folder.path();
    fs::create_dir(folder.join("tree")).expect("made");
    // Compressed, the data of each file is longer than what will be broken.
    let mut state = 1u32;
    for name in ["f1", "f2", "f3"] {
        let bytes = (0..100_000).map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b' ' + (state >> 26) as u8
        });
        fs::write(folder.join("tree").join(name), bytes.collect::<Vec<u8>>()).expect("written");
    }
    make_image(folder);
    let mut bytes = fs::read(folder.join("image")).expect("read");
    // The data of the first file begins behind the superblock.
    bytes[96..4096].fill(0xff);
    fs::write(folder.join("image"), bytes).expect("written");
    let rows: &[Row<'_>] = &[
        ("", &[]),
        ("", &["f2"]),
        ("", &["f1"]),
        ("-max 1", &["f*"]),
        ("-excludes", &["f1"]),
        ("-ignore-errors", &[]),
        ("-ig -no-exit-code", &[]),
        ("-no-exit-code", &[]),
        ("-strict-errors", &[]),
        ("-cat", &["f1"]),
        ("-cat", &["f2"]),
        ("-cat -ig", &["*"]),
        ("-cat -ig -no-exit", &["*"]),
    ];
    check_rows(
        rows,
        |(options, names)| format!("{options} {}", names.join(" ")),
        |(options, names)| {
            let options: Vec<&str> = options.split_whitespace().collect();
            let [ours, theirs] = [ours as Program, theirs].map(|run| {
                let target = tempfile::tempdir().expect("a folder for the target");
                let target = target.path().to_str().expect("a plain path");
                let arguments = [&["-q", "-n", "-d", target], &options[..], &["image"], names].concat();
                let output = run(&arguments, folder);
                (output.status.code(), output.stdout, output.stderr.is_empty())
            });
            if ours == theirs { Vec::new() } else { vec![format!("{:?} instead of {:?}", ours.0, theirs.0)] }
        },
    );
}
