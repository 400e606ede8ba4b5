//! Moves file data from the page cache of a hidden image into that of its front.
//!
//! EROFS copies the bytes that it reads from the hidden image into the pages of its own files. The pages of the hidden
//! image are then a second copy. A thread that serves no requests reads ahead in the front, and drops second copies. It
//! reads through a private clone of the mount, because open files in the users' mount would make it busy, and drops the
//! clone when the users' mount is gone.
//!
//! The thread belongs to the keeper: a process that is killed while one of its own threads waits for its replies would never end.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    num::NonZero,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use floe_engine::{Priority, reschedule_this_thread, schedule_this_thread};
use floe_image::ByteRange;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Advice, AtFlags, StatxFlags, fadvise, statx},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair},
};

use crate::{
    Unmounter,
    connection::serving_thread::may_wait_for_mount,
    mounting::{front_files_sys::FrontFiles, mount_id_sys::DONT_SYNC, table::TABLE_PATH},
};

/// The length of a record in a message, in bytes: five numbers.
const RECORD_BYTES: usize = 40;

/// The maximum number of records in a message.
const RECORDS_MAX: usize = 64;

/// The maximum number of records that wait to be sent. If there are more, the bytes of the oldest stay in the hidden image's
/// page cache until they are read or the kernel needs their memory.
const WAITING_RECORDS_MAX: usize = 1 << 12;

/// Records are sent when they cover this many bytes.
const SENT_BYTES: u64 = 1 << 20;

/// The number of bytes that the kernel is asked to read at a time: it reads no more than its readahead window at once.
const STEP_BYTES: u64 = 128 << 10;

/// The maximum size of all second copies in bytes. Data that the kernel has read ahead of a reader is among them.
const SECOND_COPIES_BYTES_MAX: u64 = 8 << 20;

/// The maximum number of ranges that have a second copy.
const SECOND_COPIES_MAX: usize = 1 << 14;

/// The time without a record after which all second copies are dropped.
const QUIET: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The number in a record that has no file: the kernel has read the range or will do so soon.
const NO_FILE: u64 = u64::MAX;

/// The place in the hidden image of bytes that have no second copy.
const NOWHERE: u64 = u64::MAX;

/// A range of a file of a front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontRange {
    /// The inode number in the front's EROFS.
    pub nid: u64,
    /// The bytes of that file.
    pub range: ByteRange,
    /// The offset of the first of these bytes in the hidden image.
    pub image_offset: u64,
}

/// The sending end. It never blocks.
#[derive(Debug)]
pub(crate) struct FrontTransfer {
    socket: OwnedFd,
    /// The id of the thread that reads ahead; 0 if nothing is read ahead.
    thread: u32,
    waiting: Mutex<Waiting>,
}

/// Records that are not sent yet.
#[derive(Default, Debug)]
struct Waiting {
    records: VecDeque<Record>,
    bytes: u64,
    /// The number of records that the full socket has refused; 0 if there was room.
    refused: usize,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct FrontMover {
    socket: OwnedFd,
    /// `None` if nothing is to be read ahead.
    files: Option<FrontFiles>,
    /// The hidden image.
    image: OwnedFd,
}

/// Bytes of the hidden image that are in its page cache, or soon will be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Record {
    /// The file of the front that has these bytes and must read them; or [`NO_FILE`].
    nid: u64,
    offset: u64,
    len: u64,
    image_offset: u64,
    /// Whether CPUs are short, so that the readers of the file would otherwise run first.
    is_urgent: bool,
}

/// The scheduling of the thread that executes messages.
struct Schedule {
    /// Whether it follows the urgency of the records.
    is_auto: bool,
    /// Whether the last message was urgent.
    is_urgent: bool,
}

/// The ranges of the hidden image that have a second copy, the oldest first.
#[derive(Default)]
struct SecondCopies {
    ranges: VecDeque<ByteRange>,
    bytes: u64,
}

/// Creates both ends of the transfer for the front of `image`. `clone` is a private clone of its mount; without one, or
/// if its files cannot be opened by number, nothing is read ahead.
///
/// # Errors
/// There is no socket.
pub(crate) fn front_transfer(clone: Option<&OwnedFd>, image: OwnedFd) -> io::Result<(FrontTransfer, FrontMover)> {
    let files = clone.and_then(|clone| FrontFiles::new(clone.as_fd()).ok());
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    Ok((FrontTransfer::new(ours, 0), FrontMover { socket: theirs, files, image }))
}

impl FrontTransfer {
    /// `thread` is the id of the thread that reads ahead; 0 if nothing is read ahead.
    pub(crate) fn new(socket: OwnedFd, thread: u32) -> Self {
        Self { socket, thread, waiting: Mutex::default() }
    }

