//! Floe under the name mkfs.erofs: which of its options and the environment sets the times.

use std::{fs, os::unix::fs::MetadataExt, path::Path, process::Command, process::Output, time::SystemTime};

use floe::{Image, OpenOptions};
use floe_testkit::{Versions, peer, skip::Need};

use crate::support::mkfs_erofs::{ours, theirs};

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
