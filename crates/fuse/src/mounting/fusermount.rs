//! Mounting through fusermount3, a set-user-id program that mounts for users other than root.

use std::{
    env,
    ffi::OsString,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use floe_fuse_wire::DEVICE;
use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
        socketpair,
    },
    process::getuid,
};

use crate::{
    Access, Detach, MountEntry, MountError, MountOptions, MountTable,
    mounting::directory::{Directory, HeldName},
    mounting::mount_id_sys::listed_id,
    mounting::mountpoint::Connected,
    mounting::place::Place,
};

/// The variable with the number of the socket on which fusermount3 sends the descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// The socket of a waiting fusermount3, which unmounts when the socket is closed.
#[derive(Debug)]
pub(crate) struct AutoUnmount {
    socket: OwnedFd,
}

impl AutoUnmount {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// The socket, for another process to keep.
    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl AsFd for AutoUnmount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Mounts on a directory. Returns the place of the mount too.
///
/// fusermount3 takes a path, which may lead elsewhere by the time it mounts. A mount that is elsewhere is unmounted again.
///
/// # Errors
/// fusermount3 is missing or refuses, or its mount is elsewhere.
pub(crate) fn mount(directory: &Directory, options: &MountOptions) -> Result<(Connected, Place), MountError> {
    let covered = directory.held_name().ok().and_then(|name| listed_id(name.parent(), name.name()));
    let earlier = MountTable::read().ok();
    let (connected, child) = mount_on(&directory.path_now(), options)?;
    let place = Place::on(directory);
    let is_own = |entry: &MountEntry| entry.is_fuse() && entry.user_id == Some(getuid().as_raw());
    let (Some(earlier), Ok(table)) = (earlier, MountTable::read()) else { return Ok((connected, place)) };
    let entry = place.listed().and_then(|listed| table.with_id(listed));
    if place.listed() != covered && entry.is_some_and(is_own) {
        return Ok((connected, place));
    }
    if let Some(mut child) = child {
        // It would unmount what is at its path by then.
        let _ = child.kill();
        let _ = child.wait();
    }
    let is_new = |entry: &&MountEntry| !earlier.entries().contains(entry);
    let is_same = |entry: &&MountEntry| is_own(entry) && entry.source == *options.source;
    for entry in table.entries().iter().filter(is_new).filter(is_same) {
        let _ = Place::of(entry).unmount(Detach::Lazily);
    }
    let error = io::Error::other("another directory took its place at that moment");
    Err(MountError::Refused { path: directory.path().to_owned(), error })
}

/// Mounts on a path. Returns fusermount3 too if it waits to unmount.
fn mount_on(directory: &Path, options: &MountOptions) -> Result<(Connected, Option<Child>), MountError> {
    let program = program().ok_or(MountError::NoFusermount)?;
    std::fs::metadata(DEVICE).map_err(MountError::Device)?;
    let failed = |error: io::Error| MountError::Refused { path: directory.to_owned(), error };
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None);
    let (ours, theirs) = pair.map_err(|error| failed(error.into()))?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
    let mut child = Command::new(program)
        .arg("-o")
        .arg(arguments(options))
        .arg("--")
        .arg(directory)
        .env(SOCKET_VARIABLE, theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    drop(theirs);
    match receive_descriptor(&ours) {
        Ok(device) if options.auto_unmount => {
            // fusermount3 runs until the socket is closed.
            Ok((Connected { device, auto_unmount: Some(AutoUnmount::new(ours)) }, Some(child)))
        }
        Ok(device) => {
            drop(ours);
            let _ = child.wait();
            Ok((Connected { device, auto_unmount: None }, None))
        }
        Err(_) => {
            drop(ours);
            let output = child.wait_with_output().map_err(failed)?;
            Err(MountError::Fusermount(explanation(&String::from_utf8_lossy(&output.stderr))))
        }
    }
}

/// Unmounts the mount on a name.
///
/// # Errors
/// The message of fusermount3, or `None` if it is not installed.
pub(crate) fn unmount(name: &HeldName, is_lazy: bool) -> Result<(), Option<String>> {
    let mut command = Command::new(program().ok_or(None)?);
    command.arg("-u");
    if is_lazy {
        command.arg("-z");
    }
    command.arg("--").arg(name.name()).current_dir(name.parent_path()).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(Some(one_line(&String::from_utf8_lossy(&output.stderr)))) }
}

/// The path of fusermount3, or of its predecessor fusermount.
fn program() -> Option<PathBuf> {
    let search = env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> =
        env::split_paths(&search).chain(["/usr/bin".into(), "/bin".into()]).filter(|path| path.is_absolute()).collect();
    ["fusermount3", "fusermount"]
        .iter()
        .flat_map(|name| places.iter().map(move |place| place.join(name)))
        .find(|path| path.is_file())
}

/// The options as one argument, with commas and backslashes in values escaped.
fn arguments(options: &MountOptions) -> OsString {
    let escaped = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut arguments = "ro".to_owned();
    if !options.subtype.is_empty() {
        arguments.push_str(&format!(",subtype={}", escaped(&options.subtype)));
    }
    arguments.push_str(&format!(",fsname={}", escaped(&options.source)));
    let is_root = rustix::process::geteuid().is_root();
    for (is_set, name) in [
        (options.checks_permissions, "default_permissions"),
        (options.access() != Access::Owner, "allow_other"),
        (options.flags.nosuid, "nosuid"),
        (options.flags.nodev, "nodev"),
        // Without these options fusermount3 sets nosuid and nodev. It accepts them only from root.
        (is_root && !options.flags.nosuid, "suid"),
        (is_root && !options.flags.nodev, "dev"),
        (options.flags.noexec, "noexec"),
        (options.flags.nosymfollow, "nosymfollow"),
        (options.auto_unmount, "auto_unmount"),
    ] {
        if is_set {
            arguments.push(',');
            arguments.push_str(name);
        }
    }
    for option in &options.kernel_options {
        arguments.push(',');
        arguments.push_str(option);
    }
    arguments.into()
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    while let Err(error) = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    received.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// The error text for a message of fusermount3.
fn explanation(message: &str) -> String {
    if message.contains("user_allow_other") {
        return "users may not admit others to their mounts here: root must add the line user_allow_other to /etc/fuse.conf"
            .to_owned();
    }
    match one_line(message) {
        message if message.is_empty() => "fusermount3 failed without a message".to_owned(),
        message => message,
    }
}

fn one_line(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_cannot_smuggle_options() {
        for (source, expected) in [
            ("/a/b", "ro,subtype=s\\,suid,fsname=/a/b,default_permissions,nosuid,nodev"),
            ("/a,suid", "ro,subtype=s\\,suid,fsname=/a\\,suid,default_permissions,nosuid,nodev"),
            ("/a\\", "ro,subtype=s\\,suid,fsname=/a\\\\,default_permissions,nosuid,nodev"),
        ] {
            let options = MountOptions {
                source: source.to_owned(),
                subtype: "s,suid".to_owned(),
                access: Some(Access::Owner),
                ..MountOptions::default()
            };
            assert_eq!(arguments(&options), OsString::from(expected));
        }
    }
}
