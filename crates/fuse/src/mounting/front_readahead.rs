//! Readahead in the files of a front.
//!
//! A thread that serves requests must not wait for its own front. It sends the ranges to read over a socket, and a thread
//! that serves no requests reads them into the front's page cache. The keeper runs that thread, where there is a keeper.
//! The thread reads through a private clone of the mount, because open files in the users' mount would make it busy. It
//! drops the clone as soon as the users' mount is gone.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
};

use floe_image::ByteRange;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{Advice, fadvise},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
};

use crate::{
    Unmounter,
    connection::serving_thread::may_wait_for_mount,
    mounting::{front_files_sys::FrontFiles, table::TABLE_PATH},
};

/// The length of a range in a message, in bytes.
const RANGE_BYTES: usize = 24;

/// The maximum number of ranges in a message.
const RANGES_MAX: usize = 64;

/// The number of bytes per `fadvise` call. The kernel reads no more than its readahead window for one call.
const STEP_BYTES: u64 = 128 << 10;

/// A range of a file of a front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontRange {
    /// The inode number in the front's EROFS.
    pub nid: u64,
    /// The bytes of that file.
    pub range: ByteRange,
}

/// The sending end: requests ranges and never blocks.
#[derive(Debug)]
pub(crate) struct FrontReadahead {
    socket: OwnedFd,
}

/// The receiving end: reads the requested ranges.
#[derive(Debug)]
pub(crate) struct FrontReader {
    socket: OwnedFd,
    files: FrontFiles,
}

/// Creates both ends for a front; `clone` is a private clone of its mount.
///
/// # Errors
/// No socket can be created, or the front's files cannot be opened by their inode numbers.
pub(crate) fn front_readahead(clone: &OwnedFd) -> io::Result<(FrontReadahead, FrontReader)> {
    let files = FrontFiles::new(clone.as_fd())?;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((FrontReadahead::new(ours), FrontReader { socket: theirs, files }))
}

impl FrontReadahead {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket }
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Requests ranges, and returns the number of bytes requested. If the socket is full, the remaining ranges are dropped.
    pub(crate) fn ask(&self, ranges: &[FrontRange]) -> u64 {
        let mut asked = 0;
        for ranges in ranges.chunks(RANGES_MAX) {
            let message: Vec<u8> = ranges.iter().flat_map(|range| range.to_bytes()).collect();
            if send(&self.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
                break;
            }
            asked += ranges.iter().map(|range| range.range.len()).sum::<u64>();
        }
        asked
    }
}

impl FrontReader {
    /// The name of the thread that runs this.
    pub(crate) const THREAD: &str = "floe-front";

    /// Reads the requested ranges until the other end is closed or the mount is gone.
    pub(crate) fn run(self, mount: &Unmounter) {
        may_wait_for_mount();
        let Ok(table) = File::open(TABLE_PATH) else { return };
        let mut open: Option<(u64, OwnedFd)> = None;
        let mut message = vec![0; RANGES_MAX * RANGE_BYTES];
        while mount.is_mounted() {
            loop {
                let mut waiting =
                    [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&table, PollFlags::PRI | PollFlags::ERR)];
                match poll(&mut waiting, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return,
                }
                let [has_message, has_other_mounts] = waiting.map(|waiting| !waiting.revents().is_empty());
                if has_message {
                    match recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT) {
                        Ok((0, _)) => return,
                        Ok((len, _)) => self.read(&message[..len], &mut open),
                        Err(Errno::INTR | Errno::AGAIN) => {}
                        Err(_) => return,
                    }
                }
                if has_other_mounts {
                    break;
                }
            }
        }
    }

    /// Reads the ranges of a message. `open` is the file that was read last.
    fn read(&self, message: &[u8], open: &mut Option<(u64, OwnedFd)>) {
        let (ranges, _) = message.as_chunks();
        for FrontRange { nid, range } in ranges.iter().map(FrontRange::from_bytes) {
            if open.as_ref().is_none_or(|(other, _)| *other != nid) {
                *open = self.files.open(nid).ok().map(|file| (nid, file));
            }
            let Some((_, file)) = open else { continue };
            let mut offset = range.offset();
            while let Some(len) = std::num::NonZero::new(range.end().saturating_sub(offset).min(STEP_BYTES)) {
                // Errors are ignored: a reader of the same range receives them.
                let _ = fadvise(&*file, offset, Some(len), Advice::WillNeed);
                offset += len.get();
            }
        }
    }
}

impl FrontRange {
    fn to_bytes(self) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        let numbers = [self.nid, self.range.offset(), self.range.len()];
        for (part, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            part.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; RANGE_BYTES]) -> Self {
        let number = |index: usize| {
            let (numbers, _) = bytes.as_chunks();
            u64::from_ne_bytes(numbers[index])
        };
        Self { nid: number(0), range: ByteRange::new(number(1), number(2)) }
    }
}
