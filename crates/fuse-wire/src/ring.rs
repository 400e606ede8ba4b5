//! Rings: the transport over io_uring, one for each thread that takes requests.

use std::{collections::VecDeque, io, sync::Arc};

use io_uring::cqueue;
use rustix::io::Errno;

use crate::{
    Channel, Receipt, Received, Reply, Request, RequestBuffer,
    abi::READ_BUFFER_BYTES_MIN,
    request::Malformed,
    ring_core_sys::{BELL, Core, InSlot},
};

/// The number of slots for each queue: the maximal number of requests that were received and have no reply.
const SLOTS_PER_QUEUE: usize = 32;

/// The ring of one thread, for some of the kernel's queues. The kernel has a queue for each CPU, and puts a request into the
/// queue of the CPU from which it comes.
///
/// A ring is created without a connection, because a confined process may not create one. It only accepts the commands
/// that this type submits: the kernel refuses all others, such as opening a file.
#[derive(Debug)]
pub struct Ring {
    core: Arc<Core>,
    /// The numbers of the queues.
    queues: Vec<u16>,
    payload_bytes: usize,
    /// Requests that arrived while slots were added.
    early: VecDeque<cqueue::Entry>,
}

impl Ring {
    /// Creates a ring for these queues of a connection.
    ///
    /// # Errors
    /// The kernel has no io_uring, or this process may not use it.
    pub fn new(queues: Vec<u16>) -> io::Result<Self> {
        let core = Core::new(queues.len() * SLOTS_PER_QUEUE)?;
        Ok(Self { core: Arc::new(core), queues, payload_bytes: 0, early: VecDeque::new() })
    }

    /// The numbers of the queues.
    pub fn queues(&self) -> &[u16] {
        &self.queues
    }

    /// Makes the calling thread the one that takes requests, and announces the queues to the kernel. The terms of the
    /// connection include [`InitFlags::OVER_IO_URING`](crate::InitFlags::OVER_IO_URING), and replies of at most
    /// `payload_bytes`. Requests wait until all queues of the machine are announced.
    ///
    /// # Errors
    /// The kernel refuses, and sends all requests over `/dev/fuse`.
    pub fn start(&mut self, channel: &Channel, payload_bytes: usize) -> io::Result<()> {
        self.payload_bytes = payload_bytes.max(READ_BUFFER_BYTES_MIN);
        self.core.start(channel)?;
        self.add_slots(1)
    }

    /// Lets the kernel send more than one request of each queue at a time. Called by the thread that has started the ring, while
    /// `fuse.enable_uring` is set: after a refusal, the kernel accepts replies only while it is set.
    ///
    /// # Errors
    /// The kernel refuses, or there is no memory. The connection is to be closed.
    pub fn fill(&mut self) -> io::Result<()> {
        self.add_slots(SLOTS_PER_QUEUE - 1)
    }

    /// Adds slots to each queue.
    fn add_slots(&mut self, count: usize) -> io::Result<()> {
        for &queue in self.queues.iter().flat_map(|queue| std::iter::repeat_n(queue, count)) {
            self.core.add_slot(queue, self.payload_bytes)?;
        }
        self.core.submit()?;
        while let Some(completion) = self.core.next_completion() {
            if completion.result() < 0 {
                return Err(io::Error::from_raw_os_error(-completion.result()));
            }
            self.early.push_back(completion);
        }
        Ok(())
    }

    /// Waits for the next request. Called by the thread that has started the ring.
    ///
    /// # Errors
    /// The connection failed.
    pub fn receive<'buffer>(&mut self, buffer: &'buffer mut RequestBuffer) -> io::Result<Receipt<'buffer>> {
        let mut slot = loop {
            self.core.commit_returned()?;
            let completion = self.early.pop_front().or_else(|| self.core.next_completion());
            let Some(completion) = completion else {
                self.core.wait()?;
                continue;
            };
            if completion.user_data() == BELL {
                if !cqueue::more(completion.flags()) {
                    self.core.watch_bell()?;
                }
                continue;
            }
            let Some(slot) = self.core.take(completion.user_data()) else { continue };
            if completion.result() >= 0 {
                break slot;
            }
            let errno = Errno::from_raw_os_error(-completion.result());
            if matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) {
                return Ok(Receipt::Unmounted);
            }
            self.core.give_again(slot, errno)?;
        };
        let bytes = buffer.bytes_mut();
        let taken = slot.take_request(bytes);
        let (header, len) = taken.unwrap_or_default();
        let unique = if taken.is_some() { header.unique } else { slot.commit_id };
        let reply = Reply::in_slot(InSlot::new(&self.core, slot), unique);
        // One wrong request does not end the connection: the reply is an error.
        let request = Request::parse(&bytes[..len]).map_err(|_| Malformed::Body(header));
        Ok(Receipt::Request(Received { request, reply }))
    }
}
