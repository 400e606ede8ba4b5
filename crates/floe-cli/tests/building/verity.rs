//! `floe mkfs --verity`, and the root hash file when an image is replaced.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    os::unix::{fs::symlink, process::CommandExt},
    path::Path,
    process::{Command, Output, Stdio},
};

use floe_mkfs::{Companion, Error, NoProgress, Options, Source, build_unnamed};
use floe_remote_cache::parse_sidecar;
use floe_testkit::{
    Random,
    skip::{self, Need},
};
use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

use crate::support::program::said;

/// The magic of a hash tree.
const TREE_MAGIC: &[u8] = b"verity\0\0";

/// A folder with a tree in `source`, and an image of it with a hash tree in `out`.
fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    fs::create_dir(folder.path().join("out")).expect("made");
    fs::write(folder.path().join("source/noise"), Random::new(1).noise(300_000)).expect("written");
    succeed(&floe(&folder, &["out/image", "source", "--verity"]));
    folder
}

fn floe(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["mkfs", "--quiet"]).args(arguments);
    command.current_dir(folder.path()).stdin(Stdio::null()).output().expect("floe runs")
}

fn drop_in(folder: &TempDir, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0("mkfs.erofs").arg("--quiet").args(arguments);
    command.current_dir(folder.path()).stdin(Stdio::null()).output().expect("floe runs")
}

fn succeed(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, said(output));
}

/// The files of a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("listed"));
    entries
        .map(|entry| (entry.file_name().into_string().expect("text"), fs::read(entry.path()).expect("it can be read")))
        .collect()
}

/// Whether the root hash file belongs to the image beside it.
fn belongs(files: &BTreeMap<String, Vec<u8>>) -> bool {
    let text = String::from_utf8(files["image.dmverity"].clone()).expect("text");
    let root = parse_sidecar(&text).expect("a root hash");
    let tree = &files["image"][usize::try_from(root.hash_offset).expect("small")..];
    // The root is the hash of the first block after the superblock's.
    tree.starts_with(TREE_MAGIC) && floe_remote_cache::Digest::salted(&[0; 32], &tree[4096..8192]) == root.root_hash
}

#[test]
fn a_failed_build_keeps_the_image_and_its_root_hash() {
    let folder = scene();
    let before = files(&folder.path().join("out"));
    assert_eq!(before.keys().collect::<Vec<_>>(), ["image", "image.dmverity"]);
    assert!(belongs(&before));
    for arguments in [
        &["out/image", "missing", "--verity"][..],
        &["out/image", "source", "--verity", "--exclude", "missing"],
        &["out/image", "missing"],
    ] {
        let output = floe(&folder, arguments);
        assert!(!output.status.success() && said(&output).lines().count() == 1, "{arguments:?}: {}", said(&output));
        assert!(files(&folder.path().join("out")) == before, "{arguments:?} changed the earlier image");
    }
}

