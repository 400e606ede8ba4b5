//! Floe under the name mkfs.erofs: the same options give images with the same content, and the same exit codes.

use std::{path::Path, process::Output};

use floe::{ByteRange, Image, OpenOptions};
use floe_testkit::{
    Tree, Versions, check_rows,
    manifest::{Comparison, Manifest, differences},
    skip::{self, Need},
    walk,
};

use crate::support::mkfs_erofs::{ours, scene, scene_of, theirs};

fn manifest(image: &Path, device: Option<&Path>) -> Manifest {
    let devices = device.map(Path::to_path_buf).into_iter().collect();
    manifest_of(image, &OpenOptions { devices, ..OpenOptions::default() })
}

/// The tree of an image without the locations of its data.
pub(crate) fn manifest_of(image: &Path, options: &OpenOptions) -> Manifest {
    let image = Image::open(image, options).unwrap_or_else(|error| panic!("{error}"));
    let read = |nid, range: ByteRange| {
        let mut bytes = vec![0; range.len() as usize];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    let mut manifest = walk::image(image.file_system().as_ref(), &read).expect("walked");
    for (_, entry) in manifest.entries_mut() {
        // Locations may differ.
        (entry.inode_number, entry.blocks_512, entry.segments) = (None, None, None);
    }
    manifest
}

/// Equal trees, whose directories may have other sizes.
pub(crate) const FREE_DIRECTORIES: Comparison = Comparison {
    directory_shape_is_free: true,
    privileges_are_free: false,
    xattrs_are_free: false,
    links_are_free: false,
};

/// Options and a source for which both programs must give the same content.
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
    check_same(&scene_of(&small_tree()), &SAME);
}

/// A tree that is fast to walk and to compress, because each row builds two images of it.
fn small_tree() -> Tree {
    Tree { file_count: 30, file_bytes_max: 60_000, wide_directory_entries: 150, nesting_depth: 5, ..Tree::small(20) }
}

/// Builds images with both programs, and compares them.
fn check_same(scene: &tempfile::TempDir, rows: &[&str]) {
    let folder = scene.path();
    check_rows(
        rows,
        |options| format!("mkfs.erofs {options}"),
        |&options| {
            let (flags, source) = options.rsplit_once(' ').unwrap_or(("", options));
            // Nanoseconds need the extended inode form, which the original does not choose because of them.
            let flags =
                if flags.contains("-T16") { flags.to_owned() } else { format!("-Eforce-inode-extended {flags}") };
            let mut manifests = Vec::new();
            let place = rows.iter().position(|row| *row == options).expect("it is one of them");
            for (image, program) in [("ours", ours as fn(&Path, &str, &[_]) -> Output), ("theirs", theirs)] {
                let image = &format!("{image}-{place}");
                let output = program(folder, &format!("--quiet {flags} {image} {source}"), &[]);
                if !output.status.success() || !output.stdout.is_empty() {
                    return vec![format!("{image}: {output:?}")];
                }
                manifests.push(manifest(&folder.join(image), None));
            }
            differences(&manifests[1], &manifests[0], &FREE_DIRECTORIES)
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
    assert_eq!(differences(&manifests[1], &manifests[0], &FREE_DIRECTORIES), Vec::<String>::new());
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
    assert_eq!(differences(&manifests[1], &manifests[0], &FREE_DIRECTORIES), Vec::<String>::new());
}

/// More options, for a smaller tree.
const SAME_TOO: [&str; 38] = [
    "-zlz4hc --compress-hints=blanks source",
    "-zlz4hc --compress-hints=sizes source",
    "-zlz4 -Enosbcrc source",
    "--mount-point=/system/ source",
    "-zlz4hc -C16384 --max-extent-bytes=8192 source",
    "-zlz4hc -C16384 -Efragments --max-extent-bytes=20k source",
    "-zzstd -C16384 -E48bit --max-extent-bytes=30000 source",
    "-zlz4 --max-extent-bytes=0 source",
    "--ovlfs-strip source",
    "--ovlfs-strip=1 -x-1 source",
    "--ovlfs-strip=0 source",
    "--tar=f --ovlfs-strip source.tar",
    "--hard-dereference source",
    "--hard-dereference -zlz4 source",
    "--tar=f --hard-dereference source.tar",
    "--fsalignblks=5 source",
    "--root-xattr-isize=200 source",
    "--root-xattr-isize=4000 -E^xattr-name-filter source",
    "--zD source",
    "--zD=0 -zlz4 source",
    "--zD=1 source",
    "--zD=1 -zlz4hc -C16384 -Efragments source",
    "--MZ -zlz4 source",
    "--MZ=id --dsunit=16 -zlz4 source",
    "-m4096 source",
    "-m4096 -zlz4 -Eztailpacking source",
    "-zlz4 -C16384 -m8k:zstd,level=5 -Efragments source",
    "-zlz4:zstd -C65536 -m16384:1 --zD=1 -Efragments=16384 source",
    "-zdeflate,dictsize=32768 source",
    "-zzstd,dictsize=0 source",
    "-Eztailpacking source",
    "-Eall-fragments,dedupe source",
    "-Efragments=8192 source",
    "--zfeature-bits=4 source",
    "--compress-hints=hints source",
    "-zlz4 --chunksize=4096 source",
    "--xattr-prefix=foo source",
    "-E^dot-omitted source",
];

#[test]
fn rarer_options_give_the_same_content() {
    if skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Since("1.9"))]) {
        check_same(&scene_of(&small_tree()), &SAME_TOO);
    }
}

