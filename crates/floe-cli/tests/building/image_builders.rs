//! Programs that build images by calling others: their command lines, with Floe under the names of these others, give the
//! content that the originals give. docs/image-builders.md has the table.

use std::{
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, Output},
};

use floe::{Offset, OpenOptions};
use floe_testkit::{
    Tree, Versions, check_rows,
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::{mkfs_erofs::manifest_of, support::program::floe};

/// A caller, and its command line in words, with `ROOT`, `OUT`, and `UUID`. A word in quotes has spaces; `<FILE` is standard input.
struct Row {
    caller: &'static str,
    line: &'static str,
}

/// The command lines, with the default options of each caller.
const ROWS: [Row; 21] = [
    Row { caller: "live-build", line: "mksquashfs ROOT OUT -wildcards -ef excludes -comp xz -no-progress" },
    Row {
        caller: "live-build, sorted",
        line: "mksquashfs ROOT OUT -comp zstd -Xcompression-level 15 -sort sort -info",
    },
    Row {
        caller: "mmdebstrap",
        line: "tar2sqfs --quiet --no-skip --force --exportable --compressor xz --block-size 1048576 OUT <tar",
    },
    Row { caller: "systemd-repart 252", line: "mksquashfs ROOT OUT -quiet -noappend" },
    Row {
        caller: "systemd-repart 257, mkosi",
        line: "mksquashfs ROOT OUT -noappend -quiet -comp zstd -Xcompression-level 19",
    },
    Row { caller: "systemd-repart 257, mkosi", line: "mkfs.erofs -U UUID --quiet -zzstd,level=3 OUT ROOT" },
    Row { caller: "dracut", line: "mksquashfs ROOT OUT -no-xattrs -no-exports -noappend -comp xz -Xdict-size 100%" },
    Row {
        caller: "casper, snapd",
        line: "mksquashfs ROOT OUT -noappend -comp xz -no-fragments -no-progress -all-root -no-xattrs",
    },
    Row {
        caller: "snapd, lzo",
        line: "mksquashfs ROOT OUT -noappend -comp lzo -no-fragments -no-progress -all-root -no-xattrs",
    },
    Row { caller: "rauc", line: "mksquashfs ROOT OUT -all-root -noappend -no-progress -no-xattrs" },
    Row { caller: "Buildroot", line: "mksquashfs ROOT OUT -noappend -processors 2 -b 128K -comp lz4 -Xhc" },
    Row {
        caller: "Buildroot, not padded",
        line: "mksquashfs ROOT OUT -noappend -processors 2 -b 64K -nopad -comp lzma",
    },
    Row {
        caller: "Buildroot, reproducible",
        line: "mkfs.erofs -zlz4hc -T 1700000000 -U 00000000-0000-0000-0000-000000000000 -C65536 -Ededupe -Eall-fragments OUT ROOT",
    },
    Row {
        caller: "OpenWrt",
        line: "mksquashfs ROOT OUT -nopad -noappend -root-owned -comp gzip -b 256k -p '/dev d 755 0 0' -p '/dev/console c 600 \
               0 0 5 1' -processors 1",
    },
    Row {
        caller: "OpenWrt, fake file system",
        line: "mksquashfs ROOT OUT -comp xz -b 4096 -no-exports -no-sparse -no-xattrs -all-root -noappend",
    },
    Row { caller: "Yocto", line: "mksquashfs ROOT OUT -noappend -comp zstd" },
    Row { caller: "Yocto", line: "mkfs.erofs -zlz4hc OUT ROOT" },
    Row {
        caller: "AppImage",
        line: "mksquashfs ROOT OUT -offset 188392 -comp zstd -root-owned -noappend -Xcompression-level 22 -b 1M -mkfs-time 0",
    },
    Row { caller: "Apptainer", line: "mksquashfs ROOT OUT -noappend -all-root -comp gzip -processors 2" },
    Row { caller: "containerd", line: "mkfs.erofs --tar=f --aufs --quiet -Enoinline_data -U UUID OUT <tar" },
    Row { caller: "Proxmox, GRML", line: "mksquashfs ROOT OUT -b 1M -comp xz -Xbcj x86 -no-duplicates -noappend" },
];

const UUID: &str = "0b0c8e4f-96b4-4b64-a8a0-1f0c2ee5f1a7";

fn scene() -> tempfile::TempDir {
    let scene = tempfile::tempdir().expect("a folder");
    let root = scene.path().join("root");
    let tree = Tree { file_count: 30, file_bytes_max: 150_000, wide_directory_entries: 60, ..Tree::small(48) };
    tree.write(&root).expect("there is room");
    for path in ["etc", "var/cache/apt", "proc"] {
        fs::create_dir_all(root.join(path)).expect("made");
    }
    for path in ["etc/motd", "var/cache/apt/pkgcache.bin", "etc/hostname"] {
        fs::write(root.join(path), path.repeat(900)).expect("there is room");
    }
    // Neither a socket nor a name that is not text is in an archive or in a file of names.
    let _ = fs::remove_file(root.join("odd/socket"));
    fs::write(scene.path().join("excludes"), "proc/*\nvar/cache/apt/*\n").expect("there is room");
    fs::write(scene.path().join("sort"), "etc/hostname 100\netc/motd -5\n").expect("there is room");
    let tar = "--format=pax --xattrs --xattrs-include=user.* --xattrs-include=trusted.* -cf tar -C root .";
    let tar = Command::new("tar").args(tar.split(' ')).current_dir(scene.path()).status();
    assert!(tar.expect("there is tar").success());
    scene
}

/// The words of a line; those in quotes have spaces.
fn words(line: &str, out: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(number, part)| -> Vec<&str> {
        if number % 2 == 1 { vec![part] } else { part.split_whitespace().collect() }
    });
    words.map(|word| word.replace("ROOT", "root").replace("OUT", out).replace("UUID", UUID)).collect()
}

