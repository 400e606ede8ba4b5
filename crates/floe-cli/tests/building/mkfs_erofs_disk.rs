//! Floe under the name mkfs.erofs: the effect of its options on disk, the times, and that the kernel mounts the image.

use std::{
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Command, Output},
    time::SystemTime,
};

use floe::{Image, OpenOptions};
use floe_testkit::{
    KernelMount, Versions, check_rows,
    corpus::{Format, Materialised},
    manifest::{Comparison, differences},
    peer,
    skip::{self, Need},
    walk::{self, DirectoryWalk},
};

use crate::support::mkfs_erofs::{ours, scene, theirs};

/// The field of `len` bytes at an offset in the superblock.
fn field(image: &Path, start: u64, offset: u64, len: usize) -> u64 {
    let mut bytes = [0; 8];
    let file = fs::File::open(image).expect("it is there");
    file.read_exact_at(&mut bytes[..len], start + 1024 + offset).expect("it is whole");
    u64::from_le_bytes(bytes)
}

/// The lines of dump.erofs about a path that begin with `words`.
fn dumped(image: &Path, arguments: &[&str], words: &[&str]) -> Vec<String> {
    let output = Command::new(peer("dump.erofs").expect("the test needs it")).args(arguments).arg(image).output();
    let output = String::from_utf8_lossy(&output.expect("it runs").stdout).into_owned();
    let lines = output.lines().map(str::trim);
    lines.filter(|line| words.iter().any(|word| line.starts_with(word))).map(str::to_owned).collect()
}

