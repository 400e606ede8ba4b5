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
    fs::OFlags,
    io::Errno,
};

use crate::{
    Opcode, Reply, Request,
    abi::{InHeader, READ_BUFFER_BYTES_MIN},
    device_sys,
    request::Malformed,
};

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

/// A buffer for requests. A thread reuses it for one request after the other.
#[derive(Debug)]
pub struct RequestBuffer {
    // Words, because the protocol aligns requests to 8 bytes.
    bytes: Box<[u64]>,
}

/// The result of [`Channel::receive`].
#[derive(Debug)]
pub enum Receipt<'buffer> {
    /// A request.
    Request(Received<'buffer>),
    /// No request is pending. Only non-blocking channels return this.
    Nothing,
    /// A signal interrupted the wait. No request was taken.
    Interrupted,
    /// The file system was unmounted; no more requests will come.
    Unmounted,
}

/// A request and its reply.
#[derive(Debug)]
pub struct Received<'buffer> {
    /// The request, or an error if the kernel violated the protocol.
    pub request: Result<Request<'buffer>, Malformed>,
    /// The reply to the request. Sends nothing for a request without a reply.
    pub reply: Reply,
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

    /// Waits for the next request.
    ///
    /// # Errors
    /// The connection was aborted or failed, or the kernel sent bytes that are not a FUSE request.
    pub fn receive<'buffer>(&self, buffer: &'buffer mut RequestBuffer) -> io::Result<Receipt<'buffer>> {
        let bytes = buffer.bytes_mut();
        let mut has_ended = false;
        let len = loop {
            match rustix::io::read(&self.device.descriptor, &mut *bytes) {
                Ok(len) => break len,
                // The connection may just be ending, while the kernel copied a request here, such as the RELEASE before an
                // unmount. Once it has ended, a further read tells whether it was aborted.
                Err(Errno::CONNABORTED) if !has_ended => has_ended = self.events()?.contains(PollFlags::ERR),
                // The caller was killed before its request was read.
                Err(Errno::NOENT) => {}
                Err(Errno::INTR) => return Ok(Receipt::Interrupted),
                Err(Errno::AGAIN) => return Ok(Receipt::Nothing),
                Err(Errno::NODEV) => return Ok(Receipt::Unmounted),
                Err(error) => return Err(error.into()),
            }
        };
        let request = Request::parse(&bytes[..len]);
        let header = match request {
            Ok(Request { header, .. }) | Err(Malformed::Body(header)) => header,
            Err(Malformed::Header) => return Err(io::Error::new(io::ErrorKind::InvalidData, Malformed::Header)),
        };
        let reply = self.reply_to(&header);
        Ok(Receipt::Request(Received { request, reply }))
    }

    /// Returns the poll events without waiting: `IN` if a request is pending, `ERR` if the connection has ended.
    ///
    /// # Errors
    /// The kernel has no memory.
    pub fn events(&self) -> io::Result<PollFlags> {
        Ok(rustix::io::retry_on_intr(|| self.poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?)
    }

    /// Waits until [`Channel::receive`] would return something other than [`Receipt::Nothing`], or until a signal arrives.
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

    pub(crate) fn reply_to(&self, header: &InHeader) -> Reply {
        Reply::new(self.clone(), header.unique, Opcode(header.opcode).wants_reply())
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

impl RequestBuffer {
    /// Creates a buffer for a connection whose writes have at most `write_bytes_max` bytes.
    pub fn new(write_bytes_max: usize) -> Self {
        // The kernel refuses to fill a buffer that is too small for the longest write with its headers.
        let len = (write_bytes_max + READ_BUFFER_BYTES_MIN / 2).max(READ_BUFFER_BYTES_MIN);
        Self { bytes: vec![0; len.div_ceil(size_of::<u64>())].into_boxed_slice() }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        zerocopy::IntoBytes::as_mut_bytes(&mut *self.bytes)
    }
}
