//! By the name of mkfs.erofs: the same options give images with the same content, and the same exit codes.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use floe::{ByteRange, Image, OpenOptions};
use floe_testkit::{
    Tree, Versions, check_rows,
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk,
};

fn ours(folder: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    run(command.arg0("mkfs.erofs").envs(environment.iter().copied()), folder, arguments)
}

fn theirs(folder: &Path, arguments: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(peer("mkfs.erofs").expect("it was asked for"));
    run(command.envs(environment.iter().copied()), folder, arguments)
}

fn run(command: &mut Command, folder: &Path, arguments: &str) -> Output {
    command.args(arguments.split_whitespace()).current_dir(folder).stdin(Stdio::null()).output().expect("it runs")
}

fn manifest(image: &Path, device: Option<&Path>) -> Manifest {
    let devices = device.map(Path::to_path_buf).into_iter().collect();
    let options = OpenOptions { devices, ..OpenOptions::default() };
    let image = Image::open(image, &options).unwrap_or_else(|error| panic!("{error}"));
    let read = |nid, range: ByteRange| {
        let mut bytes = vec![0; range.len() as usize];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    let mut manifest = walk::image(image.file_system().as_ref(), &read).expect("walked");
    for (_, entry) in manifest.entries_mut() {
        // Where things are is each one's own.
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
    }
    manifest
}

/// A tree, and an archive of it.
fn scene() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    Tree::small(20).write(&folder.path().join("source")).expect("written");
    fs::create_dir_all(folder.path().join("source/docs/deep")).expect("made");
    for name in ["source/docs/a.txt", "source/docs/deep/b.txt", "source/docs/c.md"] {
        fs::write(folder.path().join(name), name.repeat(1000)).expect("written");
    }
    fs::write(folder.path().join("hints"), "# some\n16384 \\.md$\n0 ^docs/deep/\n").expect("written");
    let tar = Command::new("tar")
        .args(["--format=pax", "-cf", "source.tar", "-C", "source", "."])
        .current_dir(folder.path())
        .output()
        .expect("there is tar");
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    folder
}

/// Options and a source for which both are to give the same content.
const SAME: [&str; 29] = [
    "source",
    "-b512 source",
    "-b 1024 -Enoinline_data source",
    "-zlz4 source",
    "-z lz4hc,level=12 -C65536 source",
    "-zlz4hc,9 -C65536 -Eztailpacking,fragments,dedupe source",
    "-zzstd,3 -C65536 -Eztailpacking,fragments source",
    "-zlzma,6 -C1048576 -Eall-fragments,dedupe source",
    "-zlzma,level=106,dictsize=65536 -C65536 source",
    "-zdeflate,9 -C16384 source",
    "-zlz4:zstd -C16384 source",
    "-zlz4hc --compress-hints=hints source",
    "-zlz4 -Elegacy-compress source",
    "-zlz4 --zfeature-bits=6 -C16384 source",
    "-zlz4 -E48bit source",
    "-T1600000000 --all-root source",
    "-T1600000000 --mkfs-time source",
    "--ignore-mtime -T1600000000 -L name source",
    "-Eforce-inode-extended -U1b4e28ba-2fa1-11d2-883f-0016d3cca427 source",
    "-x-1 source",
    "-x0 source",
    "--xattr-prefix=user. -Exattr-name-filter source",
    "--force-uid=10 --force-gid=20 --uid-offset=1000 --gid-offset=100000 source",
    "--exclude-path=docs/deep source",
    "--exclude-regex=\\.txt$ source",
    "--chunksize=4096 -Eforce-chunk-indexes source",
    "--tar=f source.tar",
    "--tar=f -zlz4hc -C16384 --sort=path source.tar",
    "--workers=3 --clean=data -zlz4 source",
];

