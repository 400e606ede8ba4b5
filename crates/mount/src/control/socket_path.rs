//! The paths of control sockets.
//!
//! Other users can create any name in `/tmp` first, and a user of another user namespace can have the same number. So a name is
//! only a proposal: a directory counts if this user owns it and no other can enter, as the kernel says. If the proposed
//! directories belong to others, the user has one with a random name, which is found by its owner.

use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::{self, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use floe_image::ShownName;
use rustix::fs::{Access, AtFlags, CWD, StatxFlags, access, statx};

/// The directory for the directories of users without a place of their own.
const SHARED: &str = "/tmp";

/// `AT_STATX_DONT_SYNC`: statx reports what is known. rustix has no name for it with musl.
const DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);

/// The maximum number of names with a user's prefix that are examined. Other users can create as many as they like.
const PROPOSED_MAX: usize = 1 << 20;

/// The maximum number of directories with random names that are examined for one user.
const SPARE_MAX: usize = 16;

/// How long the exporter may look for names of users without mounts in the mount table.
const LISTING_TIME_MAX: Duration = Duration::from_secs(2);

/// The length of the random part of a name, which nobody can create first.
const RANDOM_BYTES: usize = 16;

/// The directories that can contain sockets of this user, best first, except those with random names.
fn directories(user_id: u32) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if user_id == 0 {
        directories.push(PathBuf::from("/run/floe"));
    }
    // Root of a user namespace has the directory of the user who created it.
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    directories.extend(runtime.map(|path| path.join("floe")));
    directories.extend(usual_directories(user_id));
    directories.dedup();
    directories
}

/// The directories for sockets that do not depend on a user's environment, best first.
fn usual_directories(user_id: u32) -> [PathBuf; 2] {
    [format!("/run/user/{user_id}/floe").into(), Path::new(SHARED).join(format!("floe-{user_id}"))]
}

/// The directories with random names that this user owns.
fn spare_directories(user_id: u32) -> impl Iterator<Item = PathBuf> {
    let prefix = format!("floe-{user_id}.");
    let proposed = names_in(SHARED).filter(move |name| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    let paths = proposed.take(PROPOSED_MAX).map(|name| Path::new(SHARED).join(name));
    paths.filter(move |path| check(path, user_id).is_ok()).take(SPARE_MAX)
}

/// Whether another user has created the name of this user's directory first.
fn is_taken(user_id: u32) -> bool {
    let [_, shared] = usual_directories(user_id);
    fs::symlink_metadata(&shared).is_ok() && check(&shared, user_id).is_err()
}

/// The name of the control socket of the mount with this device number.
pub(super) fn name(device: (u32, u32)) -> String {
    format!("{}-{}.sock", device.0, device.1)
}

/// The name of the socket of a mount that a process prepares.
pub(super) fn name_of_new(number: u64) -> String {
    format!("new-{number}")
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

/// The directories with sockets of this user's mounts, whatever is there.
pub(super) fn of_this_user(user_id: u32) -> Vec<PathBuf> {
    let spare = is_taken(user_id).then(|| spare_directories(user_id)).into_iter().flatten();
    directories(user_id).into_iter().chain(spare).collect()
}

/// The users who may have mounts, each with the directories for sockets that do not depend on the user's environment: first those
/// of the `mounting` users, whose names are known, then all that are found in a limited time. Does not access those directories,
/// which may hang. A name that is found in `/tmp` counts only if its user owns it.
pub(super) fn of_all_users(mounting: impl Iterator<Item = u32>) -> BTreeMap<u32, Vec<PathBuf>> {
    let deadline = Instant::now() + LISTING_TIME_MAX;
    let mut users: BTreeMap<u32, Vec<PathBuf>> =
        mounting.map(|user_id| (user_id, usual_directories(user_id).into())).collect();
    // Only root creates names there.
    for user_id in names_in("/run/user").filter_map(|name| name.to_str()?.parse().ok()) {
        users.entry(user_id).or_insert_with(|| usual_directories(user_id).into());
    }
    for name in names_in(SHARED).take_while(|_| Instant::now() < deadline) {
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("floe-")) else { continue };
        let Ok(user_id) = rest.split('.').next().unwrap_or_default().parse() else { continue };
        let path = Path::new(SHARED).join(&name);
        if owner(&path) == Some(user_id) {
            let directories = users.entry(user_id).or_default();
            if directories.len() <= SPARE_MAX && !directories.contains(&path) {
                directories.push(path);
            }
        }
    }
    users
}

/// The owner of a directory in [`SHARED`]; `None` if something is mounted on it: a file system in user space can state any owner.
/// Does not wait for the program that serves such a file system.
fn owner(path: &Path) -> Option<u32> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | DONT_SYNC;
    let stat = |path: &Path| statx(CWD, path, flags, StatxFlags::UID | StatxFlags::TYPE).ok();
    let (stat, shared) = (stat(path)?, stat(Path::new(SHARED))?);
    let is_mountpoint = (stat.stx_dev_major, stat.stx_dev_minor) != (shared.stx_dev_major, shared.stx_dev_minor);
    let is_directory = rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_dir();
    (is_directory && !is_mountpoint).then_some(stat.stx_uid)
}

