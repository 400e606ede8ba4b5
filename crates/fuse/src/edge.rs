//! Requests of the kernel, answered.

pub(crate) mod drop_behind;
pub(crate) mod kernel_pages;
mod negotiation;

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use floe_engine::Reader;
use floe_image::{Error, FileSystem, FileType};
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::{
    MountOptions, RequestKind,
    connection::pending::Pending,
    inodes::directory,
    inodes::served::{Found, NAME_BYTES_MAX, Refusal, Served, Sized},
    requests::deadline::{Answer, Deadlines, Watched},
    session_pool::{SessionPool, Turn},
};

use self::negotiation::{Circumstances, NeedlessOpens, negotiate};

/// `FS_IOC_GETFSLABEL`: `_IOR(0x94, 49, char[256])`.
const GET_LABEL: u32 = rustix::ioctl::opcode::read::<[u8; 256]>(0x94, 49);

/// A mounted image, as the kernel asks it.
///
/// Requests go to the reader, which answers them on this thread where nothing has to be waited for, and on threads that
/// may wait where something has.
pub(crate) struct FuseEdge {
    reader: Reader,
    served: Arc<Served>,
    deadlines: Arc<Deadlines>,
    threads: SessionPool,
    options: MountOptions,
    circumstances: Circumstances,
    needless: NeedlessOpens,
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
        let root = file_system.attr(file_system.root())?;
        let finds_by_number = file_system.nid_of(root.inode_number).is_some();
        let has_acls = file_system.info().format != "squashfs";
        let threads = SessionPool::new(reader.clone(), options, Arc::clone(&deadlines));
        Ok(Self {
            reader,
            served: Arc::new(Served::new(file_system, &root, options)),
            threads,
            deadlines,
            options: options.clone(),
            circumstances: Circumstances { checks_permissions, finds_by_number, has_acls },
            needless: NeedlessOpens::default(),
        })
    }

    /// What is served, to whom, and what is to show whether more requests wait.
    pub(crate) fn parts(&self) -> (Reader, Arc<Served>, Arc<Pending>) {
        (self.reader.clone(), Arc::clone(&self.served), Arc::clone(self.threads.pending()))
    }

    fn enter(&self, request: &Request) -> Turn<'_> {
        self.threads.begin(request.pid())
    }

    /// Answers a request that reads metadata with what `work` gives, which may run twice.
    fn answer<R: Answer, T: 'static>(
        &self,
        request: &Request,
        reply: R,
        work: impl Fn(&Served, &dyn FileSystem) -> Result<T, Refusal> + Send + 'static,
        send: impl FnOnce(&Served, R, T) + Send + 'static,
    ) {
        let _turn = self.enter(request);
        let watched = self.deadlines.watch(reply);
        self.answer_watched(watched, work, send);
    }

    /// As [`FuseEdge::answer`], where the request is watched already. A panic costs this one request.
    fn answer_watched<R: Answer, T: 'static>(
        &self,
        watched: Watched<R>,
        work: impl Fn(&Served, &dyn FileSystem) -> Result<T, Refusal> + Send + 'static,
        send: impl FnOnce(&Served, R, T) + Send + 'static,
    ) {
        let (served, answering) = (Arc::clone(&self.served), Arc::clone(&self.served));
        let work = move |file_system: &dyn FileSystem| {
            let refused = |errno| Ok(Err(errno));
            match catch_unwind(AssertUnwindSafe(|| work(&served, file_system))) {
                Ok(Ok(value)) => Ok(Ok(value)),
                Ok(Err(Refusal::Image(error))) => Err(error),
                Ok(Err(Refusal::Request(errno))) => refused(errno),
                Err(_panic) => refused(Errno::EIO),
            }
        };
        self.reader.metadata_then(work, move |result| {
            let result = result.unwrap_or_else(|error| Err(answering.fault(&error)));
            if let Some(reply) = watched.take() {
                match result {
                    Ok(value) => send(&answering, reply, value),
                    Err(errno) => reply.refuse(errno),
                }
            }
        });
    }
}

