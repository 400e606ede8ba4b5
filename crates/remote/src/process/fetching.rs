//! A process that fetches several images, as the process that has started it sees it.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
};

use floe_image::start_error;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::message::{MESSAGE_BYTES_MAX, Wanted, send_with};
use crate::ImageOptions;

/// A process that fetches several images. It lives as long as one of them is open, and as long as this.
#[derive(Debug)]
pub struct FetchingProcess {
    orders: OwnedFd,
}

impl FetchingProcess {
    /// Starts `program`, which must call [`serve_several`](super::serve_several) with its standard input.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(mut program: Command) -> io::Result<(Self, Child)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Signals of a terminal are not for it.
        program.stdin(Stdio::from(theirs)).stdout(Stdio::null()).process_group(0);
        let child = program.spawn().map_err(start_error)?;
        Ok((Self { orders: ours }, child))
    }

    /// Asks for the image at `location`. Returns the connection for [`RemoteProcess::connected`](super::RemoteProcess::connected),
    /// which may belong to another process: that one learns whether the image can be opened.
    ///
    /// # Errors
    /// The process has ended, or does not take the request.
    pub fn open(&self, location: &str, options: &ImageOptions) -> io::Result<OwnedFd> {
        let wanted = Wanted { location: location.to_owned(), options: options.clone() };
        let bytes = serde_json::to_vec(&wanted)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the URL is too long"));
        }
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        send_with(&self.orders, &bytes, &[theirs.as_fd()], SendFlags::DONTWAIT)?;
        Ok(ours)
    }
}
