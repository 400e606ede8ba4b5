//! Connections to the kernel.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{
            AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};

use crate::device_sys;

/// A descriptor of a connection to the kernel, which may have several. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Channel {
    device: Arc<Device>,
}

#[derive(Debug)]
struct Device {
    descriptor: OwnedFd,
    /// The number of replies that the kernel still expects.
    unanswered: AtomicUsize,
}

impl Channel {
    /// Creates a channel over an open descriptor of the device.
    pub fn new(device: OwnedFd) -> Self {
        Self { device: Arc::new(Device { descriptor: device, unanswered: AtomicUsize::new(0) }) }
    }

    /// The number of requests received on this channel and its clones, but not on channels that joined it, whose replies were
    /// not sent yet.
    pub fn unanswered(&self) -> usize {
        self.device.unanswered.load(Acquire)
    }

    /// Opens another descriptor of the same connection, which blocks for requests. A request received on it must be
    /// answered on it.
    ///
    /// # Errors
    /// The device cannot be opened again, or is not mounted.
    pub fn join(&self) -> io::Result<Self> {
        device_sys::join(self.as_fd(), OFlags::empty()).map(Self::new)
    }

    /// Like [`Channel::join`], but [`Channel::receive`] on the new descriptor does not block.
    ///
    /// # Errors
    /// As [`Channel::join`].
    pub fn join_without_waiting(&self) -> io::Result<Self> {
        device_sys::join(self.as_fd(), OFlags::NONBLOCK).map(Self::new)
    }

    /// Makes [`Channel::receive`] return [`Receipt::Nothing`](crate::Receipt::Nothing) instead of blocking, for all who have
    /// this descriptor.
    ///
    /// # Errors
    /// The operating system refuses it.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = fcntl_getfl(&self.device.descriptor)?;
        Ok(fcntl_setfl(&self.device.descriptor, flags | OFlags::NONBLOCK)?)
    }

    /// Returns the poll events without waiting: `IN` if a request is pending, `ERR` if the connection has ended.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn events(&self) -> io::Result<PollFlags> {
        Ok(rustix::io::retry_on_intr(|| self.poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?)
    }

    /// Waits until [`Channel::receive`] would return something other than [`Receipt::Nothing`](crate::Receipt::Nothing), or until a signal arrives.
    ///
    /// # Errors
    /// As [`Channel::events`].
    pub fn wait(&self) -> io::Result<()> {
        match self.poll(None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn poll(&self, time: Option<&Timespec>) -> Result<PollFlags, Errno> {
        let mut descriptors = [PollFd::new(&self.device.descriptor, PollFlags::IN)];
        poll(&mut descriptors, time)?;
        Ok(descriptors[0].revents())
    }

    /// Notes that the kernel expects one more reply.
    pub(crate) fn note_request(&self) {
        self.device.unanswered.fetch_add(1, Relaxed);
    }

    /// Notes that the kernel got a reply.
    pub(crate) fn note_reply(&self) {
        self.device.unanswered.fetch_sub(1, Release);
    }

    /// Sends one message, gathered from pieces.
    pub(crate) fn send(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.device.descriptor, pieces)).map(drop)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.descriptor.as_fd()
    }
}