#[test]
fn the_same_options_give_the_same_content() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    check_rows(
        &SAME,
        |options| format!("mkfs.erofs {options}"),
        |&options| {
            let (flags, source) = options.rsplit_once(' ').unwrap_or(("", options));
            // Nanoseconds need inodes of the larger form, which the original does not choose for them.
            let flags =
                if flags.contains("-T16") { flags.to_owned() } else { format!("-Eforce-inode-extended {flags}") };
            let mut manifests = Vec::new();
            let place = SAME.iter().position(|row| *row == options).expect("it is one of them");
            for (image, program) in [("ours", ours as fn(&Path, &str, &[_]) -> Output), ("theirs", theirs)] {
                let image = &format!("{image}-{place}");
                let output = program(folder, &format!("--quiet {flags} {image} {source}"), &[]);
                if !output.status.success() || !output.stdout.is_empty() {
                    return vec![format!("{image}: {output:?}")];
                }
                manifests.push(manifest(&folder.join(image), None));
            }
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            differences(&manifests[1], &manifests[0], &comparison)
        },
    );
}

#[test]
fn times_are_held_back_by_the_environment() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = scene();
    let environment = [("SOURCE_DATE_EPOCH", "1500000000")];
    let manifests = [("ours", ours as fn(&Path, &str, &[_]) -> Output), ("theirs", theirs)].map(|(image, program)| {
        let output = program(scene.path(), &format!("-Eforce-inode-extended {image} source"), &environment);
        assert!(output.status.success(), "{output:?}");
        manifest(&scene.path().join(image), None)
    });
    let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
    assert_eq!(differences(&manifests[1], &manifests[0], &comparison), Vec::<String>::new());
}

#[test]
fn chunks_go_to_a_device() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    let manifests = [("ours", ours as fn(&Path, &str, &[_]) -> Output), ("theirs", theirs)].map(|(image, program)| {
        let flags = format!("--quiet -Eforce-inode-extended --chunksize=8192 --blobdev={image}.blob {image} source");
        let output = program(folder, &flags, &[]);
        assert!(output.status.success(), "{output:?}");
        manifest(&folder.join(image), Some(&folder.join(format!("{image}.blob"))))
    });
    let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
    assert_eq!(differences(&manifests[1], &manifests[0], &comparison), Vec::<String>::new());
}

/// Wrong calls, which both end in the same way.
const WRONG: [&str; 21] = [
    "",
    "image",
    "image missing",
    "image source source",
    "-zbrotli image source",
    "-zlz4hc,99 image source",
    "-b256 image source",
    "-b x image source",
    "-C 0x image source",
    "-C 1000 -zlz4 image source",
    "-d10 image source",
    "-Enothing image source",
    "-Efragments= image source",
    "-L sixteen-letters- image source",
    "-Tx image source",
    "-U 1234 image source",
    "--chunksize=5000 image source",
    "--blobdev=blob image source",
    "--force-uid=x image source",
    "--nothing image source",
    "--tar=f image missing",
];

#[test]
fn wrong_calls_end_as_the_originals() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Series("1.9"))]) {
        return;
    }
    let scene = scene();
    check_rows(
        &WRONG,
        |arguments| format!("mkfs.erofs {arguments}"),
        |&arguments| {
            let place = WRONG.iter().position(|row| *row == arguments).expect("it is one of them");
            let image = format!("image-{place}");
            let arguments = &arguments.replace("image", &image);
            let found = ours(scene.path(), arguments, &[]);
            let left = scene.path().join(&image).exists();
            let expected = theirs(scene.path(), arguments, &[]);
            let mut told = Vec::new();
            if found.status.code() != expected.status.code() {
                told.push(format!("{} instead of {}: {found:?}", found.status, expected.status));
            }
            if found.stderr.is_empty() || left {
                told.push(format!("nothing is told, or there is an image: {found:?}"));
            }
            told
        },
    );
}

#[test]
fn what_is_not_offered_is_refused_by_name() {
    let scene = scene();
    for (arguments, words) in [
        ("-m4096 image source", "-m is not offered"),
        ("--incremental=data image source", "--incremental is not offered"),
        ("--tar=i image source.tar", "--tar=i is not offered"),
        ("--dsunit=512 image source", "--dsunit is not offered"),
        ("-Edot-omitted image source", "dot-omitted is not offered"),
        ("-zlz4 -Efragments=65536 image source", "other than -C is not offered"),
        ("--clean=rvsp image source", "--clean is not offered"),
        ("--exclude-regex=( image source", "no regular expression"),
        ("image source.tar", "for an archive give --tar"),
    ] {
        let output = ours(scene.path(), arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.starts_with("<E> erofs: ") && said.contains(words), "{arguments}: {said}");
        assert!(!scene.path().join("image").exists(), "{arguments}");
    }
}
