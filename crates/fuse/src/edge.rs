//! Translates the kernel's requests into calls of the reader and the file system, and their results into replies.

pub(crate) mod front_pages;
pub(crate) mod kernel_pages;
pub(crate) mod negotiation;

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use floe_engine::{Reader, Volume, machine_page_bytes};
use floe_fuse_wire::{
    Agreement, Channel, Errno, Opcode, OpenFlags, Operation, Receipt, Received, Reply, Request, RequestBuffer, Ring,
    abi::{
        GETATTR_FH, GetxattrOut, InHeader, IoctlIn, IoctlOut, Kstatfs, LseekIn, LseekOut, OpenOut, ReadIn, StatfsOut,
    },
};
use floe_image::{ByteRange, Error, FileSystem, Nid};
use floe_keeper::Access;
use zerocopy::IntoBytes;

use crate::{
    AccessSink, ImageAccess, MountSetup, RequestKind,
    connection::REQUEST_BYTES_MAX,
    inodes::served::{Refusal, Served, Sized},
    inodes::{
        directory::{self, Listed},
        errno::errno_of,
        listings::Allowance,
        next_parts::ListingPart,
    },
    requests::deadline::{Deadlines, PendingReply},
    session_pool::{NextRequest, SessionThread, Turn},
};

use self::negotiation::ZeroMessageOpens;

/// `FS_IOC_GETFSLABEL`: `_IOR(0x94, 49, char[256])`.
const GET_LABEL: u32 = rustix::ioctl::opcode::read::<[u8; 256]>(0x94, 49) as u32;

/// Answers the kernel's requests for a mounted image.
///
/// Requests that need neither waiting nor costly decoding are answered on the session thread that took them. The reader
/// answers the others on threads that may wait.
pub(crate) struct FuseEdge {
    reader: Reader,
    /// For the reads of [`FuseEdge::prefetch_thread`].
    prefetch_reader: Reader,
    prefetch_thread: Arc<AtomicU32>,
    served: Arc<Served>,
    deadlines: Arc<Deadlines>,
    setup: MountSetup,
    has_acls: bool,
    zero_message_opens: ZeroMessageOpens,
    has_xattrs: bool,
    /// The only user besides root whose requests are answered; `None` leaves this check to the kernel.
    owner: Option<u32>,
}

impl FuseEdge {
    /// Creates an edge over a reader, whose requests have these deadlines.
    ///
    /// # Errors
    /// The root cannot be read.
    pub(crate) fn new(reader: Reader, setup: &MountSetup, deadlines: Arc<Deadlines>) -> Result<Self, Error> {
        let file_system = Arc::clone(reader.file_system());
        file_system.attr(file_system.root())?;
        let has_xattrs = file_system.has_xattrs();
        let has_acls = has_xattrs && file_system.capabilities().has_acls;
        let is_owners = setup.options.kernel.access() == Access::OwnerAndRoot;
        Ok(Self {
            prefetch_reader: reader.for_prefetch(),
            prefetch_thread: Arc::default(),
            reader,
            served: Arc::new(Served::new(file_system.as_ref(), setup)),
            deadlines,
            setup: setup.clone(),
            has_acls,
            zero_message_opens: ZeroMessageOpens::default(),
            has_xattrs,
            owner: is_owners.then(|| rustix::process::geteuid().as_raw()),
        })
    }

    /// Returns the reader and the state of the mounted image.
    pub(crate) fn parts(&self) -> (Reader, Arc<Served>) {
        (self.reader.clone(), Arc::clone(&self.served))
    }

    /// The deadlines of the requests.
    pub(crate) fn deadlines(&self) -> &Arc<Deadlines> {
        &self.deadlines
    }

