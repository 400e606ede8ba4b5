//! Aborts a FUSE connection that is no longer served.
//!
//! `FUSE_NOTIFY_STORE` waits for pages that are being read. If the process that serves the mount is killed then, these reads
//! get no reply: the storing thread never ends, and keeps the connection open. The same holds for a thread that waits for an
//! unresponsive source, or that hangs while it closes one. Only an abort frees the readers.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
};

use floe_sync::Mutex;
use rustix::{
    event::Timespec,
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::parent_sys::Parent;

/// The usual mountpoint of the file system of FUSE's connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// How long the parent has to end after its main thread.
const END_TIME_MAX: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

/// The file that aborts one connection. It stays valid after the mount has left the mount table.
#[derive(Debug)]
pub(crate) struct Abort {
    file: File,
}

/// The file system of FUSE's connections, for a process that looks for many. If it is mounted nowhere, each mount of it makes the kernel
/// list all connections of the machine, and its end forget them: 10 ms if there are 1,000. So this keeps the first one.
#[derive(Debug, Default)]
pub struct FuseConnections {
    /// Attached to no directory.
    mount: Mutex<Option<OwnedFd>>,
}

impl Abort {
    /// The name of the thread that waits for the parent's end.
    pub(crate) const THREAD: &str = "floe-abort";

    /// The file for the mount whose files have this device number.
    ///
    /// # Errors
    /// This process may neither see nor mount the file system of FUSE's connections.
    pub(crate) fn open((_, minor): (u32, u32), connections: &FuseConnections) -> io::Result<Self> {
        let name = format!("{minor}/abort");
        match File::options().write(true).open(format!("{CONNECTIONS}/{name}")) {
            Ok(file) => Ok(Self { file }),
            Err(_) => Ok(Self { file: connections.open(&name)? }),
        }
    }

    /// Aborts the connection.
    pub(crate) fn now(&mut self) {
        // It may have ended.
        let _ = self.file.write_all(b"1");
    }

    /// Waits for the end of the parent's main thread, and aborts the connection if the parent does not end soon after it.
    pub(crate) fn when_stuck(mut self, parent: &Parent) {
        parent.wait_for_main_thread();
        if !parent.ends_within(END_TIME_MAX) {
            self.now();
        }
    }
}

impl FuseConnections {
    /// Opens a file for writing.
    fn open(&self, name: &str) -> rustix::io::Result<File> {
        let mut mount = self.mount.lock();
        let mounted = match mount.take() {
            Some(mounted) => mounted,
            None => {
                let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
                fsconfig_create(&context)?;
                fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?
            }
        };
        let root = mount.insert(mounted);
        openat(root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
    }
}
