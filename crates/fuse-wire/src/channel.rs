//! Connections to the kernel.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
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

/// A connection to the kernel, or one of several descriptors of it. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Channel {
    device: Arc<OwnedFd>,
}

/// Where a request is read into. One thread uses it for one request after the other.
#[derive(Debug)]
pub struct RequestBuffer {
    // Requests are read to the beginning of a machine word, as the protocol aligns them.
    bytes: Box<[u64]>,
}

/// What came of a look for a request.
#[derive(Debug)]
pub enum Receipt<'buffer> {
    /// A request.
    Request(Received<'buffer>),
    /// There is none now. Only channels that do not wait say so.
    Nothing,
    /// The file system was unmounted; there will be no more.
    Unmounted,
}

/// A request and its reply.
#[derive(Debug)]
pub struct Received<'buffer> {
    /// The request; an error if the kernel sent something that breaks the protocol.
    pub request: Result<Request<'buffer>, Malformed>,
    /// Its reply. For a request that wants none, it sends nothing.
    pub reply: Reply,
}

impl Channel {
    /// A channel over an open descriptor of the device.
    pub fn new(device: OwnedFd) -> Self {
        Self { device: Arc::new(device) }
    }

    /// Another descriptor of the same connection, which waits for requests as this one does. A request that is received
    /// there is answered there.
    ///
    /// # Errors
    /// The device cannot be opened again, or is not mounted.
    pub fn join(&self) -> io::Result<Self> {
        device_sys::join(self.device.as_fd(), OFlags::empty()).map(Self::new)
    }

    /// As [`Channel::join`], but it never waits in [`Channel::receive`].
    ///
    /// # Errors
    /// As [`Channel::join`].
    pub fn join_without_waiting(&self) -> io::Result<Self> {
        device_sys::join(self.device.as_fd(), OFlags::NONBLOCK).map(Self::new)
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// The connection was aborted or failed, or what came is not a request of FUSE.
    pub fn receive<'buffer>(&self, buffer: &'buffer mut RequestBuffer) -> io::Result<Receipt<'buffer>> {
        let bytes = zerocopy::IntoBytes::as_mut_bytes(&mut *buffer.bytes);
        let len = loop {
            match rustix::io::read(&*self.device, &mut *bytes) {
                Ok(len) => break len,
                // ENOENT: whoever asked was killed before the request was read.
                Err(Errno::NOENT | Errno::INTR) => {}
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

    /// What could be done now without waiting: `IN` where a request waits, `ERR` where the connection has ended.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn events(&self) -> io::Result<PollFlags> {
        self.poll(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// Waits until [`Channel::receive`] would not say that there is nothing.
    ///
    /// # Errors
    /// As [`Channel::events`].
    pub fn wait(&self) -> io::Result<()> {
        self.poll(None).map(drop)
    }

    fn poll(&self, time: Option<&Timespec>) -> io::Result<PollFlags> {
        let mut descriptors = [PollFd::new(&self.device, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut descriptors, time))?;
        Ok(descriptors[0].revents())
    }

    pub(crate) fn reply_to(&self, header: &InHeader) -> Reply {
        Reply::new(self.clone(), header.unique, Opcode(header.opcode).wants_reply())
    }

    /// Sends one message in pieces.
    pub(crate) fn send(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&*self.device, pieces)).map(drop)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl RequestBuffer {
    /// A buffer for requests of a connection on which no write is longer than `write_bytes_max`.
    pub fn new(write_bytes_max: usize) -> Self {
        // The kernel gives out nothing where the longest write would not fit, with its header and structure.
        let len = (write_bytes_max + READ_BUFFER_BYTES_MIN / 2).max(READ_BUFFER_BYTES_MIN);
        Self { bytes: vec![0; len.div_ceil(size_of::<u64>())].into_boxed_slice() }
    }
}
