//! Transfers file data from the page cache of a hidden file into that of its front.
//!
//! EROFS copies the bytes that it reads from the hidden file into the pages of its own files. The pages of the hidden
//! file are then a second copy. A thread that serves no requests reads ahead in the front, and drops second copies. It
//! reads through a private clone of the mount, because open files in the users' mount would make it busy, and drops the
//! clone when the users' mount is gone.
//!
//! The thread belongs to the keeper: a process that is killed while one of its own threads waits for its replies would never end.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    num::NonZero,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use floe_image::ByteRange;
use floe_ipc::{encoded, receive, send};
use floe_sync::Mutex;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Advice, fadvise},
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair},
};

use crate::{
    front_files_sys::FrontFiles,
    mount_id_sys::device_of,
    place::Place,
    schedule::{KeeperThread, Schedule},
    serving_thread::may_wait_for_mount,
    table::TABLE_PATH,
};

/// The maximum number of records in a message.
const RECORDS_MAX: usize = 64;

/// The maximum number of records that wait to be sent. If there are more, the bytes of the oldest stay in the hidden file's
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
pub(crate) const QUIET: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A range of a file of a front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontRange {
    /// The inode number in the front's EROFS.
    pub nid: u64,
    /// The bytes of that file.
    pub range: ByteRange,
    /// The offset of the first of these bytes in the hidden file.
    pub image_offset: u64,
}

/// The sending end. It never blocks.
#[derive(Debug)]
pub struct FrontTransfer {
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
    /// The urgency that the thread knows of, or will.
    is_urgent: Option<bool>,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct FrontReadahead {
    socket: OwnedFd,
    /// `None` if nothing is to be read ahead.
    files: Option<Arc<FrontFiles>>,
    /// The hidden file.
    image: Arc<OwnedFd>,
}

encoded! {
    /// What the thread is told about bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) enum Record {
        /// The page cache of the hidden file has the bytes of a file of the front. The file must read them, which makes this the
        /// second copy.
        1 => Copy { nid: u64, range: ByteRange, image_offset: u64 },
        /// A file of the front must read the range, which gets no second copy.
        2 => Read { nid: u64, range: ByteRange },
        /// The front reads this range of the hidden file, whose page cache then has a second copy.
        3 => Copied { image_range: ByteRange },
        /// From now on, CPUs are short or not. While they are, readers of the files would otherwise run first.
        4 => Urgency { is_urgent: bool },
    }
}

/// What the execution of messages leaves for the next ones.
#[derive(Default)]
pub(crate) struct Progress {
    /// The file that was read last.
    open: Option<(u64, OwnedFd)>,
    copies: SecondCopies,
}

impl Progress {
    /// Whether there are second copies.
    pub(crate) fn has_copies(&self) -> bool {
        self.copies.bytes > 0
    }
}