    /// The id of the thread that reads ahead; 0 if nothing is read ahead.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    pub(crate) fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Asks the front to read these ranges, which the page cache of the hidden image has.
    pub(crate) fn ask(&self, ranges: &[FrontRange]) {
        let records = ranges.iter().map(|FrontRange { nid, range, image_offset }| Record {
            nid: *nid,
            offset: range.offset(),
            len: range.len(),
            image_offset: *image_offset,
            is_urgent: false,
        });
        self.note(records);
    }

    /// Asks the front to read these ranges at once, which have no second copy. If it `is_urgent`, this comes before the
    /// readers of the files.
    pub(crate) fn request(&self, ranges: &[FrontRange], is_urgent: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for FrontRange { nid, range, .. } in ranges {
            let (offset, len) = (range.offset(), range.len());
            waiting.add(Record { nid: *nid, offset, len, image_offset: NOWHERE, is_urgent });
        }
        if waiting.refused == 0 {
            self.send(&mut waiting);
        }
    }

    /// Notes that the front reads these ranges of the hidden image.
    pub(crate) fn note_read(&self, ranges: impl Iterator<Item = ByteRange>) {
        self.note(ranges.map(|range| Record {
            nid: NO_FILE,
            offset: 0,
            len: range.len(),
            image_offset: range.offset(),
            is_urgent: false,
        }));
    }

    fn note(&self, records: impl Iterator<Item = Record>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        records.for_each(|record| waiting.add(record));
        if waiting.is_due() {
            self.send(&mut waiting);
        }
    }

    /// Sends the records that wait, unless the socket is full.
    fn send(&self, waiting: &mut Waiting) {
        while !waiting.records.is_empty() {
            let len = waiting.records.len().min(RECORDS_MAX);
            let message: Vec<u8> = waiting.records.iter().take(len).flat_map(|record| record.to_bytes()).collect();
            if send(&self.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err() {
                waiting.remove(waiting.records.len().saturating_sub(WAITING_RECORDS_MAX));
                waiting.refused = waiting.records.len();
                return;
            }
            waiting.remove(len);
        }
        waiting.refused = 0;
    }
}

impl Waiting {
    /// Whether there is enough to send, and room for it is likely.
    fn is_due(&self) -> bool {
        match self.refused {
            0 => self.records.len() >= RECORDS_MAX || self.bytes >= SENT_BYTES,
            refused => self.records.len() >= refused + RECORDS_MAX,
        }
    }

    fn add(&mut self, record: Record) {
        self.bytes += record.len;
        self.records.push_back(record);
    }

    fn remove(&mut self, count: usize) {
        self.bytes -= self.records.drain(..count).map(|record| record.len).sum::<u64>();
    }
}

impl FrontMover {
    /// The name of the thread that runs this.
    pub(crate) const THREAD: &str = "floe-front";

