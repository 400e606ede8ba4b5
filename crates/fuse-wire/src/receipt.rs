//! Requests, received with their replies.

use std::io;

use rustix::{event::PollFlags, io::Errno};

use crate::{
    Channel, Opcode, Reply, Request,
    abi::{InHeader, READ_BUFFER_BYTES_MIN},
    request::Malformed,
};

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
    /// Waits for the next request.
    ///
    /// # Errors
    /// The connection was aborted or failed, or the kernel sent bytes that are not a FUSE request.
    pub fn receive<'buffer>(&self, buffer: &'buffer mut RequestBuffer) -> io::Result<Receipt<'buffer>> {
        let bytes = buffer.bytes_mut();
        let mut has_ended = false;
        let len = loop {
            match rustix::io::read(self, &mut *bytes) {
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

    pub(crate) fn reply_to(&self, header: &InHeader) -> Reply {
        Reply::new(self.clone(), header.unique, Opcode(header.opcode).wants_reply())
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
