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
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use crate::{
    directory::NameInParent,
    failure::MountFailure,
    options::{Access, KernelOptions},
};

/// The variable with the number of the socket on which fusermount3 sends the descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// The socket of a waiting fusermount3, which unmounts when the socket is closed.
#[derive(Debug)]
pub struct AutoUnmount {
    socket: OwnedFd,
}

impl AutoUnmount {
    /// `socket` is that of a process that waits.
    pub fn new(socket: OwnedFd) -> Self {
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

/// A fusermount3 that waits until it is to unmount.
pub(crate) struct Waiting {
    pub(crate) auto_unmount: AutoUnmount,
    pub(crate) process: Child,
}

/// Mounts on a path. Returns the device, and fusermount3 if it waits to unmount.
///
/// # Errors
/// fusermount3 is missing or refuses.
pub(crate) fn mount(directory: &Path, options: &KernelOptions) -> Result<(OwnedFd, Option<Waiting>), MountFailure> {
    let program = program().ok_or(MountFailure::NoFusermount)?;
    std::fs::metadata(DEVICE).map_err(|error| MountFailure::Device { error })?;
    let failed = |error: io::Error| MountFailure::Refused { error };
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
            Ok((device, Some(Waiting { auto_unmount: AutoUnmount::new(ours), process: child })))
        }
        Ok(device) => {
            drop(ours);
            let _ = child.wait();
            Ok((device, None))
        }
        Err(_) => {
            drop(ours);
            let output = child.wait_with_output().map_err(failed)?;
            let message = explanation(&String::from_utf8_lossy(&output.stderr));
            Err(MountFailure::Fusermount { message })
        }
    }
}

/// Unmounts the mount on a name.
///
/// # Errors
/// The message of fusermount3, or `None` if it is not installed.
pub(crate) fn unmount(name: &NameInParent, is_lazy: bool) -> Result<(), Option<String>> {
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
fn arguments(options: &KernelOptions) -> OsString {
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
    for option in &options.others {
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
            let options = KernelOptions {
                source: source.to_owned(),
                subtype: "s,suid".to_owned(),
                access: Some(Access::Owner),
                ..KernelOptions::default()
            };
            assert_eq!(arguments(&options), OsString::from(expected));
        }
    }
}
