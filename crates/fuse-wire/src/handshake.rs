//! What a server and the kernel agree upon at the start.

use std::io;

use rustix::io::Errno;

use crate::{
    Channel, InitFlags, Operation, Receipt, Received, RequestBuffer,
    abi::{InitIn, InitOut, MAJOR, MINOR, MINOR_MIN},
};

/// What the kernel offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The minor version that it speaks.
    pub minor: u32,
    /// What it can do.
    pub flags: InitFlags,
    /// How far it would read ahead, in bytes.
    pub read_ahead_bytes_max: u32,
}

/// What a server asks for. What the kernel does not offer is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// What the server wants of what the kernel can do.
    pub flags: InitFlags,
    /// How far the kernel may read ahead, in bytes.
    pub read_ahead_bytes_max: u32,
    /// How many background requests may be under way; readahead is one of them.
    pub background_max: u16,
    /// From how many on the kernel takes the connection for congested.
    pub congestion_threshold: u16,
    /// The longest write, in bytes. The buffers of [`Channel::receive`] must have room for it.
    pub write_bytes_max: u32,
    /// The longest read, in pages of the machine. Counts with [`InitFlags::MAX_PAGES`].
    pub pages_max: u16,
    /// The finest difference between two timestamps, in nanoseconds.
    pub time_granularity_ns: u32,
    /// After so many seconds without an answer the kernel aborts the connection. Counts with
    /// [`InitFlags::REQUEST_TIMEOUT`].
    pub request_timeout_s: u16,
}

/// What holds for a connection from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreement {
    /// The minor version that both speak.
    pub minor: u32,
    /// What both do.
    pub flags: InitFlags,
}

impl Channel {
    /// Waits for the kernel's first request and answers it with the terms for what it offers.
    ///
    /// # Errors
    /// The kernel speaks none of the versions that this crate does, or the mount went away.
    pub fn negotiate(&self, terms: impl FnOnce(&Offer) -> Terms) -> io::Result<Agreement> {
        let mut buffer = RequestBuffer::new(0);
        loop {
            let Received { request, reply } = match self.receive(&mut buffer)? {
                Receipt::Request(received) => received,
                Receipt::Nothing => return Err(io::ErrorKind::WouldBlock.into()),
                Receipt::Unmounted => return Err(io::Error::new(io::ErrorKind::NotConnected, "it was unmounted")),
            };
            let Ok(Operation::Init(init)) = request.map(|request| request.operation) else {
                drop(reply);
                return Err(io::Error::new(io::ErrorKind::InvalidData, "its first request was not INIT"));
            };
            if init.major > MAJOR {
                // It asks again, with this version.
                reply.with(&InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() });
                continue;
            }
            if init.major < MAJOR || init.minor < MINOR_MIN {
                reply.refuse(Errno::PROTO);
                let message = format!("it speaks version {}.{} of FUSE, which is too old", init.major, init.minor);
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
            read_ahead_bytes_max: init.max_readahead,
        }
    }

    fn settle(&self, terms: Terms) -> (Agreement, InitOut) {
        // The kernel looks at the second field only where the first says that it counts.
        let flags = (terms.flags | InitFlags::INIT_EXT) & self.flags;
        let (flags1, flags2) = flags.fields();
        let answer = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: terms.read_ahead_bytes_max.min(self.read_ahead_bytes_max),
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
