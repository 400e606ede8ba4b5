//! A tree with many special cases, and what the tests need of the machine: the right to mount, and the reference extractor.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use floe_testkit::{
    Versions, peer,
    skip::{Need, ready},
};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

/// Creates the tree in an empty directory.
pub(crate) fn make(root: &Path) {
    let text = |len: usize, seed: u64| text(len, seed);
    fs::create_dir(root.join("sizes")).unwrap();
    let sizes = [0, 1, 31, 511, 512, 513, 3000, 4031, 4033, 4095, 4096, 4097, 8191, 8192, 8193, 65536, 70_001, 300_000];
    for size in sizes {
        fs::write(root.join(format!("sizes/text-{size}")), text(size, size as u64)).unwrap();
        fs::write(root.join(format!("sizes/noise-{size}")), noise(size, size as u64)).unwrap();
        fs::write(root.join(format!("sizes/zeros-{size}")), vec![0; size]).unwrap();
    }
    fs::create_dir(root.join("large")).unwrap();
    fs::write(root.join("large/text"), text(4_500_000, 1)).unwrap();
    fs::write(root.join("large/noise"), noise(4_300_003, 2)).unwrap();
    let mixed = [noise(100_001, 3), text(500_000, 4), vec![0; 1_000_000], noise(5000, 5), text(700_007, 6)].concat();
    fs::write(root.join("large/mixed"), &mixed).unwrap();
    fs::write(root.join("large/mixed-again"), &mixed).unwrap();
    let with_hole = fs::File::create(root.join("large/hole")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&with_hole, &text(10_000, 7), 2_000_000).unwrap();
    with_hole.set_len(3_000_123).unwrap();
    let with_holes = fs::File::create(root.join("large/holes")).unwrap();
    for number in 0..40 {
        std::os::unix::fs::FileExt::write_all_at(&with_holes, &text(5000, number), number * 65_536).unwrap();
    }
    fs::create_dir(root.join("equal")).unwrap();
    for number in 0..5 {
        fs::write(root.join(format!("equal/{number}")), text(50_000, 8)).unwrap();
        fs::write(root.join(format!("equal/small-{number}")), b"the same few bytes").unwrap();
        let head = [text(123_456, 9), text(20_000, 10 + number)].concat();
        fs::write(root.join(format!("equal/same-head-{number}")), head).unwrap();
        let tail = [text(33_333, 20 + number), text(200_000, 11)].concat();
        fs::write(root.join(format!("equal/same-tail-{number}")), tail).unwrap();
    }
    fs::create_dir(root.join("empty-directory")).unwrap();
    fs::create_dir(root.join("crowded")).unwrap();
    for number in 0..1500 {
        fs::write(root.join(format!("crowded/a-file-with-the-number-{number:05}")), format!("{number}\n")).unwrap();
    }
    fs::create_dir_all(root.join("deep/".to_owned() + &"d/".repeat(60))).unwrap();
    fs::create_dir(root.join("names")).unwrap();
    for name in ["n".repeat(255), "\u{1F980} \n\t\"".into(), "-".into(), ".hidden".into(), "..x".into(), "!".into()] {
        fs::write(root.join("names").join(name), b"x").unwrap();
    }
    fs::create_dir(root.join("links")).unwrap();
    for (name, len) in [("short", 3), ("middle", 500), ("long", 4000)] {
        symlink("t".repeat(len), root.join("links").join(name)).unwrap();
    }
    fs::write(root.join("links/first"), text(20_000, 30)).unwrap();
    fs::hard_link(root.join("links/first"), root.join("links/second")).unwrap();
    fs::hard_link(root.join("links/first"), root.join("deep/third")).unwrap();
    fs::create_dir(root.join("special")).unwrap();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, (0, 0)),
        ("socket", FileType::Socket, (0, 0)),
        ("null", FileType::CharacterDevice, (1, 3)),
        ("disk", FileType::BlockDevice, (259, 70_000)),
    ] {
        let device = rustix::fs::makedev(device.0, device.1);
        // Device nodes need privileges; the others do not.
        let _ = rustix::fs::mknodat(CWD, root.join("special").join(name), kind, Mode::from_raw_mode(0o640), device);
    }
    attributes(root);
    modes_and_times(root);
}

