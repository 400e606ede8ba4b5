//! Requests of the kernel, answered.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use floe_engine::Reader;
use floe_image::{Attr, Error, FileSystem, FileType, Nid, SeekTarget};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::{
    FaultSink, MountOptions,
    attributes::AttributeView,
    caller::is_administrator,
    deadline::{Answer, Deadlines},
    directory,
    errno::errno_of,
    negotiation::{Circumstances, NeedlessOpens, negotiate},
    node_numbers::NodeNumbers,
};

/// How long the kernel may keep what it was told: the image never changes.
pub(crate) const ENDLESS: Duration = Duration::from_secs(u32::MAX as u64);

/// The longest name that `statfs` tells of, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// What only an administrator may see in a list of extended attributes.
const TRUSTED: &[u8] = b"trusted.";

/// A mounted image, as the kernel asks it.
pub(crate) struct FuseEdge {
    reader: Reader,
    nodes: NodeNumbers,
    deadlines: Arc<Deadlines>,
    attributes: AttributeView,
    statistics: Statistics,
    options: MountOptions,
    circumstances: Circumstances,
    needless: NeedlessOpens,
}

/// The answer to every `statfs`.
struct Statistics {
    block_count: u64,
    inode_count: u64,
    block_size: u32,
}

/// What a lookup found.
enum Found {
    /// An inode, and how long its attributes may be kept.
    Inode(FileAttr, Duration),
    /// Nothing, which may be kept too.
    Nothing,
}

/// The size of an extended attribute or of their list, or the bytes themselves.
enum Sized {
    Size(u32),
    Bytes(Vec<u8>),
}

impl FuseEdge {
    /// An edge over a reader.
    ///
    /// # Errors
    /// The root cannot be read.
    pub(crate) fn new(
        reader: Reader,
        options: &MountOptions,
        checks_permissions: bool,
        deadlines: Arc<Deadlines>,
    ) -> Result<Self, Error> {
        let file_system = Arc::clone(reader.file_system());
        let info = file_system.info();
        let root = file_system.attr(file_system.root())?;
        let finds_by_number = file_system.nid_of(root.inode_number).is_some();
        Ok(Self {
            nodes: NodeNumbers::new(file_system, root.inode_number),
            deadlines,
            attributes: AttributeView {
                block_size: info.block_size.clamp(512, 4096),
                uid: options.uid,
                gid: options.gid,
            },
            statistics: Statistics {
                block_count: info.block_count,
                inode_count: info.inode_count,
                block_size: info.block_size,
            },
            options: options.clone(),
            circumstances: Circumstances { checks_permissions, finds_by_number },
            needless: NeedlessOpens::default(),
            reader,
        })
    }

    fn file_system(&self) -> &dyn FileSystem {
        self.reader.file_system().as_ref()
    }

    /// Answers a request with what `work` gives. A panic in it costs this one request.
    fn answer<R: Answer, T>(&self, reply: R, work: impl FnOnce() -> Result<T, Errno>, send: impl FnOnce(R, T)) {
        let _visit = self.deadlines.enter();
        let watched = self.deadlines.watch(reply);
        let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::EIO));
        if let Some(reply) = watched.take() {
            match result {
                Ok(value) => send(reply, value),
                Err(errno) => reply.refuse(errno),
            }
        }
    }

    /// The errno of an error, which is told to whoever wants to know.
    fn fault(&self, error: &Error) -> Errno {
        tell(self.options.faults.as_ref(), error);
        errno_of(error)
    }

    fn nid(&self, node: INodeNo) -> Result<Nid, Errno> {
        self.nodes.nid(node.0).ok_or(Errno::ESTALE)
    }

    fn attr(&self, nid: Nid) -> Result<Attr, Errno> {
        self.file_system().attr(nid).map_err(|error| self.fault(&error))
    }

    fn find(&self, parent: INodeNo, name: &[u8]) -> Result<Found, Errno> {
        let parent = self.nid(parent)?;
        // The kernel asks for the node itself when it has forgotten all but its number.
        let found = match name {
            b"." => Some(parent),
            name => self.file_system().lookup(parent, name).map_err(|error| self.fault(&error))?,
        };
        let Some(nid) = found else {
            return if name.len() > NAME_BYTES_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(Found::Nothing) };
        };
        if nid == self.file_system().root() && name != b"." && name != b".." {
            return Err(Errno::ELOOP);
        }
        let attr = self.attr(nid)?;
        let node = self.nodes.learn(&attr).map_err(|error| self.fault(&error))?;
        let ttl = if NodeNumbers::is_alias(node) { Duration::ZERO } else { ENDLESS };
        Ok(Found::Inode(self.attributes.file_attr(&attr, node), ttl))
    }

    fn xattr(&self, node: INodeNo, name: &[u8], size_max: u32) -> Result<Sized, Errno> {
        let value = self.file_system().xattr(self.nid(node)?, name).map_err(|error| self.fault(&error))?;
        sized(value.ok_or(Errno::ENODATA)?, size_max)
    }

    fn xattr_names(&self, node: INodeNo, caller: u32, size_max: u32) -> Result<Sized, Errno> {
        let mut names = self.file_system().xattr_names(self.nid(node)?).map_err(|error| self.fault(&error))?;
        if names.iter().any(|name| name.starts_with(TRUSTED)) && !is_administrator(caller) {
            names.retain(|name| !name.starts_with(TRUSTED));
        }
        let mut list = Vec::new();
        for name in &names {
            list.extend_from_slice(name);
            list.push(0);
        }
        sized(list, size_max)
    }

    fn seek(&self, node: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
        let target = match whence {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = self.file_system().seek(self.nid(node)?, offset, target).map_err(|error| self.fault(&error))?;
        i64::try_from(found.ok_or(Errno::ENXIO)?).map_err(|_| Errno::EOVERFLOW)
    }
}