    /// The device number of the hidden mount, if the kernel tells it without asking the process that serves it.
    pub(crate) fn hidden_device(&self) -> Option<(u32, u32)> {
        let stat = statx(&self.image, "", AtFlags::EMPTY_PATH | DONT_SYNC, StatxFlags::empty()).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor))
    }

    /// Executes messages, which read ranges in the front and drop second copies, until the other end is closed or the
    /// mount is gone.
    ///
    /// The calling thread gets `priority` or the best that is permitted. With [`Priority::Auto`], it is real-time only while
    /// requests are urgent. If it fell behind the readers, they would request the bytes of each message page by page, which
    /// costs more CPU time and puts it further behind.
    pub(crate) fn run(self, mount: &Unmounter, priority: Priority) {
        let mut schedule = Schedule::of_this_thread(priority);
        may_wait_for_mount();
        let Ok(table) = File::open(TABLE_PATH) else { return };
        let mut open: Option<(u64, OwnedFd)> = None;
        let mut copies = SecondCopies::default();
        let mut message = vec![0; RECORDS_MAX * RECORD_BYTES];
        while mount.is_mounted() {
            loop {
                let mut waiting =
                    [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&table, PollFlags::PRI | PollFlags::ERR)];
                match poll(&mut waiting, (copies.bytes > 0).then_some(&QUIET)) {
                    Ok(0) => self.drop_copies(&mut copies, 0),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return,
                }
                let [has_message, has_other_mounts] = waiting.map(|waiting| !waiting.revents().is_empty());
                if has_message {
                    match recv(&self.socket, &mut message[..], RecvFlags::DONTWAIT) {
                        Ok((0, _)) => return,
                        Ok((len, _)) => {
                            let records: Vec<_> = message[..len].as_chunks().0.iter().map(Record::from_bytes).collect();
                            schedule.follow(&records);
                            self.note(&records, &mut open, &mut copies);
                        }
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

    /// Executes the records of a message. `open` is the file that was read last.
    fn note(&self, records: &[Record], open: &mut Option<(u64, OwnedFd)>, copies: &mut SecondCopies) {
        for record in records {
            if record.nid != NO_FILE {
                self.read(*record, open);
            }
            if record.image_offset != NOWHERE {
                copies.add(ByteRange::new(record.image_offset, record.len));
            }
        }
        if copies.bytes > SECOND_COPIES_BYTES_MAX || copies.ranges.len() > SECOND_COPIES_MAX {
            self.drop_copies(copies, SECOND_COPIES_BYTES_MAX / 2);
        }
    }

    /// Reads a range of a file in the front. Errors are ignored: a reader of the same range receives them.
    fn read(&self, record: Record, open: &mut Option<(u64, OwnedFd)>) {
        let Some(files) = &self.files else { return };
        if open.as_ref().is_none_or(|(other, _)| *other != record.nid) {
            *open = files.open(record.nid).ok().map(|file| (record.nid, file));
        }
        let Some((_, file)) = open else { return };
        let (mut offset, end) = (record.offset, record.offset.saturating_add(record.len));
        while let Some(len) = NonZero::new(end.saturating_sub(offset).min(STEP_BYTES)) {
            let _ = fadvise(&*file, offset, Some(len), Advice::WillNeed);
            offset += len.get();
        }
    }

    /// Drops the oldest second copies until at most `bytes_max` bytes are left.
    fn drop_copies(&self, copies: &mut SecondCopies, bytes_max: u64) {
        while copies.bytes > bytes_max
            && let Some(range) = copies.take_oldest()
        {
            // Pages that are just being read stay.
            let _ = fadvise(&self.image, range.offset(), NonZero::new(range.len()), Advice::DontNeed);
        }
    }
}

impl Schedule {
    /// Schedules the calling thread with `priority`.
    fn of_this_thread(priority: Priority) -> Self {
        let is_auto = priority == Priority::Auto;
        if is_auto {
            reschedule_this_thread(false);
        } else {
            schedule_this_thread(priority);
        }
        Self { is_auto, is_urgent: false }
    }

    /// Schedules the calling thread for the records of a message.
    fn follow(&mut self, records: &[Record]) {
        let is_urgent = records.iter().any(|record| record.is_urgent);
        if self.is_auto && self.is_urgent != is_urgent {
            self.is_urgent = is_urgent;
            reschedule_this_thread(is_urgent);
        }
    }
}

impl SecondCopies {
    /// Adds a range, or extends the last range if the new one follows it.
    fn add(&mut self, range: ByteRange) {
        self.bytes += range.len();
        match self.ranges.back_mut() {
            Some(last) if last.end() == range.offset() => *last = ByteRange::between(last.offset(), range.end()),
            _ => self.ranges.push_back(range),
        }
    }

    fn take_oldest(&mut self) -> Option<ByteRange> {
        let range = self.ranges.pop_front()?;
        self.bytes -= range.len();
        Some(range)
    }
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let numbers = [self.nid, self.offset, self.len, self.image_offset, self.is_urgent.into()];
        for (part, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            part.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        let number = |index: usize| {
            let (numbers, _) = bytes.as_chunks();
            u64::from_ne_bytes(numbers[index])
        };
        Self { nid: number(0), offset: number(1), len: number(2), image_offset: number(3), is_urgent: number(4) != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_arrive_as_they_were_sent() {
        let record = Record { nid: 7, offset: 4096, len: 1 << 40, image_offset: u64::MAX - 1, is_urgent: true };
        assert_eq!(Record::from_bytes(&record.to_bytes()), record);
    }

    #[test]
    fn refused_records_are_sent_later() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
        let transfer = FrontTransfer::new(ours, 0);
        let waiting = || transfer.waiting.lock().expect("no panic").records.len();
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            transfer.ask(&[FrontRange { nid: asked, range: ByteRange::new(0, SENT_BYTES), image_offset: 1 << 20 }]);
            asked
        };
        while waiting() == 0 {
            ask();
        }
        assert_eq!(
            (waiting(), ask(), waiting()),
            (1, transfer.waiting.lock().expect("no panic").records[0].nid + 1, 2)
        );
        let mut message = [0; RECORDS_MAX * RECORD_BYTES];
        let mut received = Vec::new();
        let mut receive = || {
            while let Ok((len, _)) = recv(&theirs, &mut message[..], RecvFlags::DONTWAIT) {
                received.extend(message[..len].as_chunks().0.iter().map(|bytes| Record::from_bytes(bytes).nid));
            }
        };
        receive();
        let last = std::iter::repeat_with(&mut ask).find(|_| waiting() == 0).expect("there is room");
        receive();
        assert_eq!(received, (1..=last).collect::<Vec<_>>());
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut copies = SecondCopies::default();
        for (offset, len) in [(0, 4096), (4096, 4096), (16384, 4096)] {
            copies.add(ByteRange::new(offset, len));
        }
        assert_eq!((copies.ranges.len(), copies.bytes), (2, 12288));
        assert_eq!((copies.take_oldest(), copies.bytes), (Some(ByteRange::new(0, 8192)), 4096));
    }
}