/// The sockets in a user's directories, with the device numbers of their mounts.
pub(super) fn sockets_in(directories: &[PathBuf], user_id: u32) -> impl Iterator<Item = ((u32, u32), PathBuf)> {
    paths_in(directories, user_id).filter_map(|path| Some((device(path.file_name()?)?, path)))
}

/// The paths in a user's directories for sockets, whatever is there.
pub(super) fn paths_in(directories: &[PathBuf], user_id: u32) -> impl Iterator<Item = PathBuf> {
    let directories = directories.iter().filter(move |directory| check(directory, user_id).is_ok());
    directories.flat_map(|directory| names_in(directory).map(move |name| directory.join(&name)))
}

/// The names in a directory; none if it cannot be read.
fn names_in(directory: impl AsRef<Path>) -> impl Iterator<Item = OsString> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// The possible paths of a mount's socket, best first.
pub(super) fn candidates(user_id: u32, device: (u32, u32)) -> impl Iterator<Item = PathBuf> {
    let proposed = directories(user_id).into_iter().filter(move |directory| check(directory, user_id).is_ok());
    // The shared directory is listed only if all others have no such socket.
    let spare = std::iter::once_with(move || spare_directories(user_id)).flatten();
    proposed.chain(spare).map(move |directory| directory.join(name(device)))
}

/// Chooses the directory for a new socket, and creates it.
///
/// # Errors
/// No directory is accessible to this user alone.
pub(super) fn for_new(user_id: u32) -> io::Result<PathBuf> {
    for directory in directories(user_id) {
        let _ = fs::DirBuilder::new().mode(0o700).create(&directory);
        if check(&directory, user_id).is_ok() {
            return Ok(directory);
        }
    }
    if let Some(directory) = spare_directories(user_id).next() {
        return Ok(directory);
    }
    let mut builder = tempfile::Builder::new();
    let prefix = format!("floe-{user_id}.");
    let builder = builder.prefix(&prefix).rand_bytes(RANDOM_BYTES).permissions(Permissions::from_mode(0o700));
    Ok(builder.tempdir_in(SHARED)?.keep())
}

/// Checks that a path is a directory which this user owns, and no other user can enter.
fn check(directory: &Path, user_id: u32) -> io::Result<()> {
    let failed = || {
        let path = directory.shown();
        io::Error::other(format!("{path} is not a directory that only user {user_id} can access"))
    };
    if directory.parent() == Some(Path::new(SHARED)) && owner(directory) != Some(user_id) {
        return Err(failed());
    }
    let metadata = fs::symlink_metadata(directory)?;
    let is_private = metadata.is_dir() && metadata.uid() == user_id && metadata.mode() & 0o077 == 0;
    // Where user ids are not mapped, all of them look like that of nobody.
    if is_private && access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok() {
        return Ok(());
    }
    Err(failed())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

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