    /// The id of the thread that reads ahead in the front of this mount, to be set; 0 if there is none.
    pub(crate) fn prefetch_thread(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.prefetch_thread)
    }

    /// Negotiates the terms of the connection with the kernel (INIT).
    ///
    /// # Errors
    /// The kernel is too old, or the mount no longer exists.
    pub(crate) fn negotiate(&mut self, channel: &Channel) -> io::Result<Agreement> {
        let agreement = channel.negotiate(|offer| negotiation::terms(offer, &self.setup, self.has_acls))?;
        self.resume(agreement);
        Ok(agreement)
    }

    /// Adopts the terms that another process has negotiated with the kernel.
    pub(crate) fn resume(&mut self, agreement: Agreement) {
        self.zero_message_opens = ZeroMessageOpens::new(&agreement, &self.setup.options);
    }

    /// Notes that the kernel has ended the connection, and closes the image if the options say so.
    pub(crate) fn end(&self) {
        self.served.end();
        if self.setup.options.closes_image {
            self.volume().close();
        }
    }

    /// Notes that the deadline of some requests has passed.
    pub(crate) fn note_overdue(&self, count: usize) {
        self.served.counts.note_overdue(count);
    }

    /// The volume, whose engine schedules the session threads.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        self.reader.volume()
    }

    /// Answers the requests of a ring until the file system is unmounted. The calling thread, `thread`, must have started it.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn serve_ring(&self, ring: &mut Ring, thread: &SessionThread) -> io::Result<()> {
        let mut buffer = RequestBuffer::new(REQUEST_BYTES_MAX);
        loop {
            match ring.receive(&mut buffer)? {
                Receipt::Request(received) => self.serve(thread, received),
                Receipt::Nothing | Receipt::Interrupted => {}
                Receipt::Unmounted => return Ok(()),
            }
        }
    }

    /// Answers a request, which the session thread `thread` has taken.
    pub(crate) fn serve(&self, thread: &SessionThread, received: Received<'_>) {
        let Received { request, reply } = received;
        let Ok(Request { header, operation }) = request else { return reply.refuse(Errno::IO) };
        self.dispatch(AcceptedRequest { edge: self, thread, header, reply }, operation);
    }

    fn dispatch(&self, request: AcceptedRequest<'_>, operation: Operation<'_>) {
        let counts = &self.served.counts;
        if let Some(kind) = RequestKind::of(Opcode(request.header.opcode)) {
            counts.note(kind, request.header.pid);
        }
        if !self.may_enter(&request.header, &operation) {
            return request.reply.refuse(Errno::ACCESS);
        }
        match operation {
            Operation::Lookup(name) => request.lookup(name),
            Operation::Getattr(_) => request.getattr(),
            Operation::Readlink => request.readlink(),
            Operation::Open(_) if self.zero_message_opens.files => request.reply.refuse(Errno::NOSYS),
            Operation::Open(_) if self.is_direct(request.header.nodeid) => request.opened(OpenFlags::DIRECT_IO),
            Operation::Open(_) => request.opened(OpenFlags::KEEP_CACHE | OpenFlags::NOFLUSH),
            Operation::Read(read) => request.read(&read),
            Operation::Opendir(_) if self.zero_message_opens.directories => request.reply.refuse(Errno::NOSYS),
            Operation::Opendir(_) => request.opened(OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR),
            Operation::Readdir(read) => request.readdir(&read),
            Operation::Readdirplus(read) => request.readdirplus(&read),
            Operation::Statfs => request.statfs(),
            Operation::Getxattr(..) | Operation::Listxattr(_) if !self.has_xattrs => request.reply.refuse(Errno::NOSYS),
            Operation::Getxattr(size, name) => request.getxattr(size, name),
            Operation::Listxattr(size) => request.listxattr(size),
            Operation::Lseek(seek) => request.lseek(&seek),
            Operation::Ioctl(ioctl, _) => request.ioctl(&ioctl),
            // Node numbers are functions of the image, so there is no state to forget. The kernel expects no reply.
            Operation::Forget(_) | Operation::BatchForget(_) => {}
            Operation::Release(_) | Operation::Releasedir(_) | Operation::Destroy => request.reply.done(),
            // After ENOSYS, the kernel sends no further FLUSH. Otherwise each close would wait for the server, even the
            // closes of a process that is about to become the server. (NOFLUSH, in replies to OPEN, does not suffice: with
            // zero-message opens, there are none.)
            Operation::Flush(_) => request.reply.refuse(Errno::NOSYS),
            Operation::Create(_) | Operation::Rmdir(_) => request.reply.refuse(Errno::ROFS),
            Operation::Other(opcode) if is_write(opcode) => request.reply.refuse(Errno::ROFS),
            // After ENOSYS, the kernel no longer sends this kind of request.
            _ => request.reply.refuse(Errno::NOSYS),
        }
    }

    /// Runs `work`, which reads metadata and may run twice, and answers a request with its result through `send`. After a
    /// panic in `work`, the request gets EIO.
    fn answer<T: 'static>(
        &self,
        pending: PendingReply,
        work: impl Fn(&Served, &dyn FileSystem) -> Result<T, Refusal> + Send + 'static,
        send: impl FnOnce(Reply, T) + Send + 'static,
    ) {
        let (served, answering) = (Arc::clone(&self.served), Arc::clone(&self.served));
        // Only errors of the image are errors here: after `WouldBlock`, the reader runs the work again.
        let work =
            move |file_system: &dyn FileSystem| match catch_unwind(AssertUnwindSafe(|| work(&served, file_system))) {
                Ok(Ok(value)) => Ok(Ok(value)),
                Ok(Err(Refusal::Image(error))) => Err(error),
                Ok(Err(Refusal::Request(errno))) => Ok(Err(errno)),
                Err(_panic) => Ok(Err(Errno::IO)),
            };
        self.reader.metadata_then(work, move |result| {
            let result = result.unwrap_or_else(|error| Err(answering.fault(&error)));
            if let Some(reply) = pending.take() {
                match result {
                    Ok(value) => send(reply, value),
                    Err(errno) => reply.refuse(errno),
                }
            }
        });
    }

    /// Whether the kernel reads this file past its page cache.
    fn is_direct(&self, node: u64) -> bool {
        self.setup.options.direct_io.is_some_and(|nid| nid == self.served.nid(node))
    }

    /// Whether a read comes from the kernel's readahead in the virtual image. Readahead may reach bytes that are no inode but
    /// look like one, so its failures are not reported: the kernel repeats what it needs page by page.
    fn is_readahead(&self, nid: Nid, len: u32) -> bool {
        self.setup.options.direct_io.is_some_and(|direct| direct != nid) && len as usize > machine_page_bytes()
    }

    /// Whether the user who sent a request may enter the mount. Reads of open files and requests that the kernel sends by
    /// itself are always accepted. So is GETATTR with a file handle: the kernel sends it before a read that goes past the
    /// end of the file.
    fn may_enter(&self, header: &InHeader, operation: &Operation<'_>) -> bool {
        let Some(owner) = self.owner else { return true };
        [0, owner].contains(&header.uid)
            || matches!(operation, Operation::Getattr(getattr) if getattr.getattr_flags & GETATTR_FH != 0)
            || matches!(
                operation,
                Operation::Read(_)
                    | Operation::Readdir(_)
                    | Operation::Readdirplus(_)
                    | Operation::Release(_)
                    | Operation::Releasedir(_)
                    | Operation::Forget(_)
                    | Operation::BatchForget(_)
                    | Operation::Destroy
            )
    }
}