fn send_sized(_: &Served, reply: ReplyXattr, sized: Sized) {
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

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.served.counts.note(RequestKind::Lookup);
        let name = name.as_bytes().to_vec();
        let find = move |served: &Served, file_system: &dyn FileSystem| served.find(file_system, parent, &name);
        self.answer(request, reply, find, |served, reply, found| match found {
            Found::Inode(attr, ttl) => reply.entry_with_ttls(&ttl, &served.keep, &attr, Generation(0)),
            // Node 0 says that there is no such name, and for how long; ENOENT would not be kept.
            Found::Nothing => {
                reply.entry(&served.keep, &served.attributes.blank(0, FileType::Regular), Generation(0));
            }
        });
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.served.counts.note(RequestKind::Forget);
        self.served.nodes.forget(node.0, lookups);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.served.counts.note(RequestKind::Getattr);
        let attr = move |served: &Served, file_system: &dyn FileSystem| served.attr(file_system, node);
        self.answer(request, reply, attr, |served, reply, attr| reply.attr(&served.keep, &attr));
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        self.served.counts.note(RequestKind::Readlink);
        let target = move |served: &Served, file_system: &dyn FileSystem| Ok(file_system.read_link(served.nid(node)?)?);
        self.answer(request, reply, target, |_, reply, target| reply.data(&target));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.served.counts.note(RequestKind::Open);
        match self.needless.files {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
        }
    }

    fn read(
        &self,
        request: &Request,
        node: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.served.counts.note(RequestKind::Read);
        let nid = match self.served.nid(node) {
            Ok(nid) => nid,
            Err(errno) => return reply.error(errno),
        };
        if let Some(reads) = &self.options.reads {
            reads(nid, offset, len);
        }
        let _turn = self.enter(request);
        let watched = self.deadlines.watch(reply);
        let served = Arc::clone(&self.served);
        let read = || {
            self.reader.read_then(nid, offset, len, move |result| {
                let result = result.map_err(|error| served.fault(&error));
                if let Some(reply) = watched.take() {
                    match result {
                        Ok(bytes) => reply.data(bytes),
                        Err(errno) => reply.error(errno),
                    }
                }
            });
        };
        // The reply is dropped with the completion where this panics, and then says EIO.
        let _ = catch_unwind(AssertUnwindSafe(read));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.served.counts.note(RequestKind::Opendir);
        match self.needless.directories {
            true => reply.error(Errno::ENOSYS),
            false => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR),
        }
    }

    fn readdir(&self, request: &Request, node: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.served.counts.note(RequestKind::Readdir);
        let _turn = self.enter(request);
        let watched = self.deadlines.watch(reply);
        let filling = watched.filling();
        let fill = move |served: &Served, file_system: &dyn FileSystem| {
            Ok(directory::fill(file_system, served.nid(node)?, offset, &filling)?)
        };
        self.answer_watched(watched, fill, |_, reply, ()| reply.ok());
    }

    fn readdirplus(&self, request: &Request, node: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectoryPlus) {
        self.served.counts.note(RequestKind::Readdirplus);
        let _turn = self.enter(request);
        let watched = self.deadlines.watch(reply);
        let filling = watched.filling();
        let fill = move |served: &Served, file_system: &dyn FileSystem| {
            let directory = served.nid(node)?;
            Ok((directory, directory::fill_plus(file_system, directory, offset, served, &filling)?))
        };
        let reader = self.reader.clone();
        self.answer_watched(watched, fill, move |_, reply, (directory, files)| {
            // Before the answer, as what is listed is read right after it.
            reader.note_listed(directory, offset == 0, &files);
            reply.ok();
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.served.counts.note(RequestKind::Statfs);
        let info = self.reader.file_system().info();
        // The kernel's EROFS says that there is room for more inodes without an end; its SquashFS, that there is none.
        let inode_max = if info.format == "erofs" { u64::MAX } else { info.inode_count };
        let inode_free = inode_max.saturating_sub(info.inode_count);
        let name_bytes_max = NAME_BYTES_MAX as u32;
        let block_size = info.block_size;
        reply.statfs(info.block_count, 0, 0, inode_max, inode_free, block_size, name_bytes_max, block_size);
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.served.counts.note(RequestKind::Getxattr);
        let name = name.as_bytes().to_vec();
        let value = move |served: &Served, file_system: &dyn FileSystem| served.xattr(file_system, node, &name, size);
        self.answer(request, reply, value, send_sized);
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        self.served.counts.note(RequestKind::Listxattr);
        let caller = request.pid();
        let names =
            move |served: &Served, file_system: &dyn FileSystem| served.xattr_names(file_system, node, caller, size);
        self.answer(request, reply, names, send_sized);
    }

    fn lseek(&self, request: &Request, node: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.served.counts.note(RequestKind::Lseek);
        let seek = move |served: &Served, file_system: &dyn FileSystem| served.seek(file_system, node, offset, whence);
        self.answer(request, reply, seek, |_, reply, offset| reply.offset(offset));
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        out_bytes_max: u32,
        reply: ReplyIoctl,
    ) {
        let info = self.reader.file_system().info();
        // As with the kernel's mounts: SquashFS has no labels, EROFS may have an empty one.
        if command != GET_LABEL || info.format == "squashfs" {
            return reply.error(Errno::ENOTTY);
        }
        let mut label = info.label;
        label.truncate((out_bytes_max as usize).saturating_sub(1));
        label.push(0);
        reply.ioctl(0, &label);
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
