//! The control sockets that killed mounts left behind.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    time::Duration,
};

use floe_keeper::MountTable;
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

use super::socket_path;

/// The minimum age of a leftover without its final name. A starting mount creates its socket before it
/// listens on it, and until then the socket looks like a leftover.
const TRANSIENT_AGE_MIN: Duration = Duration::from_secs(60);

/// Removes the sockets of this user whose mount is gone and on which no process listens.
pub(super) fn remove(user_id: u32) {
    let Ok(table) = MountTable::read() else { return };
    for path in socket_path::paths_in(&socket_path::of_this_user(user_id), user_id) {
        let Some(name) = path.file_name() else { continue };
        let is_candidate = match socket_path::device(name) {
            // Connecting to the socket of an existing mount would wake its process.
            Some(device) => !table.entries().iter().any(|entry| entry.is_served() && entry.device == device),
            None => socket_path::is_transient(name) && is_old(&path),
        };
        if is_candidate {
            // The next mount tries again.
            let _ = remove_if_unused(&path, user_id);
        }
    }
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age >= TRANSIENT_AGE_MIN))
}

/// Removes a socket on which no process listens. A socket that another mount puts in its place meanwhile stays.
fn remove_if_unused(path: &Path, user_id: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.file_type().is_socket() || metadata.uid() != user_id {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => remove_own(path, (metadata.dev(), metadata.ino())),
        // A process listens, even if the queue of its connections is full.
        _ => Ok(()),
    }
}

/// Removes a socket unless another mount put its own in its place. The kernel may give the number of a mount to another
/// one before this process removes its socket, and the other socket may arrive between any two of these steps.
pub(super) fn remove_own(path: &Path, inode: (u64, u64)) -> io::Result<()> {
    let is_own = |path: &Path| fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()) == inode);
    if !is_own(path)? {
        return Ok(());
    }
    // A rename takes whatever is there, and under its own name it cannot be replaced any more.
    let taken = path.with_file_name(socket_path::name_of_old(inode.1));
    fs::rename(path, &taken)?;
    if !is_own(&taken)? && renameat_with(CWD, &taken, CWD, path, RenameFlags::NOREPLACE).is_ok() {
        return Ok(());
    }
    fs::remove_file(&taken)
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;

    #[test]
    fn a_socket_that_replaces_another_survives_its_removal() {
        const ROUNDS: usize = 200;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("0-57.sock");
        let create = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, name).expect("written");
            let metadata = fs::symlink_metadata(&path).expect("it is there");
            (path, (metadata.dev(), metadata.ino()))
        };
        for round in 0..ROUNDS {
            let ((old, inode), (new, _)) = (create("old"), create("new"));
            fs::rename(old, &path).expect("renamed");
            let both_ready = Barrier::new(2);
            thread::scope(|scope| {
                scope.spawn(|| {
                    both_ready.wait();
                    let _ = remove_own(&path, inode);
                });
                both_ready.wait();
                fs::rename(&new, &path).expect("renamed");
            });
            assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "round {round}");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 1, "only the new socket is left");
    }
}
