//! Opens directories by paths of which no other user can replace a component.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Component, Path, PathBuf},
};

use floe_image::ShownName;
use rustix::{
    fs::{
        FileType, Mode, OFlags, Stat, fstat, fstatfs, major, minor, mkdirat, open as open_at_root, openat, readlinkat,
    },
    io::Errno,
    process::geteuid,
};

/// The permissions of a directory's group and of others to write to it. With an access control list, those of the group are
/// the upper limit of all entries.
const OTHERS_WRITE: u32 = 0o022;

/// The permission bit of directories in which users can only replace their own files.
const STICKY: u32 = 0o1000;

/// The maximum number of symbolic links in a path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// The file system type of FUSE in `statfs`, and the mount option with the user ID of the server.
const FUSE_MAGIC: u64 = 0x6573_5546;
const FUSE_SERVER_OPTION: &str = "user_id=";

/// The file system type of `/proc` in `statfs`.
const PROC_MAGIC: u64 = 0x9fa0;

/// The maximum depth of a directory.
const DEPTH_MAX: usize = 4096;

/// The flags that open a component of the path.
const COMPONENT: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How missing directories and files are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    /// They are created, for this user alone.
    Created,
    /// They are an error.
    Refused,
}

/// Opens a directory, component by component. Each directory of the path, also of symbolic links, must be one in which no other
/// user can replace the next component.
///
/// # Errors
/// Another user could replace a component, or a component is missing or not a directory.
pub(crate) fn open(path: &Path, missing: Missing) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let root = open_at_root("/", COMPONENT | OFlags::DIRECTORY, Mode::empty())?;
    let trusted = Owners { own: geteuid().as_raw(), of_root: owner_of_root(&root)? };
    let mut way = vec![(root, PathBuf::from("/"))];
    let mut rest = names_of(&path);
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            // The root directory is its own parent.
            way.truncate((way.len() - 1).max(1));
            continue;
        }
        let Some((parent, parent_path)) = way.last() else { break };
        trusted.check(parent.as_fd(), parent_path)?;
        let path = parent_path.join(&name);
        match open_component(parent.as_fd(), &name, missing).map_err(|error| at(&path, error))? {
            Opened::Directory(directory) => way.push((directory, path)),
            Opened::Link(link) if u64::try_from(fstatfs(&link)?.f_type) == Ok(PROC_MAGIC) => {
                way = way_to(parent.as_fd(), &name, &path).map_err(|error| at(&path, error))?;
                for (directory, _) in &way {
                    trusted.check(directory.as_fd(), &path)?;
                }
            }
            Opened::Link(link) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(at(&path, Errno::LOOP));
                }
                trusted.check_owner(&fstat(&link)?, &path)?;
                let target = OsString::from_vec(readlinkat(&link, "", Vec::new())?.into_bytes());
                let target = PathBuf::from(target);
                if target.is_absolute() {
                    way.truncate(1);
                }
                for name in names_of(&target).into_iter().rev() {
                    rest.push_front(name);
                }
            }
        }
    }
    let (directory, path) = way.pop().ok_or(io::ErrorKind::NotFound)?;
    trusted.check(directory.as_fd(), &path)?;
    Ok(directory)
}

/// Checks that a directory or file belongs to this user, and that only its owner can write to it.
pub(crate) fn check_own(directory: &OwnedFd, path: &Path) -> io::Result<()> {
    let status = fstat(directory)?;
    if status.st_uid != geteuid().as_raw() {
        return Err(of_another(&status, path));
    }
    if status.st_mode & OTHERS_WRITE != 0 {
        return Err(writable(&status, path));
    }
    check_server(directory.as_fd(), &status, &[status.st_uid], path)
}