fn attributes(root: &Path) {
    fs::create_dir(root.join("attributes")).unwrap();
    for number in 0..12 {
        let path = root.join(format!("attributes/{number}"));
        fs::write(&path, text(100 * number, 40)).unwrap();
        let set = |name: &str, value: &[u8]| {
            // The file system may not support every xattr.
            let _ = rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty());
        };
        set("user.common", b"the same in all");
        set("user.org.example.long.prefix.name", &noise(number * 11, number as u64));
        set(&format!("user.own-{number}"), &vec![b'v'; number * 300]);
        set("trusted.kept", b"");
        set("security.mark", b"\x00\x01\x02");
    }
    let acl = [
        2u8, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 77, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0,
        4, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    let _ = rustix::fs::lsetxattr(root.join("attributes/1"), "system.posix_acl_access", &acl, XattrFlags::empty());
    let _ = rustix::fs::lsetxattr(root.join("attributes"), "system.posix_acl_default", &acl, XattrFlags::empty());
    let _ = rustix::fs::lsetxattr(root, "user.root", b"of the root", XattrFlags::empty());
}

fn modes_and_times(root: &Path) {
    fs::create_dir(root.join("modes")).unwrap();
    for mode in [0o000, 0o644, 0o4755, 0o2711, 0o1777] {
        let path = root.join(format!("modes/{mode:o}"));
        fs::write(&path, b"mode").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, owner) in [("small", (1000, 1001)), ("large", (70_000, 4_000_000_000))] {
        let path = root.join("modes").join(name);
        fs::write(&path, b"owner").unwrap();
        let _ = std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1));
    }
    for (name, seconds, nanoseconds) in
        [("old", 1u64, 0u32), ("new", 1_700_000_000, 123_456_789), ("far", 5_000_000_000, 1)]
    {
        let path = root.join("modes").join(name);
        fs::write(&path, b"time").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }
}

/// Bytes that compress about as well as text.
pub(crate) fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut random = random(seed);
    let words: Vec<Vec<u8>> =
        (0..900).map(|_| (0..2 + random() % 9).map(|_| b'a' + (random() % 23) as u8).collect()).collect();
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        bytes.extend(&words[(random() % 900) as usize % (1 + (random() % 900) as usize)]);
        bytes.push(b' ');
    }
    bytes.truncate(len);
    bytes
}

/// Bytes that do not compress.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut random = random(seed ^ 0x5555);
    (0..len).map(|_| (random() >> 24) as u8).collect()
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// A kernel mount of an image, unmounted when dropped.
pub(crate) struct KernelMount {
    directory: tempfile::TempDir,
}

impl KernelMount {
    /// Mounts an image, with `device` as its extra device.
    pub(crate) fn new(image: &Path, device: Option<&Path>) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut options = String::from("ro");
        if let Some(device) = device {
            options.push_str(",device=");
            options.push_str(&device.display().to_string());
        }
        let output = Command::new("mount")
            .args(["-t", "erofs", "-o", &options])
            .arg(image)
            .arg(directory.path())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(Self { directory })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

/// Whether images can be mounted here; prints a skip message if not.
pub(crate) fn can_mount() -> bool {
    ready(&[Need::Root, Need::KernelErofs])
}

/// The extractor of erofs-utils, if it supports all features of the test images; prints a skip message if not.
pub(crate) fn fsck() -> Option<PathBuf> {
    ready(&[Need::PeerOf("fsck.erofs", Versions::Since("1.9"))]).then(|| peer("fsck.erofs")).flatten()
}
