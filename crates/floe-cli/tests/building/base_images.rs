//! `floe mkfs --base`: a new version of an image refers to the data of the old one.

use std::{fs, os::unix::fs::FileExt, path::Path, process::Command};

use floe::OpenOptions;
use floe_testkit::{
    KernelMount, Tree, Versions, check_rows,
    corpus::{Format, Materialised},
    manifest::{Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::{
    image_sources::mkfs,
    mkfs_erofs::{FREE_DIRECTORIES, manifest_of},
};

/// A tree with 40 texts, in which a later version changes a few files.
fn make_versions(folder: &Path) {
    let tree = Tree { file_count: 12, file_bytes_max: 90_000, nesting_depth: 3, ..Tree::small(31) };
    for version in ["one", "two"] {
        let root = folder.join(version);
        tree.write(&root).expect("there is room");
        fs::create_dir(root.join("texts")).expect("made");
        for number in 0..40_usize {
            let line = |line: usize| format!("{version} {}\n", line * (number + 7919) % 100_003).replace("two", "one");
            let text: String = (0..number * 900).map(line).collect();
            fs::write(root.join(format!("texts/{number}")), text).expect("there is room");
        }
        let sparse = fs::File::create(root.join("sparse")).expect("there is room");
        sparse.write_all_at(&[7; 70_000], 3 << 20).expect("there is room");
        sparse.set_len((5 << 20) + 77).expect("there is room");
    }
    let two = folder.join("two");
    fs::rename(two.join("texts/30"), two.join("renamed")).expect("renamed");
    fs::remove_file(two.join("texts/31")).expect("removed");
    fs::write(two.join("texts/39"), "changed".repeat(5000)).expect("there is room");
    let changed = fs::File::options().write(true).open(two.join("texts/38")).expect("it is there");
    changed.write_all_at(b"changed", 100_000).expect("there is room");
}

/// What the kernel shows of an image with its base.
fn kernel_manifest(folder: &Path, image: &str, base: &str) -> Manifest {
    let devices = vec![folder.join(base)];
    let mount = KernelMount::new(&Materialised { path: folder.join(image), format: Format::Erofs, offset: 0, devices });
    let mount = mount.unwrap_or_else(|error| panic!("{error}"));
    without_places(walk::directory(&mount.path(), DirectoryWalk::default()).expect("it can be read"))
}

fn without_places(mut manifest: Manifest) -> Manifest {
    for (_, entry) in manifest.entries_mut() {
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
    }
    manifest
}

#[test]
fn a_new_version_refers_to_the_old_one() {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_versions(folder);
    let expected = walk::directory(&folder.join("two"), DirectoryWalk::default()).expect("it can be read");
    let expected = without_places(expected);
    let rows = [
        ("", "", 35),
        ("", "-z zstd,3", 35),
        ("-z lz4", "-z lz4", 45),
        ("-z zstd,3 -C 64k", "-z zstd,3 -C 64k", 45),
        ("-z lzma,1 -C 128k", "-z lz4", 60),
        ("-z deflate,1 -C 16k", "", 35),
        ("-z lz4hc,9 -C 64k --dedupe", "-z lz4hc,9 -C 64k --fragments tails", 60),
        ("--chunk 16k", "-z lz4", 35),
        ("-b 1k -z lz4", "-b 1k -z lz4", 45),
        // Ends of files next to inodes and in the packed inode are stored again.
        ("-z lz4 --inline-tails", "-z lz4 --inline-tails", 101),
        ("-z zstd,3 -C 64k --fragments all", "-z zstd,3 -C 64k --fragments all", 101),
    ];
    check_rows(
        &rows,
        |(old, new, _)| format!("{old} | {new}"),
        |(old, new, share_max)| {
            // Rows run side by side.
            let row = rows.iter().position(|row| (row.0, row.1) == (*old, *new)).expect("it is one of them");
            let [base, full, image, again] = ["old", "full", "new", "again"].map(|name| format!("{name}-{row}"));
            let built = [
                format!("{base} one {old}"),
                format!("{full} two {new}"),
                format!("{image} two --base {base} --verify full {new}"),
                format!("{again} two --base {base} --jobs 1 {new}"),
            ]
            .map(|arguments| mkfs(folder, &arguments));
            if let Some(error) = built.into_iter().find_map(Result::err) {
                return vec![error];
            }
            let bytes = |name: &str| fs::read(folder.join(name)).expect("it is there");
            let mut told = Vec::new();
            if bytes(&image) != bytes(&again) {
                told.push("the image depends on the number of jobs".to_owned());
            }
            let share = 100 * bytes(&image).len() / bytes(&full).len();
            if share > *share_max {
                told.push(format!("the image has {share} % of the bytes of a full one"));
            }
            let options = OpenOptions { devices: vec![folder.join(&base)], ..OpenOptions::default() };
            told.extend(differences(&expected, &manifest_of(&folder.join(&image), &options), &FREE_DIRECTORIES));
            told.extend(differences(&expected, &kernel_manifest(folder, &image, &base), &FREE_DIRECTORIES));
            if Need::PeerOf("fsck.erofs", Versions::Since("1.9")).missing().is_none() {
                let device = format!("--device={base}");
                let fsck = peer("fsck.erofs").expect("it is there");
                let checked = Command::new(fsck).args([&device, &image]).current_dir(folder).output();
                let checked = checked.expect("it runs");
                if !checked.status.success() {
                    told.push(format!("{checked:?}"));
                }
            }
            told
        },
    );
}

#[test]
fn unsuitable_bases_are_refused() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    Tree::small(5).write(&folder.join("tree")).expect("there is room");
    mkfs(folder, "old tree").expect("it is built");
    mkfs(folder, "old.sqfs tree --format squashfs").expect("it is built");
    let before = fs::read(folder.join("old")).expect("it is there");
    for (arguments, words) in [
        ("old tree --base old", "the output old is also the base"),
        ("new tree --base tree", "--base: tree is not an image"),
        ("new tree --base missing", "--base: missing is not an image"),
        ("new tree --base old.sqfs", "only EROFS images can be extra devices"),
        ("new tree --base old -b 1k", "its blocks have 4096 bytes, not 1024"),
        ("new tree --base old --format squashfs", "SquashFS has no extra devices"),
    ] {
        let error = mkfs(folder, arguments).expect_err(arguments);
        assert!(error.contains(words), "{arguments}: {error}");
        assert!(!folder.join("new").exists(), "{arguments}");
    }
    assert!(fs::read(folder.join("old")).expect("it is there") == before);
}
