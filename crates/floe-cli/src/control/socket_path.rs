//! The paths of control sockets.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The directories that can contain sockets of this user, best first.
fn directories(user_id: u32) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if user_id == 0 {
        directories.push(PathBuf::from("/run/floe"));
    } else {
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        directories.extend(runtime.map(|path| path.join("floe")));
        directories.push(format!("/run/user/{user_id}/floe").into());
    }
    directories.push(format!("/tmp/floe-{user_id}").into());
    directories.dedup();
    directories
}

/// The name of the control socket of the mount with this device number.
pub(super) fn name(device: (u32, u32)) -> String {
    format!("{}-{}.sock", device.0, device.1)
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
    let path = directory.display();
    Err(io::Error::other(format!("{path} is not a directory that only user {user_id} can access")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_directory_that_is_ones_own_will_do() {
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