/// The ranges of the hidden file that have a second copy, the oldest first.
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
pub(crate) fn front_transfer(clone: Option<&OwnedFd>, image: OwnedFd) -> io::Result<(FrontTransfer, FrontReadahead)> {
    let files = clone.and_then(|clone| FrontFiles::new(clone.as_fd()).ok()).map(Arc::new);
    let (ours, theirs) = pair()?;
    Ok((FrontTransfer::new(ours, 0), FrontReadahead { socket: theirs, files, image: Arc::new(image) }))
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl FrontTransfer {
    /// The sending end over a socket of a keeper. `thread` is the id of the thread that reads ahead; 0 if nothing is read ahead.
    pub fn new(socket: OwnedFd, thread: u32) -> Self {
        Self { socket, thread, waiting: Mutex::default() }
    }

    /// The id of the thread that reads ahead; 0 if nothing is read ahead.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The socket, for the process that fills the page cache.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Asks the front to read these ranges, which the page cache of the hidden file has.
    pub fn copy(&self, ranges: &[FrontRange]) {
        let records = ranges.iter().map(|FrontRange { nid, range, image_offset }| Record::Copy {
            nid: *nid,
            range: *range,
            image_offset: *image_offset,
        });
        self.note(records);
    }

    /// Asks the front to read these ranges at once, which have no second copy. If it `is_urgent`, this comes before the
    /// readers of the files.
    pub fn read(&self, ranges: &[FrontRange], is_urgent: bool) {
        let mut waiting = self.waiting.lock();
        waiting.set_urgency(is_urgent);
        for FrontRange { nid, range, .. } in ranges {
            waiting.add(Record::Read { nid: *nid, range: *range });
        }
        if waiting.refused == 0 {
            self.send(&mut waiting);
        }
    }

    /// Notes whether what comes next `is_urgent`, so that the thread is scheduled before that.
    pub fn set_urgency(&self, is_urgent: bool) {
        let mut waiting = self.waiting.lock();
        if waiting.set_urgency(is_urgent) && waiting.refused == 0 {
            self.send(&mut waiting);
        }
    }

    /// Notes that the front reads these ranges of the hidden file.
    pub fn note_read(&self, ranges: impl Iterator<Item = ByteRange>) {
        self.note(ranges.map(|image_range| Record::Copied { image_range }));
    }

    fn note(&self, records: impl Iterator<Item = Record>) {
        let mut waiting = self.waiting.lock();
        records.for_each(|record| waiting.add(record));
        if waiting.is_due() {
            self.send(&mut waiting);
        }
    }

    /// Sends the records that wait, unless the socket is full.
    fn send(&self, waiting: &mut Waiting) {
        while !waiting.records.is_empty() {
            let len = waiting.records.len().min(RECORDS_MAX);
            let message: Vec<Record> = waiting.records.iter().take(len).copied().collect();
            if send(&self.socket, &message, &[], SendFlags::DONTWAIT).is_err() {
                waiting.limit();
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
        self.bytes += record.len();
        self.records.push_back(record);
    }

    /// Adds a record if the urgency changes. Returns whether it does.
    fn set_urgency(&mut self, is_urgent: bool) -> bool {
        let is_other = self.is_urgent.replace(is_urgent) != Some(is_urgent);
        if is_other {
            self.add(Record::Urgency { is_urgent });
        }
        is_other
    }

    fn remove(&mut self, count: usize) {
        self.bytes -= self.records.drain(..count).map(|record| record.len()).sum::<u64>();
    }

    /// Drops the oldest records if there are too many.
    fn limit(&mut self) {
        let count = self.records.len().saturating_sub(WAITING_RECORDS_MAX);
        if self.records.iter().take(count).any(|record| matches!(record, Record::Urgency { .. })) {
            self.is_urgent = None;
        }
        self.remove(count);
    }
}

impl FrontReadahead {
    /// The name of the thread that runs this.
    pub(crate) const THREAD: &str = "floe-front";

    /// The device number of the hidden mount, if the kernel tells it without asking the process that serves it.
    pub(crate) fn hidden_device(&self) -> Option<(u32, u32)> {
        device_of(self.image.as_fd())
    }

    /// Both ends of a transfer into the same front, for the process that takes the place of the one at the other end.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub(crate) fn renewed(&self) -> io::Result<(FrontTransfer, Self)> {
        let (ours, theirs) = pair()?;
        let (files, image) = (self.files.clone(), Arc::clone(&self.image));
        Ok((FrontTransfer::new(ours, 0), Self { socket: theirs, files, image }))
    }

    /// The descriptors of a front, in the order of [`FrontReadahead::of_descriptors`].
    pub(crate) fn descriptors(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>, Option<BorrowedFd<'_>>) {
        (self.socket.as_fd(), self.image.as_fd(), self.files.as_ref().map(|files| files.root()))
    }

    /// The receiving end over descriptors of an earlier program of this process.
    pub(crate) fn of_descriptors(socket: OwnedFd, image: OwnedFd, root: Option<OwnedFd>) -> Self {
        Self { socket, files: root.map(|root| Arc::new(FrontFiles::of_root(root))), image: Arc::new(image) }
    }

    /// The socket that is readable when there is a message.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Executes the next message, if there is one. Calls `set_urgency` before, if the message states one.
    ///
    /// # Errors
    /// The other end is closed, or breaks the protocol.
    pub(crate) fn take_message(&self, progress: &mut Progress, set_urgency: impl FnOnce(bool)) -> io::Result<()> {
        match receive::<Vec<Record>>(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some((records, _))) => {
                if let Some(is_urgent) = records.iter().rev().find_map(Record::urgency) {
                    set_urgency(is_urgent);
                }
                self.execute(&records, progress);
                Ok(())
            }
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Drops all second copies.
    pub(crate) fn drop_all_copies(&self, progress: &mut Progress) {
        self.drop_copies(&mut progress.copies, 0);
    }

    /// Executes messages, which read ranges in the front and drop second copies, until the other end is closed or the
    /// mount is gone. The calling thread is scheduled by its urgency at first; `schedule` changes that.
    ///
    /// If it fell behind the readers, they would request the bytes of each message page by page, which costs more CPU time and
    /// puts it further behind.
    pub(crate) fn run(self, mount: &Place, mut is_urgent: bool, schedule: &Schedule) {
        may_wait_for_mount();
        let Ok(table) = File::open(TABLE_PATH) else { return };
        let mut progress = Progress::default();
        while mount.is_mounted() {
            loop {
                let mut waiting =
                    [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&table, PollFlags::PRI | PollFlags::ERR)];
                match poll(&mut waiting, progress.has_copies().then_some(&QUIET)) {
                    Ok(0) => self.drop_all_copies(&mut progress),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => return,
                }
                let [has_message, has_other_mounts] = waiting.map(|waiting| !waiting.revents().is_empty());
                if has_message {
                    let set_urgency = |urgency: bool| {
                        if std::mem::replace(&mut is_urgent, urgency) != urgency {
                            schedule(KeeperThread::Readahead { is_urgent: urgency }, None);
                        }
                    };
                    if self.take_message(&mut progress, set_urgency).is_err() {
                        return;
                    }
                }
                if has_other_mounts {
                    break;
                }
            }
        }
    }

    /// Executes the records of a message.
    fn execute(&self, records: &[Record], progress: &mut Progress) {
        let Progress { open, copies } = progress;
        for record in records {
            match *record {
                Record::Copy { nid, range, image_offset } => {
                    self.read(nid, range, open);
                    copies.add(ByteRange::new(image_offset, range.len()));
                }
                Record::Read { nid, range, .. } => self.read(nid, range, open),
                Record::Copied { image_range } => copies.add(image_range),
                Record::Urgency { .. } => {}
            }
        }
        if copies.bytes > SECOND_COPIES_BYTES_MAX || copies.ranges.len() > SECOND_COPIES_MAX {
            self.drop_copies(copies, SECOND_COPIES_BYTES_MAX / 2);
        }
    }

    /// Reads a range of a file in the front. Errors are ignored: a reader of the same range receives them.
    fn read(&self, nid: u64, range: ByteRange, open: &mut Option<(u64, OwnedFd)>) {
        let Some(files) = &self.files else { return };
        if open.as_ref().is_none_or(|(other, _)| *other != nid) {
            *open = files.open(nid).ok().map(|file| (nid, file));
        }
        let Some((_, file)) = open else { return };
        let mut offset = range.offset();
        while let Some(len) = NonZero::new(range.end().saturating_sub(offset).min(STEP_BYTES)) {
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
    /// The number of bytes.
    fn len(&self) -> u64 {
        match self {
            Self::Copy { range, .. } | Self::Read { range, .. } | Self::Copied { image_range: range } => range.len(),
            Self::Urgency { .. } => 0,
        }
    }

    fn urgency(&self) -> Option<bool> {
        match self {
            Self::Urgency { is_urgent } => Some(*is_urgent),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_records_are_sent_later() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
        let transfer = FrontTransfer::new(ours, 0);
        let waiting = || transfer.waiting.lock().records.len();
        let nid = |record: &Record| match record {
            Record::Copy { nid, .. } => *nid,
            record => panic!("{record:?}"),
        };
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            transfer.copy(&[FrontRange { nid: asked, range: ByteRange::new(0, SENT_BYTES), image_offset: 1 << 20 }]);
            asked
        };
        while waiting() == 0 {
            ask();
        }
        assert_eq!((waiting(), ask(), waiting()), (1, nid(&transfer.waiting.lock().records[0]) + 1, 2));
        let mut received = Vec::new();
        let mut receive_all = || {
            while let Ok(Some((records, _))) = receive::<Vec<Record>>(&theirs, RecvFlags::DONTWAIT) {
                received.extend(records.iter().map(nid));
            }
        };
        receive_all();
        let last = std::iter::repeat_with(&mut ask).find(|_| waiting() == 0).expect("there is room");
        receive_all();
        assert_eq!(received, (1..=last).collect::<Vec<_>>());
    }

    #[test]
    fn urgency_is_sent_when_it_changes() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
        let (transfer, range) = (FrontTransfer::new(ours, 0), ByteRange::new(0, 4096));
        let read = |is_urgent| transfer.read(&[FrontRange { nid: 7, range, image_offset: 0 }], is_urgent);
        transfer.set_urgency(false);
        read(false);
        read(true);
        transfer.set_urgency(true);
        transfer.set_urgency(false);
        let mut received = Vec::new();
        while let Ok(Some((records, _))) = receive::<Vec<Record>>(&theirs, RecvFlags::DONTWAIT) {
            received.extend(records);
        }
        let (urgency, read) = (|is_urgent| Record::Urgency { is_urgent }, Record::Read { nid: 7, range });
        assert_eq!(received, [urgency(false), read, urgency(true), read, urgency(false)]);
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
