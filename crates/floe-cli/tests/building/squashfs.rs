//! `floe mkfs --format squashfs`: the images are read back, without faults, and the options that belong to EROFS are refused.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use floe_testkit::Tree;
use tempfile::TempDir;

fn scene() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let tree = Tree { file_count: 20, file_bytes_max: 200_000, wide_directory_entries: 300, ..Tree::small(5) };
    tree.write(&folder.path().join("source")).expect("there is room");
    folder
}

fn floe(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    let output = command.args(arguments).current_dir(folder).output().expect("floe runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn mkfs(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    floe(folder, &[&["mkfs", "image", "source", "--format=squashfs"], arguments].concat())
}

#[test]
fn images_have_no_faults_and_hold_the_sources() {
    let scene = scene();
    let folder = scene.path();
    let mut last: Option<Vec<u8>> = None;
    for options in [
        &["-z", "gzip,1"][..],
        &["-z", "xz", "--dictionary=32k", "--fragments=tails"],
        &["-z", "lzma"],
        &["-z", "lzo", "-b4k"],
        &["-z", "lz4", "-b1M"],
        &["-z", "lz4hc", "--fragments=none"],
        &["-z", "zstd,level=1"],
        &["-z", "none"],
        &["-z", "zstd,1", "--time=77", "--all-root", "--no-xattrs"],
    ] {
        let told = mkfs(folder, &[options, &["--verify=full", "--json"]].concat()).expect("it is built");
        let told: serde_json::Value = serde_json::from_str(&told).expect("it is JSON");
        assert_eq!(told["verified_inodes"], told["inodes"], "{options:?}");
        assert!(told["verified_bytes"].as_u64() > Some(200_000) && told["uuid"].is_null(), "{options:?}: {told}");
        let checked = floe(folder, &["check", "image"]).expect("there are no faults");
        assert!(checked.contains("SquashFS") && checked.contains("no faults"), "{checked}");
        let bytes = fs::read(folder.join("image")).expect("it is there");
        assert!(last.replace(bytes.clone()) != Some(bytes), "{options:?} change nothing");
    }
}

#[test]
fn options_of_erofs_are_refused() {
    let scene = scene();
    for (options, expected) in [
        (&["--dedupe"][..], "--dedupe: SquashFS stores equal files once"),
        (&["--chunk=4k"], "--chunk is an option of EROFS"),
        (&["--inline-tails"], "--inline-tails is an option of EROFS"),
        (&["--extended-inodes"], "--extended-inodes is an option of EROFS"),
        (&["--label=x"], "--label is an option of EROFS"),
        (&["--fragments=all"], "--fragments all: SquashFS packs only ends of files"),
        (&["-z", "zstd", "--pcluster=64k"], "--pcluster is an option of EROFS"),
        (&["-z", "zstd", "--dictionary=64k"], "--dictionary has no effect"),
        (&["-z", "deflate"], "'deflate' is unknown: SquashFS has gzip, xz, lzma, lzo, lz4, lz4hc, zstd and none"),
        (&["-z", "lz4,3"], "lz4 has no levels"),
        (&["-z", "zstd,x"], "'x' is not a level"),
        (&["-z", "zstd,23"], "zstd level must be 1 to 22"),
        (&["-z", "gzip,0"], "gzip level must be 1 to 9"),
        (&["-z", "xz", "--dictionary=1M"], "the xz dictionary must not be larger than the block size"),
        (&["-b2k"], "the block size of SquashFS is a power of two from 4k to 1M"),
    ] {
        let told = mkfs(scene.path(), options).expect_err("it is refused");
        assert!(told.contains(expected) && told.lines().count() == 1, "{options:?}: {told}");
        assert!(!scene.path().join("image").exists(), "{options:?}");
    }
}

#[test]
fn a_hash_tree_follows_the_padding() {
    let scene = scene();
    symlink("nowhere", scene.path().join("source/link")).expect("there is room");
    mkfs(scene.path(), &["-z", "lz4", "--verity", "--quiet"]).expect("it is built");
    assert!(scene.path().join("image.dmverity").exists());
    floe(scene.path(), &["check", "image"]).expect("there are no faults");
}
