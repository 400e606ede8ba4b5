//! The mount table.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use crate::options::KernelFlags;

/// The kernel's table of the mounts that this process sees. poll(2) reports its changes.
pub(crate) const TABLE_PATH: &str = "/proc/self/mountinfo";

/// The maximum number of symbolic links that a path is resolved through.
const LINKS_MAX: usize = 40;

/// The prefix of the source of a front: a mount of the kernel's EROFS from a file that Floe serves.
pub(crate) const FRONT_PREFIX: &str = "floe#";

/// The mounts that this process sees.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountTable {
    entries: Vec<MountEntry>,
}

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// The number of the mount in the table, which the kernel reuses after its end.
    pub id: u32,
    /// The device number of its files.
    pub device: (u32, u32),
    /// The directory it is mounted on.
    pub mountpoint: PathBuf,
    /// The kind of file system, with the subtype: "ext4", "fuse.floe".
    pub file_system: String,
    /// The source of the mount.
    pub source: OsString,
    /// The user who mounted it; only for FUSE, and for fronts, which only root can mount.
    pub user_id: Option<u32>,
    /// The flags of the mount.
    pub flags: KernelFlags,
    /// Whether users other than its owner may enter.
    pub lets_others_in: bool,
    /// Whether the kernel checks the modes and owners of its files.
    pub checks_permissions: bool,
    /// The lower directories of an overlay, the uppermost first. They may be relative to a directory that is not known.
    pub lower: Vec<PathBuf>,
}

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(TABLE_PATH)?))
    }

    /// Reads the table of the mounts that another process sees.
    ///
    /// # Errors
    /// There is no such process, or it is another user's.
    pub fn of_process(process: u32) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(format!("/proc/{process}/mountinfo"))?))
    }

    /// The mount on a directory, or the topmost of several. The path must be absolute and without links.
    pub fn on(&self, mountpoint: &Path) -> Option<&MountEntry> {
        self.entries.iter().rev().find(|entry| entry.mountpoint == mountpoint)
    }

    /// The mount with this number.
    pub(crate) fn with_id(&self, id: u32) -> Option<&MountEntry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    /// The directories with mounts whose files have this device number.
    pub fn mountpoints_of(&self, device: (u32, u32)) -> impl Iterator<Item = &Path> {
        self.entries.iter().filter(move |entry| entry.device == device).map(|entry| entry.mountpoint.as_path())
    }

    /// The mount on a directory, given by any path. Does not access the mount itself, so this does not wait if the program
    /// that serves it hangs.
    ///
    /// # Errors
    /// A parent directory cannot be reached.
    pub fn find(&self, path: &Path) -> io::Result<Option<&MountEntry>> {
        let mut path = std::path::absolute(path)?;
        for _ in 0..LINKS_MAX {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                // The path ends in "..", or is the root.
                return Ok(self.on(&fs::canonicalize(&path)?));
            };
            let directory = fs::canonicalize(parent)?.join(name);
            if let Some(entry) = self.on(&directory) {
                return Ok(Some(entry));
            }
            path = match fs::read_link(&directory) {
                Ok(target) => std::path::absolute(fs::canonicalize(parent)?.join(target))?,
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
                Err(error) => return Err(error),
            };
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// All mounts, in the order in which they were made.
    pub fn entries(&self) -> &[MountEntry] {
        &self.entries
    }

    fn parse(bytes: &[u8]) -> Self {
        Self { entries: bytes.split(|byte| *byte == b'\n').filter_map(MountEntry::parse).collect() }
    }
}

impl MountEntry {
    /// Whether it is a FUSE mount of any program.
    pub fn is_fuse(&self) -> bool {
        is_fuse(&self.file_system)
    }

    /// Whether it is the kernel's EROFS in front of a file that Floe serves.
    pub fn is_front(&self) -> bool {
        is_front(&self.file_system, &self.source)
    }

    /// The path of the image: the source, without the prefix that fronts have.
    pub fn image(&self) -> &Path {
        let bytes = self.source.as_bytes();
        let image = bytes.strip_prefix(FRONT_PREFIX.as_bytes()).filter(|_| self.is_front());
        Path::new(OsStr::from_bytes(image.unwrap_or(bytes)))
    }

    /// Whether a program serves it: a FUSE mount or a front.
    pub fn is_served(&self) -> bool {
        self.is_fuse() || self.is_front()
    }

    /// Parses one line of mountinfo (proc_pid_mountinfo(5)). The mountpoint is the fifth field; the kind and the source follow
    /// a single dash after a varying number of fields.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let mut device = std::str::from_utf8(fields.nth(1)?).ok()?.split(':');
        let device = (device.next()?.parse().ok()?, device.next()?.parse().ok()?);
        let mountpoint = unescaped(fields.nth(1)?).into();
        let words: Vec<_> = fields.next()?.split(|byte| *byte == b',').collect();
        let has = |word: &str| words.contains(&word.as_bytes());
        let flags = KernelFlags {
            nosuid: has("nosuid"),
            nodev: has("nodev"),
            noexec: has("noexec"),
            nosymfollow: has("nosymfollow"),
        };
        fields.find(|field| *field == b"-")?;
        let file_system = String::from_utf8(unescaped(fields.next()?).into_vec()).ok()?;
        let source = unescaped(fields.next()?);
        let options: Vec<_> = fields.next().unwrap_or_default().split(|byte| *byte == b',').collect();
        let value = |option: &[u8]| std::str::from_utf8(option.strip_prefix(b"user_id=")?).ok()?.parse().ok();
        let user_id = options.iter().find_map(|option| value(option));
        // Only FUSE mounts can be for one user, or leave permission checks to a program.
        let is_granted = |option: &[u8]| user_id.is_none() || options.contains(&option);
        let (lets_others_in, checks_permissions) = (is_granted(b"allow_other"), is_granted(b"default_permissions"));
        let lower = if file_system == "overlay" { lower_in(&options) } else { Vec::new() };
        let entry = Self {
            id,
            device,
            mountpoint,
            file_system,
            source,
            user_id,
            flags,
            lets_others_in,
            checks_permissions,
            lower,
        };
        Some(Self { user_id: user_id.or(entry.is_front().then_some(0)), ..entry })
    }
}