/// Wrong calls, which end in the same way with both programs.
const WRONG: [&str; 42] = [
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
    "--quiet=yes image source",
    "--exclude=docs image source",
    "--max-extent-bytes=1 -zlz4 image source",
    "--root-xattr-isize=65533 image source",
    "--fsalignblks=x image source",
    "--MZ=d image source",
    "--MZ=x image source",
    "-m0 image source",
    "-m8192 -zlz4 image source",
    "-zlz4,1 image source",
    "-zdeflate,10 image source",
    "-zlz4 -Efragments=65536 image source",
    "-zlz4,dictsize=4096 image source",
    "-zlz4hc,level=12,dictsize=4096 image source",
    "-zdeflate,dictsize=1000 image source",
    "-zlibdeflate,dictsize=32768 image source",
    "-zzstd,dictsize=5000 image source",
    "-zzstd,dictsize=1048577 image source",
    "--compress-hints=missing image source",
    "--force-uid=4294967295 image source",
    "--force-gid=4294967295 image source",
];

#[test]
fn wrong_usage_ends_as_in_the_original() {
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
                told.push(format!("no message, or an image in spite of it: {found:?}"));
            }
            told
        },
    );
}

#[test]
fn unsupported_options_are_refused_in_one_line() {
    let scene = scene();
    std::fs::write(scene.path().join("large"), "4096 a\n2097152 b\n").expect("written");
    std::fs::write(scene.path().join("bare"), "5000\n").expect("written");
    for (arguments, words) in [
        ("--tar=0 image source.tar", "--tar=0 is not offered by floe: images without data"),
        ("--clean=rvsp image source", "--clean=rvsp is not offered by floe: images without data"),
        ("--s3=http://host image bucket", "--s3 is not offered by floe: sources are local"),
        ("--ungzip=copy --tar image source.tar", "--ungzip is not offered by floe: floe writes no copy"),
        ("-zlz4 -E48bit --max-extent-bytes=-8192 image source", "pclusters always begin with a block"),
        ("-Edot-omitted image source", "dot-omitted is not offered by floe: each directory has an entry for itself"),
        ("-zdeflate,dictsize=4096 image source", "the window of deflate is 32768 bytes; omit dictsize"),
        ("-zlzma,lc=2 image source", "-zlzma,lc=2 is not offered by floe: lc cannot be set"),
    ] {
        let output = ours(scene.path(), arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.starts_with("<E> erofs: ") && said.contains(words), "{arguments}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments}: {said}");
        assert!(!scene.path().join("image").exists(), "{arguments}");
    }
    for (arguments, words) in [
        ("--exclude-regex=( image source", "not a valid regular expression"),
        ("image source.tar", "for an archive use --tar"),
        ("-zzstd:9 image source", "Cannot find a valid compressor 9: a level follows a comma, as in zstd,9"),
        ("--ex=docs image source", "option '--ex' is ambiguous"),
        ("-zlz4 --compress-hints=large image source", "large: line 2: 2097152 is not a multiple of 4096 bytes"),
        ("-zlz4 --compress-hints=bare image source", "bare: line 1: the expression after the size is missing"),
    ] {
        let output = ours(scene.path(), arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.starts_with("<E> erofs: ") && said.contains(words), "{arguments}: {said}");
        assert!(!scene.path().join("image").exists(), "{arguments}");
    }
}

