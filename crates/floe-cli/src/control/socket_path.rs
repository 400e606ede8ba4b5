//! The paths of control sockets.

use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use floe_image::ShownName;

/// The directories that can contain sockets of this user, best first.
fn directories(user_id: u32) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if user_id == 0 {
        directories.push(PathBuf::from("/run/floe"));
    } else {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        directories.extend(runtime.map(|path| path.join("floe")));
    }
    directories.extend(usual_directories(user_id));
    directories.dedup();
    directories
}

/// The directories for sockets that do not depend on a user's environment, best first.
fn usual_directories(user_id: u32) -> [PathBuf; 2] {
    [format!("/run/user/{user_id}/floe").into(), format!("/tmp/floe-{user_id}").into()]
}

/// The name of the control socket of the mount with this device number.
pub(super) fn name(device: (u32, u32)) -> String {
    format!("{}-{}.sock", device.0, device.1)
}

/// The name of the socket of a mount that a process prepares.
pub(super) fn name_of_new(process: u32) -> String {
    format!("new-{process}")
}

/// The name of a socket while it is being removed.
pub(super) fn name_of_old(inode: u64) -> String {
    format!("old-{inode}")
}

/// Whether this is the temporary name of a socket.
pub(super) fn is_transient(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("new-").or(name.strip_prefix("old-")));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The device number that the name of a socket stands for.
pub(super) fn device(name: &OsStr) -> Option<(u32, u32)> {
    let (major, minor) = name.to_str()?.strip_suffix(".sock")?.split_once('-')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The users who may have mounts: this user, and others whose directories for sockets are at the usual places. Does not access
/// those directories.
pub(crate) fn users() -> BTreeSet<u32> {
    let mut users = BTreeSet::from([rustix::process::geteuid().as_raw()]);
    users.extend(names_in("/run/user").filter_map(|name| name.to_str()?.parse::<u32>().ok()));
    users.extend(names_in("/tmp").filter_map(|name| name.to_str()?.strip_prefix("floe-")?.parse::<u32>().ok()));
    users
}

/// The sockets of a user's mounts, with the mounts' device numbers. Those of another user whose `XDG_RUNTIME_DIR` is at an
/// unusual place are not found.
pub(super) fn of_user(user_id: u32) -> impl Iterator<Item = ((u32, u32), PathBuf)> {
    paths_of_user(user_id).filter_map(|path| Some((device(path.file_name()?)?, path)))
}

/// The paths in a user's directories for sockets, whatever is there.
pub(super) fn paths_of_user(user_id: u32) -> impl Iterator<Item = PathBuf> {
    let is_own = rustix::process::geteuid().as_raw() == user_id;
    let directories = if is_own { directories(user_id) } else { usual_directories(user_id).into() };
    let directories = directories.into_iter().filter(move |directory| check(directory, user_id).is_ok());
    directories.flat_map(|directory| names_in(directory.clone()).map(move |name| directory.join(&name)))
}

/// The names in a directory; none if it cannot be read.
fn names_in(directory: impl AsRef<Path>) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// The possible paths of a mount's socket, best first.
pub(super) fn candidates(user_id: u32, device: (u32, u32)) -> Vec<PathBuf> {
    let directories = directories(user_id).into_iter().filter(|directory| check(directory, user_id).is_ok());
    directories.map(|directory| directory.join(name(device))).collect()
}

/// Chooses the path for a new socket with this name, and creates the directory.
///
/// # Errors
/// No directory is accessible to this user alone.
pub(super) fn for_new(user_id: u32, name: &str) -> io::Result<PathBuf> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for directory in directories(user_id) {
        match fs::DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => last = error,
            _ => match check(&directory, user_id) {
                Ok(()) => return Ok(directory.join(name)),
                Err(error) => last = error,
            },
        }
    }
    Err(last)
}

/// Checks that a path is a directory which this user owns and no other user can enter.
fn check(directory: &Path, user_id: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    if metadata.is_dir() && metadata.uid() == user_id && metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    let path = directory.shown();
    Err(io::Error::other(format!("{path} is not a directory that only user {user_id} can access")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn names_of_sockets_are_device_numbers() {
        for number in [(0, 57), (1, 0), (4095, 1_048_575)] {
            assert_eq!(device(OsStr::new(&name(number))), Some(number));
        }
        for other in ["new-17", "0-57", "0.sock", "a-b.sock", "0-57-1.sock", ".sock"] {
            assert_eq!(device(OsStr::new(other)), None, "{other}");
        }
        for (name, expected) in [
            (name_of_new(17), true),
            (name_of_old(u64::MAX), true),
            (name((0, 57)), false),
            ("new-".to_owned(), false),
            ("old-a".to_owned(), false),
            ("newer".to_owned(), false),
        ] {
            assert_eq!(is_transient(OsStr::new(&name)), expected, "{name}");
        }
    }

    #[test]
    fn only_a_private_directory_is_accepted() {
        let place = tempfile::tempdir().expect("a directory");
        let user_id = rustix::process::geteuid().as_raw();
        let own = place.path().join("own");
        fs::DirBuilder::new().mode(0o700).create(&own).expect("ours");
        check(&own, user_id).expect("it is ours alone");
        symlink(&own, place.path().join("link")).expect("ours");
        assert!(check(&place.path().join("link"), user_id).is_err(), "it may lead anywhere tomorrow");
        assert!(check(&own, user_id + 1).is_err());
        fs::set_permissions(&own, fs::Permissions::from_mode(0o750)).expect("ours");
        assert!(check(&own, user_id).is_err(), "others may enter");
    }
}
