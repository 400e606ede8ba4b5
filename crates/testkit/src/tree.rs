//! Generated trees, deterministic for a seed.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write},
    os::unix::{
        ffi::OsStringExt,
        fs::{FileExt, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::Random;

/// The earliest generated modification time: 2023-11-14.
const TIME_SECONDS: i64 = 1_700_000_000;

/// The longest name on Linux, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// The approximate number of files per directory.
const FILES_PER_DIRECTORY: u32 = 24;

/// The parameters of a generated tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    /// The seed of all names, sizes and bytes.
    pub seed: u64,
    /// The number of files apart from those of the other fields.
    pub file_count: u32,
    /// The size of the largest file. Most are far smaller.
    pub file_bytes_max: u64,
    /// The number of entries in a directory named `wide`; 0 for none.
    pub wide_directory_entries: u32,
    /// The depth of nested directories below one named `deep`; 0 for none.
    pub nesting_depth: u32,
    /// Whether to create a directory named `odd` with holes, hard links, symbolic links, xattrs, long and unusual
    /// names, FIFOs, sockets and, as root, devices and other owners.
    pub oddities: bool,
}

impl Tree {
    /// A tree for round trips: some hundred files of up to 300 KB, and all special cases.
    pub const fn small(seed: u64) -> Self {
        Self {
            seed,
            file_count: 200,
            file_bytes_max: 300_000,
            wide_directory_entries: 700,
            nesting_depth: 40,
            oddities: true,
        }
    }

    /// A single directory with this many small files.
    pub const fn wide(entries: u32) -> Self {
        Self {
            seed: 1,
            file_count: 0,
            file_bytes_max: 0,
            wide_directory_entries: entries,
            nesting_depth: 0,
            oddities: false,
        }
    }

    /// Writes the tree to `root`, which is created if necessary.
    ///
    /// # Errors
    /// The first failing call.
    pub fn write(&self, root: &Path) -> io::Result<()> {
        let mut random = Random::new(self.seed);
        fs::create_dir_all(root)?;
        self.write_files(root, &mut random)?;
        if self.wide_directory_entries > 0 {
            write_wide(&root.join("wide"), self.wide_directory_entries)?;
        }
        if self.nesting_depth > 0 {
            write_deep(&root.join("deep"), self.nesting_depth)?;
        }
        if self.oddities {
            write_oddities(&root.join("odd"), &mut random)?;
        }
        set_times(root, &mut random)
    }

    fn write_files(&self, root: &Path, random: &mut Random) -> io::Result<()> {
        let mut directory = root.to_path_buf();
        for number in 0..self.file_count {
            if number % FILES_PER_DIRECTORY == 0 {
                let parent = if random.below(3) == 0 { root.to_path_buf() } else { directory };
                directory = parent.join(format!("part{number:04}"));
                fs::create_dir(&directory)?;
            }
            // Sizes are distributed evenly on a logarithmic scale, roughly as in real trees.
            let halvings = random.below(14);
            let len = random.below((self.file_bytes_max >> halvings).max(1));
            let len = usize::try_from(len).map_err(io::Error::other)?;
            let bytes = if random.below(8) == 0 { random.noise(len) } else { random.text(len) };
            fs::write(directory.join(format!("file{number:05}.txt")), bytes)?;
        }
        Ok(())
    }
}

fn write_wide(directory: &Path, entries: u32) -> io::Result<()> {
    fs::create_dir(directory)?;
    for number in 0..entries {
        fs::write(directory.join(format!("entry-{number:06}")), number.to_string())?;
    }
    Ok(())
}

fn write_deep(directory: &Path, depth: u32) -> io::Result<()> {
    let mut path = directory.to_path_buf();
    for level in 0..depth {
        path.push(format!("level{level}"));
    }
    fs::create_dir_all(&path)?;
    fs::write(path.join("bottom"), "the bottom\n")
}

fn write_oddities(directory: &Path, random: &mut Random) -> io::Result<()> {
    fs::create_dir(directory)?;
    let at = |name: &str| directory.join(name);
    let holey = File::create(at("holes"))?;
    holey.write_all_at(&random.text(9_000), 0)?;
    holey.write_all_at(&random.noise(5_000), 1 << 20)?;
    holey.set_len(3 << 20)?;
    File::create(at("one-hole"))?.set_len(200_000)?;
    File::create(at("empty"))?;
    for len in [1, 511, 512, 513, 4_095, 4_096, 4_097, 65_535, 65_537] {
        fs::write(at(&format!("size{len}")), random.text(len))?;
    }
    let mut log = File::create(at("repeats"))?;
    let line = random.text(20_000);
    for _ in 0..40 {
        log.write_all(&line)?;
    }

    fs::write(at("linked"), random.text(30_000))?;
    fs::hard_link(at("linked"), at("linked again"))?;
    fs::create_dir(at("elsewhere"))?;
    fs::hard_link(at("linked"), directory.join("elsewhere/linked"))?;
    symlink("linked", at("link"))?;
    symlink("../nowhere/at all", at("dangling"))?;
    symlink("x".repeat(4_000), at("long-target"))?;

    fs::write(directory.join("n".repeat(NAME_BYTES_MAX)), "long name\n")?;
    fs::write(directory.join(OsString::from_vec(b"bytes \x01\xfe\n\"%".to_vec())), "strange name\n")?;
    fs::write(at("größe ледник 氷河"), "UTF-8 name\n")?;

    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).or_else(as_user)?;
    // A socket path is limited to 108 bytes: bind the socket elsewhere and move it here.
    let folder = tempfile::tempdir_in(directory)?;
    match UnixListener::bind(folder.path().join("socket")) {
        Ok(_) => fs::rename(folder.path().join("socket"), at("socket"))?,
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
        Err(error) => return Err(error),
    }
    folder.close()?;
    for (name, file_type, major, minor) in [
        ("null", FileType::CharacterDevice, 1, 3),
        ("large-numbers", FileType::CharacterDevice, 511, 0xf_1234),
        ("disk", FileType::BlockDevice, 8, 257),
    ] {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(CWD, at(name), file_type, Mode::from_raw_mode(0o600), device).or_else(as_user)?;
    }

    fs::write(at("attributes"), "attributes\n")?;
    let attributes: [(&str, Vec<u8>); 5] = [
        ("user.short", b"value".to_vec()),
        ("user.empty", Vec::new()),
        ("user.long", random.noise(3_000)),
        ("trusted.note", b"for root".to_vec()),
        ("security.note", b"\0\x01\xff".to_vec()),
    ];
    for (name, value) in attributes {
        for file in ["attributes", "elsewhere", "size1"] {
            rustix::fs::lsetxattr(at(file), name, &value, XattrFlags::empty()).or_else(as_user)?;
        }
    }
    for (name, uid, gid) in [("size1", 1_000, 1_000), ("size512", 70_000, 4_000_000_000), ("link", 1, 2)] {
        std::os::unix::fs::lchown(at(name), Some(uid), Some(gid)).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Ok(()),
            _ => Err(error),
        })?;
    }
    for (name, mode) in [("size511", 0o4755), ("size513", 0o000), ("elsewhere", 0o3_750)] {
        rustix::fs::chmod(at(name), Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Ignores errors of missing privileges or file system support.
fn as_user(error: rustix::io::Errno) -> rustix::io::Result<()> {
    use rustix::io::Errno;
    if matches!(error, Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::INVAL | Errno::NOSPC) {
        Ok(())
    } else {
        Err(error)
    }
}

/// Sets distinct modification times with nanoseconds.
fn set_times(root: &Path, random: &mut Random) -> io::Result<()> {
    let mut paths = vec![root.to_path_buf()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        if fs::symlink_metadata(&path)?.is_dir() {
            let mut children: Vec<PathBuf> =
                fs::read_dir(&path)?.map(|child| Ok(child?.path())).collect::<io::Result<_>>()?;
            children.sort();
            paths.append(&mut children);
        }
    }
    for path in paths {
        let offset = i64::try_from(random.below(100_000_000)).map_err(io::Error::other)?;
        let nanoseconds = i64::try_from(random.below(1_000_000_000)).map_err(io::Error::other)?;
        let time = Timespec { tv_sec: TIME_SECONDS - offset, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        manifest::{Comparison, differences},
        walk,
    };

    #[test]
    fn the_same_seed_gives_the_same_tree() {
        let folder = tempfile::tempdir().expect("a folder");
        let manifests = [(7, "one"), (7, "two"), (8, "three")].map(|(seed, name)| {
            let root = folder.path().join(name);
            Tree::small(seed).write(&root).expect("written");
            walk::directory(&root, walk::DirectoryWalk::default()).expect("walked")
        });
        let comparison = Comparison { directory_shape_is_free: true, ..Comparison::default() };
        assert_eq!(differences(&manifests[0], &manifests[1], &comparison), Vec::<String>::new());
        assert!(!differences(&manifests[0], &manifests[2], &comparison).is_empty());
        assert!(manifests[0].len() > 950, "{}", manifests[0].len());
        assert_eq!(manifests[0].entry(b"/odd/linked").map(|entry| entry.link_count), Some(3));
    }
}