#[test]
fn settings_without_effect_are_named() {
    let scene = scene();
    let folder = scene.path();
    std::fs::write(folder.join("bytes"), b"0 ^[\xe4\xff]$\n").expect("written");
    std::fs::write(folder.join("words"), "big a\n").expect("written");
    for (arguments, words) in [
        ("-Eztailpacking image source", "ztailpacking and fragments have no effect"),
        ("--zfeature-bits=4 image source", "ztailpacking and fragments have no effect"),
        ("--compress-hints=hints image source", "--compress-hints has no effect"),
        ("-zlz4 --chunksize=4096 image source", "-z has no effect: files have chunks"),
        ("--xattr-prefix=foo image source", "--xattr-prefix=foo has no effect"),
        ("--force-uid=1 --uid-offset=4294967294 image source/docs/deep", "the owners of 3 inodes exceed 4294967294"),
        ("--force-gid=1 --gid-offset=4294967295 image source/docs/deep", "the owners of 3 inodes exceed 4294967294"),
        ("-zlz4 --compress-hints=bytes image source", ""),
        ("-zlz4 --compress-hints=sizes image source", "sizes: line 2: 1048577 is not a multiple of 4096 bytes"),
        ("-zlz4 --compress-hints=words image source", "words: line 1: 'big' is not a size in bytes"),
        ("--force-uid=1 --uid-offset=4294967293 image source/docs/deep", ""),
    ] {
        let output = ours(folder, arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments}: {said}");
        assert_eq!(said.lines().count(), usize::from(!words.is_empty()), "{arguments}: {said}");
        assert!(said.is_empty() || said.starts_with("<W> erofs: ") && said.contains(words), "{arguments}: {said}");
    }
}

/// The options in a help text, with their dashes.
fn options_of(help: &str) -> Vec<String> {
    let mut options = Vec::new();
    for line in help.lines() {
        let line = line.trim_start();
        // A line begins with one option or two: `-V, --version`.
        let (first, rest) = line.split_once(", ").unwrap_or((line, ""));
        for form in [first, rest].into_iter().filter(|form| form.starts_with('-')) {
            let is_name = |character: &char| character.is_ascii_alphanumeric() || *character == '-';
            let len = if form.starts_with("--") { form.chars().take_while(is_name).count() } else { 2 };
            options.extend(form.get(..len).map(str::to_owned));
        }
    }
    options
}

#[test]
fn each_option_of_the_original_is_known() {
    if !skip::ready(&[Need::PeerOf("mkfs.erofs", Versions::Series("1.9.4"))]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let help = |program: fn(&Path, &str, &[_]) -> Output| {
        options_of(&String::from_utf8_lossy(&program(folder.path(), "--help", &[]).stdout))
    };
    let (known, original) = (help(ours), help(theirs));
    assert!(original.len() > 50 && original.iter().any(|option| option == "--zfeature-bits"), "{original:?}");
    let unknown: Vec<&String> = original.iter().filter(|option| !known.contains(option)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not among {known:?}");
}