/// Whether a request would change the file system. The kernel rejects changes itself unless the mount was remounted
/// with `rw`.
fn is_write(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SETATTR
            | Opcode::SYMLINK
            | Opcode::MKNOD
            | Opcode::MKDIR
            | Opcode::UNLINK
            | Opcode::RENAME
            | Opcode::RENAME2
            | Opcode::LINK
            | Opcode::WRITE
            | Opcode::SETXATTR
            | Opcode::REMOVEXATTR
            | Opcode::FALLOCATE
    )
}

/// A request whose user may enter the mount.
struct AcceptedRequest<'edge> {
    edge: &'edge FuseEdge,
    /// The session thread that has taken it.
    thread: &'edge SessionThread,
    header: InHeader,
    reply: Reply,
}

impl<'edge> AcceptedRequest<'edge> {
    /// Begins the turn of the session thread. `next` is the likely next request of the caller.
    fn begin(&self, next: NextRequest) -> Turn<'edge> {
        let edge = self.edge;
        self.thread.begin(&edge.reader, &edge.deadlines, self.header.pid, next)
    }

    /// The receiver of accesses; `None` if this request does not count as one.
    fn accesses(&self) -> Option<&AccessSink> {
        self.edge.setup.hooks.accesses.as_ref().filter(|_| !self.edge.served.counts.is_walker(self.header.pid))
    }

    fn lookup(self, name: &[u8]) {
        let (parent, name, caller) = (self.header.nodeid, name.to_vec(), self.header.pid);
        let served = Arc::clone(&self.edge.served);
        let noted = self.accesses().map(|sink| (Arc::clone(sink), name.clone()));
        let find = move |served: &Served, file_system: &dyn FileSystem| served.find(file_system, parent, &name);
        self.answer(find, move |reply, entry| {
            served.note_lookup(caller, parent, &entry);
            if let Some((sink, name)) = noted.filter(|(_, name)| name != b".") {
                sink(served.access(parent, &name, &entry));
            }
            reply.with(&entry);
        });
    }

    fn getattr(self) {
        let node = self.header.nodeid;
        self.answer(move |served, file_system| served.attr(file_system, node), |reply, attr| reply.with(&attr));
    }

    fn readlink(self) {
        let node = self.header.nodeid;
        if let Some(sink) = self.accesses() {
            sink(ImageAccess::Link(self.edge.served.nid(node)));
        }
        let target = move |served: &Served, file_system: &dyn FileSystem| Ok(file_system.read_link(served.nid(node))?);
        self.answer(target, |reply, target| reply.bytes(&target));
    }

    fn opened(self, flags: OpenFlags) {
        self.reply.with(&OpenOut { open_flags: flags.bits(), ..OpenOut::default() });
    }

    fn read(self, read: &ReadIn) {
        let edge = self.edge;
        let nid = edge.served.nid(self.header.nodeid);
        let (offset, len) = (read.offset, read.size);
        if let Some(reads) = &edge.setup.hooks.reads {
            reads(nid, offset, len);
        }
        if let Some(sink) = self.accesses() {
            sink(ImageAccess::Read(nid, ByteRange::new(offset, len.into())));
        }
        let turn = self.begin(NextRequest::after_read(len));
        let pending = turn.watch(self.reply);
        let (served, is_readahead) = (Arc::clone(&edge.served), edge.is_readahead(nid, len));
        let is_prefetch = self.header.pid != 0 && self.header.pid == edge.prefetch_thread.load(Relaxed);
        let reader = if is_prefetch { &edge.prefetch_reader } else { &edge.reader };
        let read = || {
            reader.read_then(nid, offset, len, move |result| {
                let errno = |error| if is_readahead { errno_of(&error) } else { served.fault(&error) };
                let result = result.map_err(errno);
                if let Some(reply) = pending.take() {
                    match result {
                        Ok(bytes) => reply.bytes(bytes),
                        Err(errno) => reply.refuse(errno),
                    }
                }
            });
        };
        // A panic drops the completion and the reply in it, which then sends EIO.
        let _ = catch_unwind(AssertUnwindSafe(read));
    }

    fn readdir(self, read: &ReadIn) {
        let (node, offset, len_max) = (self.header.nodeid, read.offset, read.size as usize);
        self.note_listing(offset);
        let names = move |served: &Served, file_system: &dyn FileSystem| {
            Ok(directory::names(file_system, served.nid(node), offset, len_max)?)
        };
        self.answer(names, |reply, entries| reply.bytes(entries.as_bytes()));
    }

    fn readdirplus(self, read: &ReadIn) {
        self.note_listing(read.offset);
        let (edge, reader, served) = (self.edge, self.edge.reader.clone(), Arc::clone(&self.edge.served));
        let (lister, directory) = (self.header.pid, served.nid(self.header.nodeid));
        let part = ListingPart { directory, lister, offset: read.offset, len_max: read.size as usize };
        let allowed = served.allowance(lister, directory);
        let next = if allowed.is_spent() { NextRequest::OfListing } else { NextRequest::Any };
        let turn = self.begin(next);
        let in_advance = served.next_parts.take(part).filter(|_| allowed.is_spent());
        let send = move |reply: Reply, allowed: Allowance, listed: Listed| {
            // Before the reply, because programs read the listed files right after it.
            reader.note_listed(directory, part.offset == 0, &listed.files);
            served.listings.end(lister, allowed, listed.left);
            reply.bytes(listed.entries.as_bytes());
            if let Some(next) = part.after(&listed) {
                served.list_in_advance(&reader, next, listed.left);
            }
        };
        let pending = turn.watch(self.reply);
        match in_advance {
            Some((allowed, listed)) => {
                if let Some(reply) = pending.take() {
                    send(reply, allowed, listed);
                }
            }
            None => {
                let list =
                    move |served: &Served, file_system: &dyn FileSystem| Ok(served.list(file_system, part, allowed)?);
                edge.answer(pending, list, move |reply, listed| send(reply, allowed, listed));
            }
        }
    }

    fn note_listing(&self, offset: u64) {
        if let Some(sink) = self.accesses().filter(|_| offset == 0) {
            sink(ImageAccess::List(self.edge.served.nid(self.header.nodeid)));
        }
    }

    fn statfs(self) {
        let file_system = self.edge.reader.file_system();
        let info = file_system.info();
        let inode_max = if file_system.capabilities().limits_inodes { info.inode_count } else { u64::MAX };
        let st = Kstatfs {
            blocks: info.block_count,
            files: inode_max,
            ffree: inode_max.saturating_sub(info.inode_count),
            bsize: info.block_size,
            namelen: info.name_bytes_max as u32,
            frsize: info.block_size,
            ..Kstatfs::default()
        };
        self.reply.with(&StatfsOut { st });
    }

    fn getxattr(self, size_max: u32, name: &[u8]) {
        let (node, name) = (self.header.nodeid, name.to_vec());
        let value =
            move |served: &Served, file_system: &dyn FileSystem| served.xattr(file_system, node, &name, size_max);
        self.answer(value, send_sized);
    }

    fn listxattr(self, size_max: u32) {
        let (node, caller) = (self.header.nodeid, self.header.pid);
        let names = move |served: &Served, file_system: &dyn FileSystem| {
            served.xattr_names(file_system, node, caller, size_max)
        };
        self.answer(names, send_sized);
    }

    fn lseek(self, seek: &LseekIn) {
        let (node, offset, whence) = (self.header.nodeid, seek.offset, seek.whence);
        let seek = move |served: &Served, file_system: &dyn FileSystem| served.seek(file_system, node, offset, whence);
        self.answer(seek, |reply, offset| reply.with(&LseekOut { offset }));
    }

    fn ioctl(self, ioctl: &IoctlIn) {
        let file_system = self.edge.reader.file_system();
        if ioctl.cmd != GET_LABEL || !file_system.capabilities().has_label {
            return self.reply.refuse(Errno::NOTTY);
        }
        let mut label = file_system.info().label;
        label.truncate((ioctl.out_size as usize).saturating_sub(1));
        label.push(0);
        self.reply.pieces([IoctlOut::default().as_bytes(), &label]);
    }

    /// Begins a turn and answers the request as [`FuseEdge::answer`] does.
    fn answer<T: 'static>(
        self,
        work: impl Fn(&Served, &dyn FileSystem) -> Result<T, Refusal> + Send + 'static,
        send: impl FnOnce(Reply, T) + Send + 'static,
    ) {
        let turn = self.begin(NextRequest::AfterReply);
        self.edge.answer(turn.watch(self.reply), work, send);
    }
}

fn send_sized(reply: Reply, sized: Sized) {
    match sized {
        Sized::Size(size) => reply.with(&GetxattrOut { size, padding: 0 }),
        Sized::Bytes(bytes) => reply.bytes(&bytes),
    }
}