fn run(program: impl FnOnce(&str) -> Command, folder: &Path, line: &str, out: &str) -> Output {
    let mut words = words(line, out);
    let mut command = program(&words.remove(0));
    if !line.contains("-mkfs-time") {
        command.env("SOURCE_DATE_EPOCH", "1710000000");
    }
    command.current_dir(folder);
    if let Some(input) = words.last().and_then(|word| word.strip_prefix('<')) {
        command.stdin(fs::File::open(folder.join(input)).expect("it is there"));
        words.pop();
    }
    command.args(words).output().expect("it runs")
}

/// What Floe reads of an image. Times are limited by the environment, and pseudo files have the time of the build.
fn manifest(image: &Path, line: &str) -> Manifest {
    let offset = if line.contains("-offset") { 188_392 } else { 0 };
    manifest_of(image, &OpenOptions { offset: Offset::At(offset), ..OpenOptions::default() })
}

const COMPARISON: Comparison = Comparison {
    directory_shape_is_free: true,
    privileges_are_free: false,
    xattrs_are_free: false,
    links_are_free: false,
};

#[test]
fn command_lines_of_callers_give_the_content_of_the_originals() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    let source = walk::directory(&folder.join("root"), DirectoryWalk::default()).expect("it can be read");
    check_rows(
        &ROWS,
        |row| format!("{}: {}", row.caller, row.line),
        |row| {
            let place = ROWS.iter().position(|other| other.line == row.line).expect("it is one of them");
            let mut told = Vec::new();
            let under = |name: &str| {
                let mut command = floe();
                command.arg0(name);
                command
            };
            let (ours, theirs) = (format!("ours-{place}"), format!("theirs-{place}"));
            let output = run(under, folder, row.line, &ours);
            if !output.status.success() {
                return vec![format!("{output:?}")];
            }
            let found = manifest(&folder.join(&ours), row.line);
            for (path, entry) in source.entries().filter(|(path, _)| path.starts_with(b"/part")) {
                if found.entry(path).is_none_or(|found| found.sha256 != entry.sha256) {
                    told.push(format!("{} differs from the source", String::from_utf8_lossy(path)));
                }
            }
            let name = row.line.split(' ').next().unwrap_or_default();
            let version = if name == "mksquashfs" { Versions::Since("4.7.5") } else { Versions::Since("1.9") };
            let is_here = match name {
                "mksquashfs" => Need::PeerOf("mksquashfs", version),
                "mkfs.erofs" => Need::PeerOf("mkfs.erofs", version),
                _ => Need::Peer("tar2sqfs"),
            };
            if is_here.missing().is_none() {
                let original = |name: &str| Command::new(peer(name).expect("it is here"));
                let output = run(original, folder, row.line, &theirs);
                if !output.status.success() {
                    told.push(format!("the original: {output:?}"));
                    return told;
                }
                let expected = manifest(&folder.join(&theirs), row.line);
                told.extend(differences(&expected, &found, &COMPARISON));
            }
            told
        },
    );
}

#[test]
fn options_that_only_a_patched_original_has_are_refused_in_a_line() {
    let scene = scene();
    for (line, expected) in [
        ("mksquashfs root OUT -noappend -comp xz -Xpreset 9 -Xe -Xlc 0 -Xlp 2 -Xpb 2", "-Xpreset"),
        ("mksquashfs root OUT -nopad -noappend -comp gzip -fixed-time 1700000000", "-fixed-time"),
    ] {
        let under = |name: &str| {
            let mut command = floe();
            command.arg0(name);
            command
        };
        let output = run(under, scene.path(), line, "image");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && told.contains(expected), "{line}: {output:?}");
        assert_eq!(told.lines().count(), 1, "{line}: {told}");
        assert!(!scene.path().join("image").exists(), "{line}");
    }
}

#[test]
fn systemd_repart_builds_a_partition() {
    if !skip::ready(&[Need::Root, Need::Peer("systemd-repart")]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    for directory in ["bin", "definitions"] {
        fs::create_dir(folder.join(directory)).expect("made");
    }
    for name in ["mksquashfs", "mkfs.erofs"] {
        symlink(env!("CARGO_BIN_EXE_floe"), folder.join("bin").join(name)).expect("linked");
    }
    let definition =
        format!("[Partition]\nType=root\nFormat=squashfs\nCopyFiles={}:/\n", folder.join("root").display());
    fs::write(folder.join("definitions/10-root.conf"), definition).expect("there is room");
    let mut command = Command::new(peer("systemd-repart").expect("it is here"));
    command.args(["--empty=create", "--size=32M", "--definitions=definitions", "--dry-run=no", "--no-pager", "disk"]);
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
    let output = command.env("PATH", path).current_dir(folder).output().expect("it runs");
    if String::from_utf8_lossy(&output.stderr).contains("loop") && !output.status.success() {
        return skip::skipped(&format!("systemd-repart gets no loop device: {output:?}"));
    }
    assert!(output.status.success(), "{output:?}");
    // The first partition begins at 1 MiB.
    let found =
        manifest_of(&folder.join("disk"), &OpenOptions { offset: Offset::At(1 << 20), ..OpenOptions::default() });
    let source = walk::directory(&folder.join("root"), DirectoryWalk::default()).expect("it can be read");
    for (path, entry) in source.entries() {
        let found = found.entry(path).unwrap_or_else(|| panic!("{} is missing", String::from_utf8_lossy(path)));
        assert_eq!((&found.sha256, found.mode, &found.target), (&entry.sha256, entry.mode, &entry.target));
    }
}