/// The extents of a file: lengths in the file, and offsets in the image.
fn extents(image: &Path, path: &str) -> Vec<(u64, u64)> {
    let lines = dumped(image, &[&format!("--path={path}"), "-e"], &["0:", "1:", "2:", "3:", "4:", "5:"]);
    let numbers = |line: &String| -> Vec<u64> {
        line.split(|character: char| !character.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let found: Vec<(u64, u64)> = lines.iter().map(numbers).map(|numbers| (numbers[3], numbers[4])).collect();
    assert!(!found.is_empty(), "{path} has no extents");
    found
}

/// The effect of an option on disk, as a text that must be equal for both programs.
type Property = fn(&Path) -> String;

/// Options, and their effects.
const CONTROLLED: [(&str, Property); 9] = [
    ("-Enosbcrc", |image| format!("checksum: {} {}", field(image, 0, 8, 4) & 1, field(image, 0, 4, 4))),
    ("--fsalignblks=5", |image| {
        let (blocks, len) = (field(image, 0, 36, 4), fs::metadata(image).expect("it is there").len());
        format!("blocks: {} {}", blocks % 8, len - blocks * 4096)
    }),
    ("--offset=12345", |image| {
        let bytes = fs::read(image).expect("it is there");
        let blocks = field(image, 12345, 36, 4);
        format!("{:x} {} {}", field(image, 12345, 0, 4), bytes[..12345].iter().all(|byte| *byte == 0), {
            bytes.len() as u64 - blocks * 4096
        })
    }),
    ("-zlz4hc -C16384 --max-extent-bytes=5000", |image| {
        let lens: Vec<u64> = extents(image, "/docs/a.txt").iter().map(|(len, _)| *len).collect();
        format!("{lens:?}")
    }),
    ("--root-xattr-isize=3000 -Eforce-inode-extended", |image| {
        let root = if field(image, 0, 80, 4) & 0x80 == 0 { field(image, 0, 14, 2) } else { field(image, 0, 112, 8) };
        let lines = dumped(image, &[&format!("--nid={root}")], &["Inode size:"]);
        format!(
            "{:?}",
            lines.first().and_then(|line| line.split("Xattr size:").nth(1).map(|size| size.trim().to_owned()))
        )
    }),
    ("--zD -zlz4", |image| {
        let lines = dumped(image, &["--path=/docs"], &["NID:"]);
        format!(
            "{:?}",
            lines.first().and_then(|line| line.split("Layout:").nth(1).map(|rest| rest.trim()[..1].to_owned()))
        )
    }),
    ("-m4096 -zlz4", |image| {
        let (features, root) = (field(image, 0, 80, 4), field(image, 0, 112, 8));
        format!("{:x} {} {}", features & 0x180, root >> 63, field(image, 0, 13, 1))
    }),
    ("--dsunit=16 -zlz4", |image| {
        let places = ["/docs/a.txt", "/docs/c.md"].map(|path| extents(image, path)[0].1 % (16 * 4096));
        format!("{places:?}")
    }),
    ("--hard-dereference", |image| {
        let lines = dumped(image, &["--path=/docs/a.txt"], &["NID:"]);
        format!(
            "{:?}",
            lines.first().and_then(|line| line.split("Links:").nth(1).map(|rest| rest.trim()[..1].to_owned()))
        )
    }),
];

#[test]
fn options_have_the_same_effect_on_disk() {
    let versions = Versions::Series("1.9");
    if !skip::ready(&["mkfs.erofs", "dump.erofs", "fsck.erofs"].map(|program| Need::PeerOf(program, versions))) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    check_rows(
        &CONTROLLED,
        |(options, _)| format!("mkfs.erofs {options}"),
        |(options, property)| {
            let place = CONTROLLED.iter().position(|row| row.0 == *options).expect("it is one of them");
            let [found, expected] =
                [("mine", ours as fn(&Path, &str, &[_]) -> Output), ("its", theirs)].map(|(name, program)| {
                    let name = format!("{name}-{place}");
                    let output = program(folder, &format!("--quiet {options} {name} source"), &[]);
                    if !output.status.success() {
                        return format!("{output:?}");
                    }
                    let image = folder.join(name);
                    let offset = if options.contains("--offset") { "--offset=12345" } else { "--offset=0" };
                    let fsck =
                        Command::new(peer("fsck.erofs").expect("the test needs it")).arg(offset).arg(&image).output();
                    let fsck = fsck.expect("it runs");
                    format!(
                        "{}, fsck {}",
                        property(&image),
                        if fsck.status.success() { String::new() } else { format!("{fsck:?}") }
                    )
                });
            if found == expected { Vec::new() } else { vec![format!("{found} instead of {expected}")] }
        },
    );
}

#[test]
fn the_kernel_mounts_images_with_every_option() {
    if !skip::ready(&[Need::Root, Need::KernelErofs]) {
        return;
    }
    let scene = scene();
    let folder = scene.path();
    let expected = walk::directory(&folder.join("source"), DirectoryWalk::default()).expect("walked");
    check_rows(
        &[
            "-zlz4 -Enosbcrc",
            "-zlz4hc -C16384 --max-extent-bytes=5000",
            "-zzstd -C65536 -Efragments=16384",
            "--root-xattr-isize=300",
            "--fsalignblks=64",
            "--dsunit=16",
            "--zD=1",
            "--zD=1 -zlz4 -Efragments",
            "-m4096",
            "-m4096 -zlz4 -Eztailpacking",
            "-zlz4 -C16384 -m16384:zstd -Efragments --zD=1",
        ],
        |options| format!("mkfs.erofs {options}"),
        |options| {
            let path = folder.join(format!("mounted{}", options.replace(' ', "")));
            let flags = format!("--quiet -Eforce-inode-extended {options} {} source", path.display());
            let output = ours(folder, &flags, &[]);
            if !output.status.success() {
                return vec![format!("{output:?}")];
            }
            let image = Materialised::single(path, Format::Erofs);
            let mount = match KernelMount::new(&image) {
                Ok(mount) => mount,
                Err(error) => return vec![error],
            };
            let mut found = walk::directory(&mount.path(), DirectoryWalk::default()).expect("walked");
            for (_, entry) in found.entries_mut() {
                // The attribute by which overlayfs recognises directories with whiteouts is added on purpose.
                entry.xattrs.retain(|name, _| !name.ends_with(b"overlay.origin"));
            }
            let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
            differences(&expected, &found, &comparison)
        },
    );
}

/// The times of the files, in seconds since 1970.
const NEW: i64 = 1_700_000_000;
const OLD: i64 = 1_000_000_000;
/// The times in the environment and in the options.
const EPOCH: i64 = 1_500_000_000;
const TIME: i64 = 1_300_000_000;
/// The time of the build.
const NOW: i64 = -1;

/// `SOURCE_DATE_EPOCH`, options, and the times of /new, /old and the image. The epoch of the 48-bit layout is not compared.
const ROWS: [(bool, &str, [i64; 3]); 26] = [
    (false, "--mkfs-time -T1300000000", [NEW, OLD, TIME]),
    (false, "-T1300000000", [TIME, TIME, TIME]),
    (false, "-T1300000000 --preserve-mtime", [TIME, TIME, TIME]),
    (false, "-T1300000000 --all-time --mkfs-time --all-time", [TIME, TIME, TIME]),
    (false, "--ignore-mtime", [NOW, NOW, NOW]),
    (false, "--ignore-mtime --mkfs-time", [NOW, NOW, NOW]),
    (false, "--ignore-mtime -T1300000000", [TIME, TIME, TIME]),
    (false, "--ignore-mtime -T1300000000 --mkfs-time", [TIME, TIME, TIME]),
    (false, "--ignore-mtime --preserve-mtime -T1300000000 --mkfs-time", [NEW, OLD, TIME]),
    (false, "--ignore-mtime -T1300000000 --mkfs-time -Eforce-inode-extended", [NEW, OLD, TIME]),
    (false, "--ignore-mtime -T1300000000 --mkfs-time -E48bit", [NEW, OLD, 0]),
    (false, "-Eforce-inode-compact -T1300000000 --mkfs-time", [TIME, TIME, TIME]),
    (false, "-Eforce-inode-compact,force-inode-extended -T1300000000 --mkfs-time", [NEW, OLD, TIME]),
    (false, "-Eforce-inode-compact,48bit -T1300000000 --mkfs-time", [NEW, OLD, 0]),
    (false, "-m4096 --ignore-mtime -T1300000000 --mkfs-time", [TIME, TIME, 0]),
    (true, "", [EPOCH, OLD, EPOCH]),
    (true, "-T1300000000", [EPOCH, OLD, EPOCH]),
    (true, "-T1600000000", [EPOCH, OLD, EPOCH]),
    (true, "-T1300000000 --mkfs-time", [EPOCH, OLD, EPOCH]),
    (true, "--ignore-mtime", [EPOCH, EPOCH, EPOCH]),
    (true, "--ignore-mtime -T1300000000", [EPOCH, EPOCH, EPOCH]),
    (true, "--ignore-mtime -T1300000000 --mkfs-time", [EPOCH, EPOCH, EPOCH]),
    (true, "--ignore-mtime -Eforce-inode-extended", [EPOCH, OLD, EPOCH]),
    (true, "--ignore-mtime -E48bit", [EPOCH, OLD, 0]),
    (true, "-Eforce-inode-compact", [EPOCH, EPOCH, EPOCH]),
    (true, "-Eforce-inode-compact -T1300000000", [EPOCH, EPOCH, EPOCH]),
];

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    i64::try_from(now).expect("in this age")
}

/// The times of /new, /old and the image.
fn times(image: &Path) -> [i64; 3] {
    let superblock = &fs::read(image).expect("read")[1024..];
    let epoch = i64::from_le_bytes(superblock[24..32].try_into().expect("8 bytes"));
    let is_wide = u32::from_le_bytes(superblock[80..84].try_into().expect("4 bytes")) & 0x80 != 0;
    let image = Image::open(image, &OpenOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let time = |path| image.attr(image.resolve(path).expect("it is there")).expect("read").modified.seconds;
    [time("/new"), time("/old"), if is_wide { 0 } else { epoch }]
}

#[test]
fn times_follow_the_options_and_the_environment_as_in_the_original() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("source");
    fs::create_dir(&source).expect("made");
    for (name, time) in [("new", NEW), ("old", OLD)] {
        let path = source.join(name);
        fs::write(&path, name).expect("written");
        let touched = Command::new("touch").args(["-d", &format!("@{time}")]).arg(&path).status();
        assert!(touched.expect("touch runs").success());
        assert_eq!(fs::metadata(&path).expect("there").mtime(), time);
    }
    let mut programs = vec![("floe", ours as fn(&Path, &str, &[_]) -> Output)];
    if Need::PeerOf("mkfs.erofs", Versions::Series("1.9")).missing().is_none() {
        assert!(peer("mkfs.erofs").is_some());
        programs.push(("the original", theirs));
    }
    for (has_epoch, options, expected) in ROWS {
        let environment = if has_epoch { &[("SOURCE_DATE_EPOCH", "1500000000")][..] } else { &[] };
        for (program, run) in &programs {
            let begin = now();
            let output = run(folder.path(), &format!("--quiet {options} image source"), environment);
            assert!(output.status.success(), "{program} {options}: {output:?}");
            let found = times(&folder.path().join("image")).map(|time| if time >= begin { NOW } else { time });
            assert_eq!(found, expected, "{program}, {has_epoch}: {options}");
        }
    }
}