#[test]
fn a_disk_without_room_for_the_hash_tree_keeps_both() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    let (out, earlier) = (folder.path().join("out"), files(&folder.path().join("out")));
    fs::write(folder.path().join("source/more"), Random::new(2).noise(300_000)).expect("written");
    succeed(&floe(&folder, &["out/image", "source", "--verity"]));
    let later = files(&out);
    let kib = |files: &BTreeMap<String, Vec<u8>>| -> usize {
        files.values().map(|bytes| bytes.len().next_multiple_of(4096) / 1024).sum()
    };
    let enough = kib(&earlier) + kib(&later);
    let mut outcomes = [0, 0];
    for size in (enough - 48..=enough + 8).step_by(4) {
        let disk = tempfile::tempdir().expect("a directory");
        let options = CString::new(format!("size={size}k")).expect("no zero byte");
        rustix::mount::mount("tmpfs", disk.path(), "tmpfs", MountFlags::empty(), options.as_c_str()).expect("a tmpfs");
        for (name, bytes) in &earlier {
            fs::write(disk.path().join(name), bytes).expect("there is room");
        }
        let image = disk.path().join("image");
        let output = floe(&folder, &[image.to_str().expect("text"), "source", "--verity"]);
        let found = files(disk.path());
        rustix::mount::unmount(disk.path(), UnmountFlags::DETACH).expect("ours");
        outcomes[usize::from(output.status.success())] += 1;
        let expected = if output.status.success() { &later } else { &earlier };
        assert!(found == *expected, "{size} KiB: {:?} {}", found.keys(), said(&output));
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[test]
fn a_root_hash_is_removed_with_its_image() {
    for (program, prefix) in [(floe as fn(&TempDir, &[&str]) -> Output, "floe: "), (drop_in, "<W> erofs: ")] {
        let folder = scene();
        let output = program(&folder, &["out/image", "source"]);
        succeed(&output);
        let expected = "out/image.dmverity was removed: it had the root hash of the previous image\n";
        assert_eq!(said(&output), format!("{prefix}{expected}"));
        assert_eq!(files(&folder.path().join("out")).keys().collect::<Vec<_>>(), ["image"]);
        // The image itself may be gone already.
        succeed(&floe(&folder, &["out/image", "source", "--verity"]));
        fs::remove_file(folder.path().join("out/image")).expect("removed");
        succeed(&program(&folder, &["out/image", "source"]));
        assert_eq!(files(&folder.path().join("out")).keys().collect::<Vec<_>>(), ["image"]);
    }
}

#[test]
fn a_root_hash_inside_the_source_is_omitted() {
    for (program, prefix) in [(floe as fn(&TempDir, &[&str]) -> Output, "floe: "), (drop_in, "<W> erofs: ")] {
        let folder = scene();
        symlink("out/image", folder.path().join("link")).expect("linked");
        for output in ["out/image", "link"] {
            succeed(&floe(&folder, &["out/image", "source", "--verity"]));
            let result = program(&folder, &[output, "out"]);
            succeed(&result);
            let root_hash = folder.path().join("out/image.dmverity");
            let expected = [output, "out/image.dmverity", root_hash.to_str().expect("text")];
            let omitted = |path: &str| format!("{prefix}the output {path} is inside the source; it was omitted");
            let lines = expected.map(omitted);
            let said = said(&result);
            assert_eq!(said.lines().filter(|line| lines.iter().any(|expected| line == expected)).count(), 2, "{said}");
        }
    }
}

#[test]
fn root_hashes_beside_a_link_are_removed_as_well() {
    let folder = scene();
    symlink("out/image", folder.path().join("link")).expect("linked");
    for (more, expected) in [(&["--verity"][..], true), (&[], false)] {
        succeed(&floe(&folder, &[&["link", "source"], more].concat()));
        assert_eq!(folder.path().join("link.dmverity").exists(), expected, "{more:?}");
        assert!(!folder.path().join("out/image.dmverity").exists(), "{more:?}");
    }
}

#[test]
fn a_root_hash_behind_a_link_is_replaced() {
    let folder = scene();
    let place = |name: &str| folder.path().join(name);
    fs::rename(place("out/image.dmverity"), place("root")).expect("renamed");
    symlink("../root", place("out/image.dmverity")).expect("linked");
    fs::write(place("source/more"), "more").expect("written");
    succeed(&floe(&folder, &["out/image", "source", "--verity"]));
    assert_eq!(fs::read_link(place("out/image.dmverity")).expect("a link"), Path::new("../root"));
    assert!(belongs(&files(&place("out"))));
}

#[test]
fn a_root_hash_that_cannot_be_removed_keeps_its_image() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let folder = scene();
    let before = files(&folder.path().join("out"));
    let script = "mount --bind out/image.dmverity out/image.dmverity; exec \"$0\" mkfs out/image source";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-e", "-c", script, env!("CARGO_BIN_EXE_floe")]);
    let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().expect("unshare runs");
    assert_eq!(said(&output), "floe: cannot remove out/image.dmverity: Device or resource busy (os error 16)\n");
    assert!(files(&folder.path().join("out")) == before);
}

