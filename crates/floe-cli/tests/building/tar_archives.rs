//! Archives of images: `floe extract --tar`, `sqfs2tar` and `tar2sqfs`.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::{fs::FileExt, process::CommandExt},
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::OpenOptions;
use floe_testkit::{
    Tree,
    manifest::{Manifest, differences},
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};
use rustix::fs::XattrFlags;

use crate::mkfs_erofs::{FREE_DIRECTORIES, manifest_of};

/// Runs Floe, if `name` is `floe`, or as the drop-in program of that name.
fn run(folder: &Path, name: &str, arguments: &str, input: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0(name).args(arguments.split_whitespace()).current_dir(folder);
    let input = input.map_or_else(Stdio::null, |name| File::open(folder.join(name)).expect("it is there").into());
    command.stdin(input).output().expect("it runs")
}

/// Runs Floe, which must succeed, and keeps its output in a file.
fn keep(folder: &Path, name: &str, arguments: &str, target: &str) {
    let output = run(folder, name, arguments, None);
    assert!(output.status.success(), "{name} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    fs::write(folder.join(target), output.stdout).expect("written");
}

fn floe(folder: &Path, arguments: &str) -> String {
    let output = run(folder, "floe", arguments, None);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {text}");
    text
}

/// A tree with everything that an archive can hold, and a socket.
fn make_tree(root: &Path) {
    let tree = Tree {
        file_count: 12,
        file_bytes_max: 200_000,
        wide_directory_entries: 200,
        nesting_depth: 40,
        ..Tree::small(21)
    };
    tree.write(root).expect("there is room");
    let sparse = File::create(root.join("sparse")).expect("there is room");
    for offset in [1_000_000, 77_000_000] {
        sparse.write_all_at(b"data", offset).expect("there is room");
    }
    sparse.set_len(500 << 20).expect("there is room");
    fs::write(root.join("n".repeat(255)), "a long name").expect("there is room");
    std::os::unix::fs::symlink("t".repeat(300), root.join("long-link")).expect("made");
    fs::hard_link(root.join("n".repeat(255)), root.join("hard")).expect("made");
    let owned = root.join("owned");
    fs::write(&owned, vec![b'x'; 2_500_000]).expect("there is room");
    std::os::unix::fs::chown(&owned, Some(3_000_000), Some(4_000_000_000)).expect("changed");
    for (name, value) in [("user.a=b%c", &b"one\n=two\0"[..]), ("trusted.kept", b"")] {
        rustix::fs::setxattr(&owned, name, value, XattrFlags::empty()).expect("the file system has attributes");
    }
    let time = std::time::SystemTime::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    File::options().write(true).open(&owned).expect("opened").set_modified(time).expect("changed");
}

fn manifest(folder: &Path, image: &str) -> Manifest {
    manifest_of(&folder.join(image), &OpenOptions::default())
}

/// A manifest without sockets, which archives cannot hold.
fn without_sockets(manifest: &Manifest) -> Manifest {
    let mut kept = Manifest::default();
    for (path, entry) in manifest.entries().map(|(path, _)| path).collect::<Vec<_>>().into_iter().filter_map(|path| {
        let entry = manifest.entry(path)?;
        (entry.file_type != 's').then_some((path, entry))
    }) {
        kept.insert(path.to_vec(), entry.clone());
    }
    kept
}

#[test]
fn an_archive_has_what_the_image_has() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_tree(&folder.join("source"));
    for (image, options) in
        [("image.erofs", "-z lz4hc -C 64k --fragments tails"), ("image.sqfs", "--format squashfs -z lz4")]
    {
        floe(folder, &format!("mkfs --quiet {image} source {options}"));
        let told = floe(folder, &format!("extract {image} --quiet --tar archive.tar"));
        assert!(told.contains("socket: a tar archive cannot hold sockets; it was left out"), "{told}");
        assert!(fs::metadata(folder.join("archive.tar")).expect("it is there").len() < 70 << 20, "holes became data");
        // Any number of threads, and a pipe, make no difference.
        keep(folder, "floe", &format!("extract {image} --tar - --jobs 1"), "again.tar");
        let bytes = ["archive.tar", "again.tar"].map(|name| fs::read(folder.join(name)).expect("it is there"));
        assert!(bytes[0] == bytes[1], "{image}: the archives differ");
        // Back into an image.
        floe(folder, &format!("mkfs --quiet again {} archive.tar", options));
        let expected = without_sockets(&manifest(folder, image));
        assert_eq!(
            differences(&expected, &manifest(folder, "again"), &FREE_DIRECTORIES),
            Vec::<String>::new(),
            "{image}"
        );
    }
}

