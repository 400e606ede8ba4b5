//! Answers for requests that no session thread is left to take.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::REQUEST_BYTES_MAX;

const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// A way to the kernel of its own, on which requests are refused while all session threads are stuck in the source.
pub(crate) struct Rescue {
    device: OwnedFd,
    buffer: Vec<u8>,
}

impl Rescue {
    /// A rescue over a descriptor that never waits in a read.
    pub(crate) fn new(device: OwnedFd) -> Self {
        Self { device, buffer: Vec::new() }
    }

    /// Whether the file system was unmounted, or the connection aborted.
    pub(crate) fn is_disconnected(&self) -> bool {
        self.events().contains(PollFlags::ERR)
    }

    /// Answers the requests that wait to be taken with `EIO`; gives how many.
    pub(crate) fn refuse_pending(&mut self) -> usize {
        if !self.events().contains(PollFlags::IN) {
            return 0;
        }
        let mut refused = 0;
        self.buffer.resize(REQUEST_BYTES_MAX, 0);
        while let Ok(len) = rustix::io::read(&self.device, &mut self.buffer[..]) {
            if let Some(answer) = refusal(&self.buffer[..len]) {
                refused += usize::from(rustix::io::write(&self.device, &answer).is_ok());
            }
        }
        refused
    }

    /// What could be done now without waiting.
    fn events(&self) -> PollFlags {
        let mut descriptors = [PollFd::new(&self.device, PollFlags::IN)];
        match poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(_) => descriptors[0].revents(),
            Err(_) => PollFlags::empty(),
        }
    }
}

/// The answer `EIO` to a request; none where it wants no answer.
fn refusal(request: &[u8]) -> Option<[u8; 16]> {
    let opcode = u32::from_ne_bytes(request.get(4..8)?.try_into().ok()?);
    if matches!(opcode, FORGET | INTERRUPT | BATCH_FORGET) {
        return None;
    }
    let mut answer = [0; 16];
    answer[..4].copy_from_slice(&16u32.to_ne_bytes());
    answer[4..8].copy_from_slice(&(-libc::EIO).to_ne_bytes());
    answer[8..].copy_from_slice(request.get(8..16)?);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_their_request() {
        let mut request = [0; 40];
        request[8..16].copy_from_slice(&77u64.to_ne_bytes());
        for (opcode, is_answered) in
            [(1u32, true), (FORGET, false), (15, true), (INTERRUPT, false), (BATCH_FORGET, false)]
        {
            request[4..8].copy_from_slice(&opcode.to_ne_bytes());
            let answer = refusal(&request);
            assert_eq!(answer.is_some(), is_answered, "{opcode}");
            if let Some(answer) = answer {
                assert_eq!(answer[..4], 16u32.to_ne_bytes());
                assert_eq!(answer[4..8], (-5i32).to_ne_bytes());
                assert_eq!(answer[8..], 77u64.to_ne_bytes());
            }
        }
        assert_eq!(refusal(&request[..10]), None);
    }
}
