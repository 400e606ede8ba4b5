//! Images with blocks of each size, built by Floe, read by each command of Floe and, if it can, by the original.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use floe::{ByteRange, Image, OpenOptions};
use floe_testkit::{
    Tree, Versions, check_rows,
    corpus::{Corpus, Format, ImageRecord, Materialised},
    manifest::{Comparison, Manifest, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::Served;

/// Block sizes, and additional options of mkfs.erofs.
const ROWS: [(u32, &str); 20] = [
    (1024, "-zlz4 -C16384 -Eztailpacking"),
    (2048, "--chunksize=2048"),
    (8192, ""),
    (8192, "-zlz4hc"),
    (8192, "-zlz4 -C32768 -Eztailpacking"),
    (8192, "-zzstd -C16384 -Efragments,dedupe"),
    (16384, "-Enoinline_data"),
    (16384, "-zlz4hc -C16384 --xattr-prefix=user."),
    (16384, "-zlz4 -C65536 -Eztailpacking -E48bit"),
    (16384, "-zdeflate -C32768 -Elegacy-compress"),
    (16384, "--chunksize=32768 -Eforce-chunk-indexes"),
    (32768, "-zlz4 -Eztailpacking"),
    (65536, ""),
    (65536, "-zlz4hc"),
    (65536, "-zlz4 -C1048576 -Eztailpacking"),
    (65536, "-zzstd -C131072 -Efragments,dedupe -E48bit"),
    (65536, "-zlzma -C1048576 -Eall-fragments"),
    (16384, "-m16384 -zzstd -C16384 -Eztailpacking"),
    (65536, "-m65536 -zlz4 --zD=1 -Efragments --dsunit=2"),
    (65536, "--chunksize=65536 -Eforce-chunk-indexes --blobdev={blob}"),
];

/// Names of 90 bytes, more than a directory block of 64 KiB has room for.
const LONG_NAME_COUNT: u32 = 700;

fn floe_as(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.arg0(name);
    command
}

fn said(output: &Output) -> String {
    format!("{}: {}{}", output.status, String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The contents of the image, read through the library.
fn manifest_of(path: &Path, devices: &[PathBuf]) -> Result<Manifest, String> {
    let options = OpenOptions { devices: devices.to_vec(), ..OpenOptions::default() };
    let image = Image::open(path, &options).map_err(|error| error.to_string())?;
    let read = |nid, range: ByteRange| {
        let mut bytes = vec![0; range.len() as usize];
        let len = image.read_at(nid, range.offset(), &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    };
    walk::image(image.file_system().as_ref(), &read).map_err(|error| error.to_string())
}

/// The contents of the image according to the original; `None` if it was not built for blocks of this size.
fn extracted_by_original(fsck: &Path, image: &Materialised, folder: &Path) -> Option<Result<Manifest, String>> {
    let target = folder.join("extracted");
    let mut command = Command::new(fsck);
    command.args(image.devices.iter().map(|device| format!("--device={}", device.display())));
    command.arg(format!("--extract={}", target.display())).args(["--force", "--preserve"]);
    let output = command.arg(&image.path).output().expect("fsck.erofs runs");
    let words = said(&output);
    if words.contains("isn't supported on this platform") {
        return None;
    }
    if !output.status.success() {
        return Some(Err(words));
    }
    Some(walk::directory(&target, DirectoryWalk::default()).map_err(|error| error.to_string()))
}

#[test]
fn images_of_every_block_size_hold_their_source() {
    let is_root = Need::Root.missing().is_none();
    let has_fsck = skip::ready(&[Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]);
    let fsck = peer("fsck.erofs").filter(|_| has_fsck);
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    Tree::small(64).write(&source).expect("written");
    for number in 0..LONG_NAME_COUNT {
        let name = format!("wide/{number:06}-{}", "n".repeat(83));
        fs::hard_link(source.join("wide/entry-000001"), source.join(name)).expect("linked");
    }
    let expected = walk::directory(&source, DirectoryWalk::default()).expect("walked");
    check_rows(
        &ROWS,
        |(block_bytes, options)| format!("mkfs.erofs -b{block_bytes} {options}"),
        |(block_bytes, options)| {
            let own = tempfile::tempdir_in(folder.path()).expect("a folder");
            let (path, blob) = (own.path().join("image"), own.path().join("blob"));
            let given = options.replace("{blob}", &blob.display().to_string());
            let mut mkfs = floe_as("mkfs.erofs");
            mkfs.args(["--quiet", "-Eforce-inode-extended"]).arg(format!("-b{block_bytes}"));
            let output = mkfs.args(given.split_whitespace()).arg(&path).arg(&source).output().expect("floe runs");
            if !output.status.success() {
                return vec![said(&output)];
            }
            let devices: Vec<PathBuf> = blob.exists().then_some(blob).into_iter().collect();
            let len = fs::metadata(&path).expect("it is there").len();
            let mut told = Vec::new();
            if len % u64::from(*block_bytes) != 0 {
                told.push(format!("{len} bytes are no whole blocks"));
            }
            let comparison =
                Comparison { directory_shape_is_free: true, privileges_are_free: !is_root, ..Comparison::default() };
            match manifest_of(&path, &devices) {
                Ok(found) => told.extend(differences(&expected, &found, &comparison)),
                Err(error) => told.push(error),
            }
            let mut check = floe_as("floe");
            check.arg("check").args(devices.iter().flat_map(|device| [Path::new("--device"), device])).arg(&path);
            let output = check.output().expect("floe runs");
            if !output.status.success() {
                told.push(said(&output));
            }
            let image = Materialised { path, format: Format::Erofs, offset: 0, devices };
            // fsck.erofs 1.9.3 makes the target a file if there is a packed inode.
            let original = fsck.as_ref().filter(|_| !options.contains("fragments"));
            if let Some(found) = original.and_then(|fsck| extracted_by_original(fsck, &image, own.path())) {
                // fsck.erofs skips the remaining attributes of an inode after an empty value, sets no times of links, and
                // truncates files with chunk indexes that end in a hole.
                let mut expected = expected.clone();
                let mut found = found.unwrap_or_else(|error| panic!("{error}"));
                for path in [&b"/odd/holes"[..], b"/odd/one-hole"].into_iter().filter(|_| options.contains("chunk")) {
                    found.insert(path.to_vec(), expected.entry(path).expect("it is there").clone());
                }
                for manifest in [&mut expected, &mut found] {
                    for (_, entry) in manifest.entries_mut() {
                        entry.xattrs.clear();
                        entry.modified = (0, 0);
                    }
                }
                told.extend(
                    differences(&expected, &found, &comparison).into_iter().map(|line| format!("fsck.erofs: {line}")),
                );
            }
            told
        },
    );
}

/// The images of the project with blocks larger than the pages of most machines.
fn large_block_images(corpus: &Corpus) -> Vec<ImageRecord> {
    let names = ["erofs-b8k-", "erofs-b16k-", "erofs-b64k-"];
    corpus.images().into_iter().filter(|image| names.iter().any(|name| image.name.starts_with(name))).collect()
}

#[test]
fn large_blocks_are_mounted_listed_and_dumped() {
    if !skip::ready(&[Need::Root, Need::Fuse]) {
        return;
    }
    let corpus = Corpus::fixtures();
    let images = large_block_images(&corpus);
    assert!(images.len() >= 6, "{} images", images.len());
    check_rows(
        &images,
        |image| image.name.clone(),
        |image| {
            let files = corpus.materialise(image);
            let served = match Served::new(&files, "fuse") {
                Ok(served) => served,
                Err(error) => return vec![error],
            };
            let found = walk::directory(&served.path(), DirectoryWalk::default()).expect("walked");
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            let mut told = differences(&corpus.manifest(image), &found, &comparison);
            let block_bytes = fs::read(&files.path).map(|bytes| 1_u32 << bytes[1024 + 12]).expect("read");
            let statfs = rustix::fs::statvfs(served.path()).expect("it is mounted");
            if statfs.f_frsize != u64::from(block_bytes) {
                told.push(format!("statfs says {} for blocks of {block_bytes}", statfs.f_frsize));
            }
            let devices: Vec<String> =
                files.devices.iter().map(|device| format!("--device={}", device.display())).collect();
            for (name, options) in [
                ("dump.erofs", &["-s"][..]),
                ("dump.erofs", &["-S"]),
                ("dump.erofs", &["-e", "--path=/mixed"]),
                ("fsck.erofs", &[]),
            ] {
                let output = floe_as(name).args(options).args(&devices).arg(&files.path).output().expect("floe runs");
                if !output.status.success() || name == "dump.erofs" && output.stdout.is_empty() {
                    told.push(format!("{name} {options:?}: {}", said(&output)));
                }
            }
            told
        },
    );
}

#[test]
fn wrong_block_sizes_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("source")).expect("made");
    for size in ["256", "128k", "5000", "0"] {
        let mut command = floe_as("floe");
        let output =
            command.args(["mkfs", "--block-size", size, "image", "source"]).current_dir(folder.path()).output();
        let output = output.expect("floe runs");
        assert_eq!(output.status.code(), Some(2), "{size}: {}", said(&output));
        assert!(said(&output).contains("a power of two from 512 to 65536 bytes"), "{size}: {}", said(&output));
        assert!(!folder.path().join("image").exists(), "{size}");
    }
}