#[test]
fn gnu_tar_extracts_an_archive() {
    if !skip::ready(&[Need::Root]) {
        return;
    }
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    make_tree(&folder.join("source"));
    // GNU tar cannot set this name.
    fs::remove_file(folder.join("source/odd/socket")).expect("it is there");
    floe(folder, "mkfs --quiet image source -z lz4");
    floe(folder, "extract image --quiet --tar archive.tar");
    fs::create_dir(folder.join("out")).expect("made");
    let mut command = Command::new("tar");
    command.args(["--xattrs", "--xattrs-include=*", "--same-owner", "--same-permissions", "--numeric-owner"]);
    let output = command.args(["-xf", "archive.tar", "-C", "out"]).current_dir(folder).output().expect("there is tar");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let walked = |name: &str| {
        let mut manifest = walk::directory(&folder.join(name), DirectoryWalk::default()).expect("it can be read");
        for (_, entry) in manifest.entries_mut() {
            (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
        }
        manifest
    };
    assert_eq!(differences(&walked("source"), &walked("out"), &FREE_DIRECTORIES), Vec::<String>::new());
    let sparse = fs::metadata(folder.join("out/sparse")).expect("it is there");
    assert!(std::os::unix::fs::MetadataExt::blocks(&sparse) * 512 < 1 << 20, "holes became data");
}

#[test]
fn parts_of_an_image_become_an_archive() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    for name in ["source/usr/share/doc/one", "source/usr/lib/two", "source/etc/three"] {
        fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("made");
        fs::write(folder.join(name), name).expect("written");
    }
    std::os::unix::fs::symlink("usr", folder.join("source/link")).expect("made");
    floe(folder, "mkfs --quiet image.sqfs source --format squashfs");
    let listed = |archive: &str| {
        let output = Command::new("tar").args(["-tf", archive]).current_dir(folder).output().expect("there is tar");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (name, arguments, expected) in [
        (
            "floe",
            "extract image.sqfs /usr/share /etc/three --tar -",
            "./ ./etc/ ./etc/three ./usr/ ./usr/share/ ./usr/share/doc/ ./usr/share/doc/one",
        ),
        ("floe", "extract image.sqfs etc --tar -", "./ ./etc/ ./etc/three"),
        (
            "sqfs2tar",
            "image.sqfs",
            "etc/ etc/three link usr/ usr/lib/ usr/lib/two usr/share/ usr/share/doc/ usr/share/doc/one",
        ),
        ("sqfs2tar", "-d usr/lib image.sqfs", "two"),
        ("sqfs2tar", "-kd /usr/lib image.sqfs", "usr/ usr/lib/ usr/lib/two"),
        ("sqfs2tar", "--subdir=etc --subdir=usr/lib image.sqfs", "etc/ etc/three usr/ usr/lib/ usr/lib/two"),
        ("sqfs2tar", "-r . -d etc image.sqfs", "./ ./three"),
        ("sqfs2tar", "--root-becomes new/root --subdir etc image.sqfs", "new/root/ new/root/three"),
    ] {
        keep(folder, name, arguments, "archive.tar");
        assert_eq!(listed("archive.tar"), expected, "{name} {arguments}");
    }
    for (name, arguments, code, expected) in [
        ("floe", "extract image.sqfs /no --tar out.tar", 1, "no such file or directory in the image"),
        ("floe", "extract image.sqfs /link/lib --tar out.tar", 1, "not a directory"),
        ("floe", "extract image.sqfs --tar out.tar -C x", 2, "cannot be used with"),
        ("floe", "extract image.sqfs --tar no/out.tar", 1, "cannot write no/out.tar"),
        ("sqfs2tar", "-c gzip image.sqfs", 1, "--compressor is not offered by floe: pipe it into"),
        ("sqfs2tar", "", 1, "Missing argument: squashfs image"),
        ("sqfs2tar", "image.sqfs more", 1, "Unknown extra argument"),
        ("sqfs2tar", "--wrong image.sqfs", 1, "unrecognized option"),
        ("sqfs2tar", "-d ../x image.sqfs", 1, "Invalid name"),
        ("sqfs2tar", "source/etc/three", 1, "not an EROFS or SquashFS image"),
    ] {
        let output = run(folder, name, arguments, None);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && told.contains(expected), "{name} {arguments}: {output:?}");
        assert!(!folder.join("out.tar").exists(), "{arguments}");
    }
}