/// The error for a directory that cannot be trusted.
pub(crate) fn refusal(path: &Path, problem: &str, remedy: &str) -> io::Error {
    let message = format!("{}: {problem}, so its content cannot be trusted; {remedy}", path.shown());
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// The owners of directories that are trusted.
struct Owners {
    own: u32,
    of_root: u32,
}

impl Owners {
    fn check(&self, directory: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let status = fstat(directory)?;
        self.check_owner(&status, path)?;
        if status.st_mode & OTHERS_WRITE != 0 && status.st_mode & STICKY == 0 {
            return Err(writable(&status, path));
        }
        check_server(directory, &status, &[self.own, 0, self.of_root], path)
    }

    fn check_owner(&self, status: &Stat, path: &Path) -> io::Result<()> {
        if [self.own, 0, self.of_root].contains(&status.st_uid) { Ok(()) } else { Err(of_another(status, path)) }
    }
}

/// The owner of the root directory, who can replace every file. In a user namespace, this may be the overflow ID, which all
/// unmapped users share.
fn owner_of_root(root: &OwnedFd) -> io::Result<u32> {
    Ok(fstat(root)?.st_uid)
}

/// Follows a link in `/proc`, whose target may differ from its text (`/proc/PID/cwd`, `/proc/PID/fd/N`). Returns the directory
/// and its parents, from the root down.
fn way_to(parent: BorrowedFd<'_>, name: &OsString, path: &Path) -> Result<Vec<(OwnedFd, PathBuf)>, Errno> {
    let follow = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut last = openat(parent, name, follow, Mode::empty())?;
    let mut way = VecDeque::new();
    loop {
        let above = openat(&last, "..", COMPONENT | OFlags::DIRECTORY, Mode::empty())?;
        let (status, of_above) = (fstat(&last)?, fstat(&above)?);
        way.push_front((last, path.to_owned()));
        if (status.st_dev, status.st_ino) == (of_above.st_dev, of_above.st_ino) {
            return Ok(way.into());
        }
        if way.len() == DEPTH_MAX {
            return Err(Errno::LOOP);
        }
        last = above;
    }
}

enum Opened {
    Directory(OwnedFd),
    Link(OwnedFd),
}

fn open_component(parent: BorrowedFd<'_>, name: &OsString, missing: Missing) -> Result<Opened, Errno> {
    // With DIRECTORY, the kernel mounts what an automounter provides.
    let directory = || openat(parent, name, COMPONENT | OFlags::DIRECTORY, Mode::empty());
    let opened = match directory() {
        Err(Errno::NOENT) if missing == Missing::Created => {
            match mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            directory()
        }
        opened => opened,
    };
    match opened {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let link = openat(parent, name, COMPONENT, Mode::empty())?;
            let is_link = FileType::from_raw_mode(fstat(&link)?.st_mode) == FileType::Symlink;
            if is_link { Ok(Opened::Link(link)) } else { Err(Errno::NOTDIR) }
        }
        opened => opened.map(Opened::Directory),
    }
}

/// Checks the server of a FUSE file system: it controls the content, whatever owners the files seem to have.
fn check_server(directory: BorrowedFd<'_>, status: &Stat, trusted: &[u32], path: &Path) -> io::Result<()> {
    if u64::try_from(fstatfs(directory)?.f_type) != Ok(FUSE_MAGIC) {
        return Ok(());
    }
    let device = format!("{}:{}", major(status.st_dev), minor(status.st_dev));
    let server = fs::read_to_string("/proc/self/mountinfo").ok().and_then(|mounts| server_of(&mounts, &device));
    match server {
        Some(user_id) if !trusted.contains(&user_id) => {
            let problem = format!("another user (user ID {user_id}) serves its file system");
            Err(refusal(path, &problem, "use a directory of your own"))
        }
        _ => Ok(()),
    }
}

/// The user ID of the server of the FUSE mount with this device number; `None` for mounts of the system, such as virtiofs.
fn server_of(mounts: &str, device: &str) -> Option<u32> {
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let options = mount.rsplit(' ').next()?;
    options.split(',').find_map(|option| option.strip_prefix(FUSE_SERVER_OPTION)?.parse().ok())
}

fn of_another(status: &Stat, path: &Path) -> io::Error {
    let problem = format!("it belongs to another user (user ID {})", status.st_uid);
    refusal(path, &problem, "use a directory of your own")
}

fn writable(status: &Stat, path: &Path) -> io::Error {
    let problem = format!("others may write to it (mode {:04o}, user ID {})", status.st_mode & 0o7777, status.st_uid);
    refusal(path, &problem, "remove that right (chmod go-w), or use another directory")
}

fn at(path: &Path, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{}: {error}", path.shown()))
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_fuse_mount_is_in_its_options() {
        let mounts = "36 35 0:57 / /mnt rw,nosuid shared:9 - fuse.floe image ro,user_id=1000,group_id=100,allow_other\n\
                      37 35 0:58 / /host rw - virtiofs tag rw\n\
                      38 35 0:5 / /other rw - fuse x rw,user_id=0\n";
        for (device, expected) in [("0:57", Some(1000)), ("0:58", None), ("0:5", Some(0)), ("0:6", None)] {
            assert_eq!(server_of(mounts, device), expected, "{device}");
        }
    }
}
