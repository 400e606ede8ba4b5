//! The handshake (INIT) between a server and the kernel.

use std::io;

use rustix::io::Errno;

use crate::{
    Channel, InitFlags, Operation, Receipt, Received, RequestBuffer,
    abi::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN},
};

/// The kernel's offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The minor version of the kernel's protocol.
    pub minor: u32,
    /// The features that the kernel supports.
    pub flags: InitFlags,
    /// The kernel's maximal readahead, in bytes.
    pub readahead_bytes_max: u32,
}

/// The terms of a server. Features that the kernel does not offer are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The features that the server wants.
    pub flags: InitFlags,
    /// The maximal readahead, in bytes.
    pub readahead_bytes_max: u32,
    /// The maximal number of background requests in flight, such as readahead.
    pub background_max: u16,
    /// The number of background requests from which on the kernel considers the connection congested.
    pub congestion_threshold: u16,
    /// The maximal size of a write, in bytes. The buffers for [`Channel::receive`] must have room for it.
    pub write_bytes_max: u32,
    /// The maximal size of a read, in pages of the machine. Requires [`InitFlags::MAX_PAGES`].
    pub pages_max: u16,
    /// The granularity of timestamps, in nanoseconds.
    pub time_granularity_ns: u32,
    /// The time after which the kernel aborts the connection if a request has no reply, in seconds. Requires
    /// [`InitFlags::REQUEST_TIMEOUT`].
    pub request_timeout_s: u16,
}

/// The result of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The common minor version.
    pub minor: u32,
    /// The features in use.
    pub flags: InitFlags,
}

impl Channel {
    /// Waits for the kernel's INIT request and answers it with the terms for its offer.
    ///
    /// # Errors
    /// The kernel speaks no supported version, or the file system was unmounted.
    pub fn negotiate(&self, terms: impl FnOnce(&Offer) -> Terms) -> io::Result<Agreement> {
        let mut buffer = RequestBuffer::new(0);
        loop {
            let Received { request, reply } = match self.receive(&mut buffer)? {
                Receipt::Request(received) => received,
                Receipt::Nothing => return Err(io::ErrorKind::WouldBlock.into()),
                Receipt::Interrupted => continue,
                Receipt::Unmounted => {
                    return Err(io::Error::new(io::ErrorKind::NotConnected, "the file system was unmounted"));
                }
            };
            let Ok(Operation::Init(init)) = request.map(|request| request.operation) else {
                drop(reply);
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the first request was not INIT"));
            };
            if init.major > MAJOR {
                // The kernel repeats INIT with this version.
                reply.with(&InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() });
                continue;
            }
            if init.major < MAJOR || init.minor < MINOR_MIN {
                reply.refuse(Errno::PROTO);
                let message = format!(
                    "the kernel's FUSE version {}.{} is older than {MAJOR}.{MINOR_MIN}",
                    init.major, init.minor
                );
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
            let offer = Offer::of(&init);
            let (agreement, answer) = offer.settle(terms(&offer));
            reply.with(&answer);
            return Ok(agreement);
        }
    }
}

impl Offer {
    fn of(init: &InitIn) -> Self {
        Self {
            minor: init.minor.min(MINOR),
            flags: InitFlags::of_fields(init.flags, init.flags2),
            readahead_bytes_max: init.max_readahead,
        }
    }

    fn settle(&self, terms: Terms) -> (Agreement, InitOut) {
        // The kernel reads the second field of flags only if the first contains INIT_EXT.
        let flags = (terms.flags | InitFlags::INIT_EXT) & self.flags;
        let (flags1, flags2) = flags.fields();
        let answer = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: terms.readahead_bytes_max.min(self.readahead_bytes_max),
            flags: flags1,
            max_background: terms.background_max,
            congestion_threshold: terms.congestion_threshold,
            max_write: terms.write_bytes_max,
            time_gran: terms.time_granularity_ns,
            max_pages: terms.pages_max,
            flags2,
            request_timeout: terms.request_timeout_s,
            ..InitOut::default()
        };
        (Agreement { minor: self.minor, flags }, answer)
    }
}
