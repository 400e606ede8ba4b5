//! Mounts that show other owners.

use std::{
    fs::{self, File},
    io::{self, Read},
    mem,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

/// How many ids are mapped.
const ID_COUNT: u32 = 65_536;

/// Mounts the file system at `from` a second time, at `to`. There, each owner and group has a number that is higher by
/// `shift`.
///
/// # Errors
/// The kernel or the file system does not support mapped ids.
pub fn mount_idmapped(from: &Path, to: &Path, shift: u32) -> io::Result<()> {
    let namespace = user_namespace(shift)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, from, flags)?;
    map_ids(&tree, &namespace)?;
    Ok(move_mount(&tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// A user namespace in which ids are lower by `shift` than outside.
fn user_namespace(shift: u32) -> io::Result<File> {
    let mut command = Command::new("unshare");
    command.args(["--user", "sh", "-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = command.spawn()?;
    // The shell prints a line once it is in the namespace.
    let answer = holder.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    answer.read_exact(&mut [0])?;
    let process = format!("/proc/{}", holder.id());
    let map = format!("0 {shift} {ID_COUNT}");
    let mapped =
        fs::write(format!("{process}/uid_map"), &map).and_then(|()| fs::write(format!("{process}/gid_map"), &map));
    let namespace = mapped.and_then(|()| File::open(format!("{process}/ns/user")));
    drop(holder.stdin.take());
    holder.wait()?;
    namespace
}

fn map_ids(tree: &OwnedFd, namespace: &File) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?,
    };
    let size = mem::size_of::<libc::mount_attr>();
    // SAFETY: the kernel reads the attributes, which live until it returns, and the empty path.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
