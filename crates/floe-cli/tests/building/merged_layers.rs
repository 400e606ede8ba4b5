//! Floe under the name mkfs.erofs: merges images of layers, and refers to archives, as the original does.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use floe::OpenOptions;
use floe_testkit::{
    KernelMount, Tree, Versions,
    corpus::{Format, Materialised},
    manifest::{Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::{
    mkfs_erofs::{FREE_DIRECTORIES, manifest_of},
    support::mkfs_erofs::{ours, theirs},
};

fn done(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

/// What Floe reads of an image. The attributes of the root differ from those of the original.
fn manifest(folder: &Path, image: &str, devices: &[&str]) -> Manifest {
    let devices = devices.iter().map(|device| folder.join(device)).collect();
    without_root(manifest_of(&folder.join(image), &OpenOptions { devices, ..OpenOptions::default() }))
}

fn without_root(mut manifest: Manifest) -> Manifest {
    for (path, entry) in manifest.entries_mut() {
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
        if path == b"/" {
            (entry.mode, entry.uid, entry.gid, entry.modified) = (0, 0, 0, (0, 0));
            entry.xattrs.clear();
        }
    }
    manifest
}

/// What the kernel reads of an image.
fn kernel_manifest(folder: &Path, image: &str, devices: &[&str]) -> Manifest {
    let devices = devices.iter().map(|device| folder.join(device)).collect::<Vec<PathBuf>>();
    let mount = KernelMount::new(&Materialised { path: folder.join(image), format: Format::Erofs, offset: 0, devices });
    let mount = mount.unwrap_or_else(|error| panic!("{error}"));
    without_root(walk::directory(&mount.path(), DirectoryWalk::default()).expect("it can be read"))
}

fn tar(folder: &Path, directory: &str) {
    let archive = format!("{directory}.tar");
    let mut command = Command::new("tar");
    command.args(["--format=pax", "--xattrs", "--xattrs-include=*", "-cf", &archive, "-C", directory, "."]);
    assert!(command.current_dir(folder).status().expect("there is tar").success());
}

/// Three layers as archives, with whiteouts of all kinds.
fn make_layers(folder: &Path) {
    let tree = Tree {
        file_count: 12,
        file_bytes_max: 90_000,
        wide_directory_entries: 40,
        nesting_depth: 3,
        oddities: false,
        ..Tree::small(4)
    };
    tree.write(&folder.join("one")).expect("there is room");
    for name in [
        "one/dir/gone",
        "one/dir/kept",
        "one/dir/changed",
        "one/opaque/old",
        "one/opaque/deep/old",
        "one/file-to-dir",
        "one/dir-to-file/x",
        "one/back/inside",
        "one/link-source",
        "two/dir/.wh.gone",
        "two/dir/changed",
        "two/opaque/.wh..wh..opq",
        "two/opaque/new",
        "two/file-to-dir/y",
        "two/dir-to-file",
        "two/.wh.back",
        "two/only/.wh.nothing",
        "three/back/again",
        "three/dir/third",
        "three/opaque/third",
    ] {
        fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("made");
        // The original takes the content of a whiteout for the next header.
        let text = if name.contains(".wh.") { String::new() } else { name.repeat(700) };
        fs::write(folder.join(name), text).expect("written");
    }
    fs::hard_link(folder.join("one/link-source"), folder.join("one/dir/link")).expect("made");
    symlink("target", folder.join("two/dir/symlink")).expect("made");
    ["one", "two", "three"].iter().for_each(|layer| tar(folder, layer));
}

const LAYERS: [&str; 3] = ["one.erofs", "two.erofs", "three.erofs"];

fn build_layers(folder: &Path, program: fn(&Path, &str, &[(&str, &str)]) -> Output, flags: &str) {
    for layer in ["one", "two", "three"] {
        let flags = format!("--quiet --aufs --tar=f -Eforce-inode-extended {flags} {layer}.erofs {layer}.tar");
        done(program(folder, &flags, &[]));
    }
}

#[test]
fn layers_merge_as_in_the_original() {
    if !skip::ready(&[Need::Root, Need::KernelErofs, Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    for builder in [theirs as fn(&Path, &str, &[(&str, &str)]) -> Output, ours] {
        build_layers(folder, builder, "-Enoinline_data");
        for options in ["--ovlfs-strip=1", "--aufs --ovlfs-strip=1", "", "--ovlfs-strip=1 --all-root -T1600000000"] {
            let flags = format!("-d1 --quiet -Eforce-inode-extended {options}");
            done(ours(folder, &format!("{flags} ours {}", LAYERS.join(" ")), &[]));
            done(theirs(folder, &format!("{flags} theirs {}", LAYERS.join(" ")), &[]));
            let mut manifests = ["theirs", "ours"].map(|image| manifest(folder, image, &LAYERS));
            if options.is_empty() {
                // The original forgets that a whiteout or an opaque directory of a lower layer was there.
                for (_, entry) in manifests[1].entries_mut().filter(|(path, _)| matches!(*path, b"/back" | b"/opaque"))
                {
                    let mark = entry.xattrs.remove(&b"trusted.overlay.opaque"[..]);
                    assert_eq!(mark.as_deref(), Some(&b"y"[..]));
                }
            }
            let told = differences(&manifests[0], &manifests[1], &FREE_DIRECTORIES);
            assert_eq!(told, Vec::<String>::new(), "{options}");
            if !options.is_empty() {
                let told = differences(&manifests[1], &kernel_manifest(folder, "ours", &LAYERS), &FREE_DIRECTORIES);
                assert_eq!(told, Vec::<String>::new(), "{options}: the kernel");
            }
        }
    }
    let merged = manifest(folder, "ours", &LAYERS);
    for (path, is_there) in [
        ("/dir/gone", false),
        ("/dir/kept", true),
        ("/opaque/old", false),
        ("/opaque/deep", false),
        ("/opaque/new", true),
        ("/opaque/third", true),
        ("/back/inside", false),
        ("/back/again", true),
        ("/file-to-dir/y", true),
        ("/dir-to-file/x", false),
        ("/only/nothing", false),
        ("/dir/link", true),
    ] {
        assert_eq!(merged.entry(path.as_bytes()).is_some(), is_there, "{path}");
    }
    assert!(fs::metadata(folder.join("ours")).expect("it is there").len() < 100 << 10);
}

#[test]
fn layers_of_any_kind_merge_with_their_data() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    build_layers(folder, ours, "-Enoinline_data");
    done(ours(folder, &format!("--quiet --ovlfs-strip=1 -Eforce-inode-extended expected {}", LAYERS.join(" ")), &[]));
    let expected = manifest(folder, "expected", &LAYERS);
    for (flags, merge) in [
        ("", ""),
        ("-zlz4hc -C65536 -Efragments,ztailpacking", "-zlz4"),
        ("-zzstd -Eall-fragments,dedupe", "-zlz4hc -C16384 -Ededupe"),
        ("--chunksize=4096", "--chunksize=8192"),
        ("-b1024 -zlz4", "-zlz4 -Eforce-inode-extended"),
    ] {
        build_layers(folder, ours, flags);
        let flags = format!("--quiet --clean=data --ovlfs-strip=1 -Eforce-inode-extended {merge} merged");
        done(ours(folder, &format!("{flags} {}", LAYERS.join(" ")), &[]));
        let told = differences(&expected, &manifest(folder, "merged", &[]), &FREE_DIRECTORIES);
        assert_eq!(told, Vec::<String>::new(), "{flags}");
    }
}

#[test]
fn layers_that_cannot_be_devices_are_refused() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    Tree::small(8).write(&folder.join("tree")).expect("there is room");
    fs::create_dir(folder.join("text")).expect("made");
    fs::write(folder.join("text/file"), "text ".repeat(30_000)).expect("written");
    done(ours(folder, "--quiet -zlz4 packed text", &[]));
    for (layer, flags) in [("plain", "-Enoinline_data"), ("inline", ""), ("small", "-Enoinline_data -b1024")] {
        done(ours(folder, &format!("--quiet {flags} {layer} tree"), &[]));
    }
    for (flags, operands, expected) in [
        ("", "plain packed", "it is compressed; only plain blocks can be on an extra device"),
        ("", "plain inline", "its end is stored next to its inode; build the image with -Enoinline_data"),
        ("", "small plain", "its blocks have 1024 bytes, not 4096"),
        ("", "plain tree/wide", "tree/wide"),
        ("", "plain nothing", "nothing"),
        ("--clean=rvsp", "plain plain", "--clean=rvsp is not offered by floe"),
        ("--tar=i", "", "--tar=i needs a file"),
        ("", "tree tree", "unexpected argument: tree"),
    ] {
        let output = ours(folder, &format!("--quiet {flags} merged {operands}"), &[]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains(expected), "{flags} {operands}: {output:?}");
        assert!(!folder.join("merged").exists(), "{flags} {operands}");
    }
}

#[test]
fn an_image_refers_to_an_archive_as_in_the_original() {
    if !skip::ready(&[Need::Root, Need::KernelErofs, Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_layers(folder);
    done(ours(folder, "--quiet --tar=i -Eforce-inode-extended ours one.tar", &[]));
    done(theirs(folder, "--quiet --tar=i -Eforce-inode-extended theirs one.tar", &[]));
    let manifests = ["theirs", "ours"].map(|image| manifest(folder, image, &["one.tar"]));
    assert_eq!(differences(&manifests[0], &manifests[1], &FREE_DIRECTORIES), Vec::<String>::new());
    assert!(fs::metadata(folder.join("ours")).expect("it is there").len() < 100 << 10);
    // The kernel mounts blocks of 512 bytes from a device only.
    let told = differences(&manifests[1], &kernel_manifest(folder, "ours", &["one.tar"]), &FREE_DIRECTORIES);
    assert_eq!(told, Vec::<String>::new());
    assert!(Command::new("gzip").args(["-kf", "one.tar"]).current_dir(folder).status().expect("it runs").success());
    let output = ours(folder, "--quiet --tar=i image one.tar.gz", &[]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && told.contains("a compressed archive cannot be an extra device"),
        "{told}"
    );
}