/// The lower directories in the options of an overlay. They are separated by colons, or each has an option.
fn lower_in(options: &[&[u8]]) -> Vec<PathBuf> {
    let values = options
        .iter()
        .filter_map(|option| option.strip_prefix(b"lowerdir=").or_else(|| option.strip_prefix(b"lowerdir+=")));
    let paths = values.flat_map(|value| value.split(|byte| *byte == b':')).filter(|path| !path.is_empty());
    paths.map(|path| unescaped(path).into()).collect()
}

/// Whether this is the kind of a FUSE mount of any program.
pub(crate) fn is_fuse(file_system: &str) -> bool {
    file_system == "fuse" || file_system.starts_with("fuse.")
}

/// Whether a mount of this kind, from this source, is the kernel's EROFS in front of a file that Floe serves.
pub(crate) fn is_front(file_system: &str, source: &OsStr) -> bool {
    file_system == "erofs" && source.as_bytes().starts_with(FRONT_PREFIX.as_bytes())
}

/// A field with its octal escapes (`\040`) undone.
fn unescaped(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escape = tail
            .first_chunk::<3>()
            .filter(|digits| *first == b'\\' && matches!(digits, [b'0'..=b'3', b'0'..=b'7', b'0'..=b'7']));
        match escape {
            Some(digits) => {
                bytes.push(digits.iter().fold(0, |value, digit| value * 8 + (digit - b'0')));
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_entries() {
        let table = MountTable::parse(
            b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
              40 36 0:57 / /mnt\\040with\\134space ro,nosuid - fuse.floe /tmp/a\\040b.img ro,user_id=7,group_id=8\n\
              41 36 0:58 / /mnt2 rw shared:3 master:4 - fuse portal rw\n\
              42 36 0:59 / /front ro - erofs floe\\043/tmp/a\\040b.img ro,user_xattr\n\
              43 36 7:0 / /loop ro - erofs /dev/loop0 ro,user_xattr\n\
              broken line\n",
        );
        assert_eq!(table.entries().len(), 5);
        for (mountpoint, expected) in [
            ("/mnt2", Some(("fuse", "portal", (0, 58), true, None))),
            ("/mnt with\\space", Some(("fuse.floe", "/tmp/a b.img", (0, 57), true, Some(7)))),
            ("/front", Some(("erofs", "/tmp/a b.img", (0, 59), true, Some(0)))),
            ("/loop", Some(("erofs", "/dev/loop0", (7, 0), false, None))),
            ("/elsewhere", None),
        ] {
            let found = table.on(Path::new(mountpoint));
            let found = found.map(|entry| {
                let image = entry.image().to_str().expect("text");
                assert_eq!(table.with_id(entry.id), Some(entry));
                (entry.file_system.as_str(), image, entry.device, entry.is_served(), entry.user_id)
            });
            assert_eq!(found, expected, "{mountpoint}");
        }
    }

    #[test]
    fn flags_are_those_of_the_mount() {
        let strict = KernelFlags { nosuid: true, nodev: true, noexec: true, nosymfollow: true };
        let lax = KernelFlags { nosuid: false, nodev: false, noexec: false, nosymfollow: false };
        for (line, expected) in [
            ("ro,nosuid,nodev,noexec,nosymfollow - fuse.a a ro,user_id=0,allow_other", (strict, true, false)),
            ("ro shared:1 - fuse.a nosuid ro,user_id=0,default_permissions", (lax, false, true)),
            ("ro,relatime - erofs a ro,user_xattr", (lax, true, true)),
        ] {
            let entry = MountEntry::parse(format!("1 2 0:9 / /a {line}").as_bytes()).expect("an entry");
            assert_eq!((entry.flags, entry.lets_others_in, entry.checks_permissions), expected, "{line}");
        }
    }

    #[test]
    fn mounts_are_found_under_any_name() {
        let place = tempfile::tempdir().expect("a directory");
        let root = place.path().canonicalize().expect("it is there");
        fs::create_dir(root.join("mount")).expect("ours");
        std::os::unix::fs::symlink("../mount", root.join("mount/inner")).expect("ours");
        std::os::unix::fs::symlink("mount", root.join("link")).expect("ours");
        std::os::unix::fs::symlink("loop", root.join("loop")).expect("ours");
        let line = format!("1 2 0:9 / {} ro - fuse.floe a ro", root.join("mount").display());
        let table = MountTable::parse(line.as_bytes());
        for (name, is_found) in [
            ("mount", true),
            ("link", true),
            ("./link/", true),
            ("mount/inner", true),
            ("mount/..", false),
            (".", false),
        ] {
            let found = table.find(&root.join(name)).expect("it is there");
            assert_eq!(found.is_some(), is_found, "{name}");
        }
        assert!(table.find(&root.join("missing")).is_err() && table.find(&root.join("loop")).is_err());
    }
}