#[test]
fn other_files_beside_the_image_are_kept() {
    let folder = scene();
    let path = folder.path().join("out/image.dmverity");
    for content in [&b""[..], b"notes", b"{}", b"verity\0\0\x01\0\0\0", &[0xff; 100_000]] {
        fs::write(&path, content).expect("written");
        let output = floe(&folder, &["out/image", "source"]);
        succeed(&output);
        assert!(said(&output).starts_with("floe: out/image.dmverity was kept: "), "{}", said(&output));
        assert_eq!(said(&output).lines().count(), 1);
        assert_eq!(fs::read(&path).expect("it is there"), content);
    }
    fs::remove_file(&path).expect("ours");
    fs::create_dir(&path).expect("made");
    succeed(&floe(&folder, &["out/image", "source"]));
    let output = floe(&folder, &["out/image", "source", "--verity"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(said(&output), "floe: out/image.dmverity is not a regular file: --verity writes the root hash there\n");
}

#[test]
fn an_image_that_gets_no_name_leaves_the_earlier_files() {
    let folder = scene();
    let place = |name: &str| folder.path().join(name);
    fs::create_dir(place("data")).expect("made");
    let mut options = Options::new(place("out/image"));
    options.chunk_bytes = Some(4096);
    options.blob_device = Some(place("data/blob"));
    let sources = [Source::Directory(place("source"))];
    // Once the blob device is new, once it replaces another one.
    for earlier in [None, Some(b"an earlier blob device")] {
        if let Some(bytes) = earlier {
            fs::write(place("data/blob"), bytes).expect("written");
        }
        fs::write(place("data/root"), "an earlier root hash").expect("written");
        let before = files(&place("data"));
        let complete = build_unnamed(&options, &sources, None, &mut NoProgress).expect("built");
        fs::rename(place("out"), place("elsewhere")).expect("renamed");
        let companions = [Companion { path: place("data/root"), content: Some(b"a root hash".to_vec()) }];
        let Err(error) = complete.finish(&companions) else { panic!("the directory is gone") };
        assert!(matches!(error, Error::Output { action: "name", .. }), "{error}");
        assert!(files(&place("data")) == before, "{earlier:?}: {:?}", files(&place("data")).keys());
        fs::rename(place("elsewhere"), place("out")).expect("renamed");
    }
    let complete = build_unnamed(&options, &sources, None, &mut NoProgress).expect("built");
    let companions = [Companion { path: place("data/root"), content: None }];
    complete.finish(&companions).expect("it gets its name");
    assert_eq!(files(&place("data")).keys().collect::<Vec<_>>(), ["blob"]);
    assert_eq!(files(&place("out")).keys().collect::<Vec<_>>(), ["image", "image.dmverity"]);
}

#[test]
fn the_output_line_mentions_the_hash_tree() {
    let folder = scene();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        let output = command.arg("mkfs").args(arguments).current_dir(folder.path()).output().expect("floe runs");
        succeed(&output);
        String::from_utf8(output.stdout).expect("text")
    };
    let line = run(&["out/image", "source", "--verity"]);
    assert!(line.contains(" and a hash tree of 8.00 KiB of 2 inodes with 292.97 KiB of content, 1"), "{line}");
    let record: serde_json::Value =
        serde_json::from_str(&run(&["out/image", "source", "--verity", "--json"])).expect("JSON");
    let len = fs::metadata(folder.path().join("out/image")).expect("it is there").len();
    assert_eq!(record["image_bytes"].as_u64().zip(record["verity_bytes"].as_u64()), Some((len - 8192, 8192)));
    // A tree without content has no share of it.
    fs::create_dir(folder.path().join("empty")).expect("made");
    let line = run(&["empty.erofs", "empty"]);
    assert!(line.starts_with("8.00 KiB of 1 inodes with 0 B of content, in "), "{line}");
}
