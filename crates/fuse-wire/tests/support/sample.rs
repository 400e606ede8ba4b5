//! A file system that answers every request of a read-only one, the same each time.

use std::io;

use floe_fuse_wire::{
    Agreement, Channel, DirectoryEntries, DirectoryEntry, Errno, InitFlags, Notifier, Opcode, OpenFlags, Operation,
    ROOT_NODE, Receipt, Received, Reply, Request, RequestBuffer, Terms,
    abi::{Attr, AttrOut, EntryOut, GetxattrOut, IoctlOut, Kstatfs, LseekOut, OpenOut, StatfsOut},
};
use floe_testkit::GET_LABEL;
use zerocopy::IntoBytes;

pub(crate) const CONTENT_BYTES: usize = 10_000;

/// How many names `many` has.
pub(crate) const MANY: u64 = 400;

const FILE: u64 = 2;
const LINK: u64 = 3;
const MANY_NODE: u64 = 4;
/// The sample replies to a read of this file only after the reader has been interrupted.
pub(crate) const SLOW: u64 = 5;
const FIRST_OF_MANY: u64 = 100;

const KEEP_S: u64 = 1 << 30;

/// The content of `file`.
pub(crate) fn content() -> Vec<u8> {
    (0..CONTENT_BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// A file system of a file, a link to it, a slow file and a directory of many files.
pub(crate) struct Sample {
    channel: Channel,
    notifier: Notifier,
    flags: InitFlags,
    /// The requests received, in order.
    pub(crate) received: Vec<Opcode>,
    /// The reply to a read of the slow file.
    slow: Option<Reply>,
}

impl Sample {
    /// A file system that asks the kernel for these flags.
    pub(crate) fn new(channel: Channel, flags: InitFlags) -> Self {
        let notifier = Notifier::new(channel.clone());
        Self { channel, notifier, flags, received: Vec::new(), slow: None }
    }

    pub(crate) fn negotiate(&self) -> io::Result<Agreement> {
        self.channel.negotiate(|offer| Terms {
            flags: self.flags,
            readahead_bytes_max: offer.readahead_bytes_max,
            background_max: 16,
            congestion_threshold: 12,
            write_bytes_max: 4096,
            pages_max: 256,
            time_granularity_ns: 1,
            request_timeout_s: 0,
        })
    }

    /// Answers requests until the file system is unmounted.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        let mut buffer = RequestBuffer::new(4096);
        loop {
            match self.channel.receive(&mut buffer)? {
                Receipt::Request(Received { request, reply }) => self.answer(request.expect("a sound request"), reply),
                Receipt::Nothing => self.channel.wait()?,
                Receipt::Interrupted => {}
                Receipt::Unmounted => return Ok(()),
            }
        }
    }

    pub(crate) fn answer(&mut self, request: Request<'_>, reply: Reply) {
        let node = request.header.nodeid;
        self.received.push(Opcode(request.header.opcode));
        match request.operation {
            Operation::Lookup(name) => match find(node, name) {
                Some(node) => reply.with(&entry(node)),
                None => reply.with(&EntryOut { entry_valid: KEEP_S, ..EntryOut::default() }),
            },
            Operation::Forget(_) | Operation::BatchForget(_) => {}
            Operation::Getattr(_) => {
                reply.with(&AttrOut { attr_valid: KEEP_S, attr: attributes(node), ..AttrOut::default() });
            }
            Operation::Readlink => reply.bytes(b"file"),
            Operation::Open(_) => {
                // A read past the page cache is waited for by its reader itself, so that it can be interrupted.
                let open_flags = if node == SLOW { OpenFlags::DIRECT_IO } else { OpenFlags::KEEP_CACHE }.bits();
                reply.with(&OpenOut { fh: node, open_flags, ..OpenOut::default() });
            }
            Operation::Opendir(_) => reply.with(&OpenOut { fh: node, ..OpenOut::default() }),
            Operation::Read(_) if node == SLOW => self.slow = Some(reply),
            Operation::Read(read) => {
                let content = content();
                let rest = content.get(read.offset as usize..).unwrap_or_default();
                let bytes = &rest[..rest.len().min(read.size as usize)];
                let (first, second) = bytes.split_at(bytes.len() / 3);
                reply.pieces([first, second]);
            }
            Operation::Readdir(read) => {
                let mut entries = DirectoryEntries::new(read.size as usize);
                list(node, read.offset, |_, dirent| entries.add(dirent));
                reply.bytes(entries.as_bytes());
            }
            Operation::Readdirplus(read) => {
                let mut entries = DirectoryEntries::new(read.size as usize);
                // Every second entry has a name only.
                list(node, read.offset, |node, dirent| {
                    let entry = if node.is_multiple_of(2) { entry(node) } else { EntryOut::default() };
                    entries.add_with_node(dirent, &entry)
                });
                reply.bytes(entries.as_bytes());
            }
            Operation::Statfs => {
                // The caller of `statfs` holds no lock, so the kernel accepts notifications before the reply.
                for index in 0..5 {
                    let _ = self.notifier.invalidate_entry(MANY_NODE, name_of_many(2 * index).as_bytes());
                }
                let st = Kstatfs { blocks: 1234, bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() };
                reply.with(&StatfsOut { st });
            }
            Operation::Release(_) | Operation::Releasedir(_) | Operation::Flush(_) | Operation::Destroy => reply.done(),
            Operation::Getxattr(_, name) if name != b"user.comment" => reply.refuse(Errno::NODATA),
            Operation::Getxattr(0, _) => reply.with(&GetxattrOut { size: 7, padding: 0 }),
            Operation::Getxattr(..) => reply.bytes(b"a value"),
            Operation::Listxattr(0) => reply.with(&GetxattrOut { size: 13, padding: 0 }),
            Operation::Listxattr(_) => reply.bytes(b"user.comment\0"),
            Operation::Lseek(seek) => reply.with(&LseekOut { offset: seek.offset.max(4096) }),
            Operation::Ioctl(ioctl, _) if ioctl.cmd == GET_LABEL as u32 => {
                reply.pieces([IoctlOut::default().as_bytes(), b"a label\0"]);
            }
            Operation::Ioctl(..) => reply.refuse(Errno::NOTTY),
            Operation::Interrupt(interrupt) => {
                reply.refuse(Errno::NOSYS);
                if let Some(slow) = self.slow.take_if(|slow| slow.unique() == interrupt.unique) {
                    slow.refuse(Errno::INTR);
                }
            }
            Operation::Access(_) => reply.refuse(Errno::NOSYS),
            _ => reply.refuse(Errno::NOSYS),
        }
    }
}

fn find(parent: u64, name: &[u8]) -> Option<u64> {
    match (parent, name) {
        (ROOT_NODE, b"file") => Some(FILE),
        (ROOT_NODE, b"link") => Some(LINK),
        (ROOT_NODE, b"many") => Some(MANY_NODE),
        (ROOT_NODE, b"slow") => Some(SLOW),
        (MANY_NODE, name) => (0..MANY).find(|index| name_of_many(*index).as_bytes() == name).map(|i| FIRST_OF_MANY + i),
        _ => None,
    }
}

fn name_of_many(index: u64) -> String {
    format!("{index:04}-with-a-rather-long-name-so-that-few-fit")
}

fn attributes(node: u64) -> Attr {
    let (mode, size) = match node {
        ROOT_NODE | MANY_NODE => (0o040_755, 0),
        LINK => (0o120_777, 4),
        _ => (0o100_644, CONTENT_BYTES as u64),
    };
    Attr { ino: node + 1000, size, mode, nlink: 1, blksize: 4096, mtime: 1_700_000_000, ..Attr::default() }
}

fn entry(node: u64) -> EntryOut {
    EntryOut { nodeid: node, entry_valid: KEEP_S, attr_valid: KEEP_S, attr: attributes(node), ..EntryOut::default() }
}

/// Gives the entries from `offset` on to `add` until there is no room.
fn list(directory: u64, offset: u64, mut add: impl FnMut(u64, &DirectoryEntry<'_>) -> bool) {
    let names: Vec<(u64, String)> = match directory {
        ROOT_NODE => [(FILE, "file"), (LINK, "link"), (MANY_NODE, "many"), (SLOW, "slow")]
            .map(|(node, name)| (node, name.to_owned()))
            .to_vec(),
        _ => (0..MANY).map(|index| (FIRST_OF_MANY + index, name_of_many(index))).collect(),
    };
    for (index, (node, name)) in names.iter().enumerate().skip(offset as usize) {
        let kind = attributes(*node).mode >> 12;
        let dirent = DirectoryEntry { inode_number: node + 1000, next: index as u64 + 1, kind, name: name.as_bytes() };
        if !add(*node, &dirent) {
            break;
        }
    }
}
