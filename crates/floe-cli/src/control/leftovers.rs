//! The control sockets that killed mounts left behind.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    time::Duration,
};

use floe_keeper::MountTable;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

use super::{server::remove_own, socket_path};

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