#[test]
fn an_archive_that_cannot_be_completed_has_no_end() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    fs::create_dir(folder.join("source")).expect("made");
    let bytes: Vec<u8> =
        (0..400_000_u32).flat_map(|number| format!("{}\n", u64::from(number).pow(3)).into_bytes()).collect();
    fs::write(folder.join("source/file"), &bytes).expect("written");
    floe(folder, "mkfs --quiet image source -z gzip,1 --format squashfs");
    let mut image = fs::read(folder.join("image")).expect("it is there");
    // The first blocks are those of the file.
    image[200..2000].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(folder.join("image"), &image).expect("written");
    let output = run(folder, "floe", "extract image --tar -", None);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("/file") && told.contains("the archive has no end"), "{told}");
    assert!(!output.stdout.ends_with(&[0; 1024]));
    let output = run(folder, "floe", "extract image --tar out.tar", None);
    assert!(!output.status.success() && !folder.join("out.tar").exists());
}

#[test]
fn archives_become_images_as_the_options_say() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    for name in ["source/root/etc/file", "source/root/cache/x", "source/other"] {
        fs::create_dir_all(folder.join(name).parent().expect("a folder")).expect("made");
        fs::write(folder.join(name), name).expect("written");
    }
    for (target, name) in [("/root/etc/file", "inside"), ("root/etc", "relative"), ("/other", "outside")] {
        std::os::unix::fs::symlink(target, folder.join("source/root").join(name)).expect("made");
    }
    let members = ["root/etc/file", "root/cache", "root/inside", "root/relative", "root/outside", "other"];
    let mut tar = Command::new("tar");
    tar.args(["--mtime=@1234567890", "-cf", "archive.tar", "-C", "source"]).args(members);
    let tar = tar.current_dir(folder).status();
    assert!(tar.expect("there is tar").success());
    let build = |options: &str| {
        let output = run(folder, "tar2sqfs", &format!("-qf image {options}"), Some("archive.tar"));
        assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
        manifest(folder, "image")
    };
    let plain = build("");
    assert!(plain.entry(b"/root/etc/file").is_some() && plain.entry(b"/other").is_some());
    let implied = plain.entry(b"/root/etc").expect("it is implied");
    assert_eq!((implied.mode, implied.uid, implied.modified), (0o755, 0, (0, 0)));
    let chosen = build("-d uid=7,gid=0x8,mode=0700,mtime=99 -r root -c zstd -X level=3 -b 64K -j 1 -e -T");
    let root = chosen.entry(b"/etc").expect("it is there");
    assert_eq!((root.mode, root.uid, root.gid, root.modified), (0o700, 7, 8, (99, 0)));
    assert!(chosen.entry(b"/other").is_none());
    let target = |manifest: &Manifest, path: &[u8]| manifest.entry(path).and_then(|entry| entry.target.clone());
    assert_eq!(target(&chosen, b"/inside").as_deref(), Some(&b"/etc/file"[..]));
    assert_eq!(target(&chosen, b"/relative").as_deref(), Some(&b"/etc"[..]));
    assert_eq!(target(&chosen, b"/outside").as_deref(), Some(&b"/other"[..]));
    let kept = build("-S --root-becomes ./root/ -k -E root/cache --compressor gzip --comp-extra level=1,rle");
    assert_eq!(target(&kept, b"/inside").as_deref(), Some(&b"/root/etc/file"[..]));
    assert!(kept.entry(b"/cache").is_none() && kept.entry(b"/etc/file").is_some_and(|entry| entry.modified == (0, 0)));
    for (options, expected) in [
        ("image", "it exists: use --force to replace it"),
        ("new -c bzip2", "Unsupported compressor 'bzip2'"),
        ("new -X level=3", "level=3 is not offered by floe"),
        ("new -r nothing", "nothing: the source has no such directory"),
        ("new -B 64K", "--dev-block-size 64K is not offered by floe"),
        ("new -d mode", "Missing value for option mode"),
        ("new -b 5000", "Block size 5000 is invalid"),
        ("", "Missing argument: squashfs image"),
    ] {
        let output = run(folder, "tar2sqfs", options, Some("archive.tar"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains(expected), "{options}: {output:?}");
        assert!(!folder.join("new").exists(), "{options}");
    }
}

#[test]
fn a_closed_pipe_ends_an_archive_quietly() {
    let scene = tempfile::tempdir().expect("a folder");
    let folder = scene.path();
    fs::create_dir(folder.join("source")).expect("made");
    fs::write(folder.join("source/file"), vec![7; 30_000_000]).expect("written");
    floe(folder, "mkfs --quiet image source");
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(["extract", "image", "--tar", "-"]).current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    io::stdout().flush().expect("flushed");
}