/// Tells of an error.
fn tell(faults: Option<&FaultSink>, error: &Error) {
    if let Some(sink) = faults {
        sink(error);
    }
}

fn sized(bytes: Vec<u8>, size_max: u32) -> Result<Sized, Errno> {
    let size = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    match size_max {
        0 => Ok(Sized::Size(size)),
        size_max if size > size_max => Err(Errno::ERANGE),
        _ => Ok(Sized::Bytes(bytes)),
    }
}

fn send_sized(reply: ReplyXattr, sized: Sized) {
    match sized {
        Sized::Size(size) => reply.size(size),
        Sized::Bytes(bytes) => reply.data(&bytes),
    }
}

impl Filesystem for FuseEdge {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.needless = negotiate(config, &self.options, self.circumstances);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let find = || self.find(parent, name.as_bytes());
        self.answer(reply, find, |reply, found| match found {
            Found::Inode(attr, ttl) => reply.entry_with_ttls(&ttl, &ENDLESS, &attr, Generation(0)),
            // Node 0 says that there is no such name, and for how long; ENOENT would not be kept.
            Found::Nothing => {
                reply.entry(&ENDLESS, &self.attributes.blank(0, FileType::Regular), Generation(0));
            }
        });
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.nodes.forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = || {
            let attr = self.attr(self.nid(node)?)?;
            Ok(self.attributes.file_attr(&attr, attr.inode_number))
        };
        self.answer(reply, attr, |reply, attr| reply.attr(&ENDLESS, &attr));
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let target = || self.file_system().read_link(self.nid(node)?).map_err(|error| self.fault(&error));
        self.answer(reply, target, |reply, target| reply.data(&target));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.needless.files {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _visit = self.deadlines.enter();
        let watched = self.deadlines.watch(reply);
        let Ok(nid) = self.nid(node) else {
            return watched.take().map_or((), |reply| reply.error(Errno::ESTALE));
        };
        let faults = self.options.faults.clone();
        let read = || {
            self.reader.read_then(nid, offset, len, move |result| {
                if let Err(error) = &result {
                    tell(faults.as_ref(), error);
                }
                if let Some(reply) = watched.take() {
                    match result {
                        Ok(bytes) => reply.data(bytes),
                        Err(error) => reply.error(errno_of(&error)),
                    }
                }
            });
        };
        // The reply is dropped with the completion where this panics, and then says EIO.
        let _ = catch_unwind(AssertUnwindSafe(read));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.needless.directories {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR),
        }
    }

    fn readdir(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let _visit = self.deadlines.enter();
        let watched = self.deadlines.watch(reply);
        let fill = || {
            let nid = self.nid(node)?;
            directory::fill(self.file_system(), nid, offset, &watched).map_err(|error| self.fault(&error))
        };
        let result = catch_unwind(AssertUnwindSafe(fill)).unwrap_or(Err(Errno::EIO));
        if let Some(reply) = watched.take() {
            match result {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        }
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        let _visit = self.deadlines.enter();
        let watched = self.deadlines.watch(reply);
        let fill = || {
            let nid = self.nid(node)?;
            directory::fill_plus(self.file_system(), nid, offset, &self.nodes, &self.attributes, &watched)
                .map_err(|error| self.fault(&error))
        };
        let result = catch_unwind(AssertUnwindSafe(fill)).unwrap_or(Err(Errno::EIO));
        if let Some(reply) = watched.take() {
            match result {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let Statistics { block_count, inode_count, block_size } = self.statistics;
        reply.statfs(block_count, 0, 0, inode_count, 0, block_size, NAME_BYTES_MAX as u32, block_size);
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.answer(reply, || self.xattr(node, name.as_bytes(), size), send_sized);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(reply, || self.xattr_names(node, request.pid(), size), send_sized);
    }

    fn lseek(&self, _: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.answer(reply, || self.seek(node, offset, whence), ReplyLseek::offset);
    }

    // The kernel refuses every change by itself, as long as nobody remounts with "rw".

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn symlink(&self, _: &Request, _: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn rename(&self, _: &Request, _: INodeNo, _: &OsStr, _: INodeNo, _: &OsStr, _: RenameFlags, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EROFS);
    }

    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, _: u64, _: i32, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn setxattr(&self, _: &Request, _: INodeNo, _: &OsStr, _: &[u8], _: i32, _: u32, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }
}
