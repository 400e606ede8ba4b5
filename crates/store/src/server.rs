//! Serves the directory of a store over FUSE.

use std::{
    collections::HashMap,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use floe_fuse_wire as wire;
use floe_image::{ImageSource, ShownName};
use floe_keeper::{is_dead, unmount_all};
use floe_remote::RemoteImage;
use floe_remote_cache::Digest;
use floe_sync::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use wire::{
    Channel, DirectoryEntries, DirectoryEntry, Errno, InitFlags, OpenFlags, Operation, Receipt, Received, Reply,
    RequestBuffer, Terms,
    abi::{Attr, AttrOut, EntryOut, InHeader, Kstatfs, OpenOut, ReadIn, StatfsOut},
};

use crate::{
    contents, name,
    nodes::{LayerFile, Node, Nodes},
    pending::{PendingReplies, PendingReply},
    store::Store,
};

/// The directory of layers by diff IDs, which are digests of this algorithm.
const CONTENTS: &[u8] = b"sha256";

/// The name whose creation notes a use of a layer.
const USE: &[u8] = b"use";

/// How often requests that wait for too long are looked for.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// The stack of a thread that answers a request, in bytes.
const STACK_BYTES: usize = 512 << 10;

const DIRECTORY: u32 = 0o040_555;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_444;

/// A store that is mounted on a directory.
pub struct Server {
    channel: Channel,
    directory: PathBuf,
    store: Store,
    nodes: Mutex<Nodes>,
    pending: PendingReplies,
    /// Open layers, by file handle.
    blobs: Mutex<Blobs>,
    owner: (u32, u32),
    has_ended: AtomicBool,
}

#[derive(Default)]
struct Blobs {
    open: HashMap<u64, Arc<RemoteImage>>,
    next: u64,
}

/// Ends a server from another thread.
pub struct Stopper(PathBuf);

/// What a lookup finds: the node, its mode and its length.
type Found = (Node, u32, u64);

impl Server {
    /// Mounts a store on a directory.
    ///
    /// # Errors
    /// FUSE is not available, or this process may not mount.
    pub fn mount(store: Store, directory: &Path) -> io::Result<Self> {
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.shown()));
        if fs::metadata(directory).is_err_and(|error| is_dead(&error)) {
            // Of a store that was killed.
            unmount_all(directory).map_err(failed)?;
        }
        let directory = fs::canonicalize(directory).map_err(failed)?;
        let device = wire::open().map_err(|error| io::Error::new(error.kind(), format!("/dev/fuse: {error}")))?;
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        mount_on(&directory, &device, owner).map_err(failed)?;
        let channel = Channel::new(device);
        let terms = |offer: &wire::Offer| Terms {
            flags: InitFlags::PARALLEL_DIROPS | InitFlags::ASYNC_READ,
            readahead_bytes_max: offer.readahead_bytes_max,
            background_max: 16,
            congestion_threshold: 12,
            write_bytes_max: 4096,
            pages_max: 0,
            time_granularity_ns: 1,
            request_timeout_s: 0,
        };
        if let Err(error) = channel.negotiate(terms) {
            let _ = unmount(&directory, UnmountFlags::DETACH);
            return Err(failed(error));
        }
        Ok(Self {
            channel,
            directory,
            store,
            nodes: Mutex::new(Nodes::new()),
            pending: PendingReplies::default(),
            blobs: Mutex::default(),
            owner,
            has_ended: AtomicBool::new(false),
        })
    }

    /// A handle that ends the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.directory.clone())
    }

    /// Answers requests until the directory is unmounted. Layers in use stay mounted.
    ///
    /// # Errors
    /// The connection fails, or no thread can be started.
    pub fn run(self) -> io::Result<()> {
        let server = Arc::new(self);
        let expiring = Arc::clone(&server);
        thread::Builder::new().name("floe-expiry".to_owned()).stack_size(STACK_BYTES).spawn(move || {
            while !expiring.has_ended.load(Relaxed) {
                thread::sleep(EXPIRY_INTERVAL);
                expiring.pending.expire();
            }
        })?;
        let served = server.serve();
        server.has_ended.store(true, Relaxed);
        let _ = unmount(&server.directory, UnmountFlags::DETACH);
        server.store.close();
        served
    }

    fn serve(self: &Arc<Self>) -> io::Result<()> {
        let mut buffer = RequestBuffer::new(4096);
        loop {
            match self.channel.receive(&mut buffer)? {
                Receipt::Request(Received { request: Ok(request), reply }) => {
                    self.answer(&request.header, &request.operation, reply);
                }
                Receipt::Request(Received { request: Err(_), reply }) => reply.refuse(Errno::INVAL),
                Receipt::Nothing => self.channel.wait()?,
                Receipt::Interrupted => {}
                Receipt::Unmounted => return Ok(()),
            }
        }
    }

    fn answer(self: &Arc<Self>, header: &InHeader, operation: &Operation<'_>, reply: Reply) {
        let number = header.nodeid;
        match *operation {
            Operation::Forget(lookups) => return self.nodes.lock().forget(number, lookups),
            Operation::BatchForget(forgotten) => {
                let mut nodes = self.nodes.lock();
                return forgotten.iter().for_each(|one| nodes.forget(one.nodeid, one.nlookup));
            }
            // Programs in Go interrupt their own calls all the time, and containers/storage takes EINTR for a missing layer.
            Operation::Interrupt(_) => return reply.refuse(Errno::NOSYS),
            Operation::Destroy => return reply.done(),
            _ => {}
        }
        let Some(node) = self.nodes.lock().node(number).cloned() else { return reply.refuse(Errno::STALE) };
        match *operation {
            Operation::Lookup(name) => self.look_up(&node, name, reply),
            Operation::Getattr(_) => match node {
                Node::File(image, root, file) if file != LayerFile::Diff => self.later(reply, move |server| {
                    let (node, mode, len) = server.file(image, root, file)?;
                    Ok(Answer::Attributes(number, node, mode, len))
                }),
                Node::Content(diff_id) => self.later(reply, move |server| {
                    let (node, mode, len) = server.content(diff_id)?;
                    Ok(Answer::Attributes(number, node, mode, len))
                }),
                node => {
                    let attr = self.attr(number, &node, mode_of(&node), 0);
                    reply.with(&AttrOut { attr, ..AttrOut::default() });
                }
            },
            Operation::Readlink => match node {
                Node::File(_, root, LayerFile::Diff) => {
                    reply.bytes(self.store.tree_of(&root).as_os_str().as_encoded_bytes());
                }
                _ => reply.refuse(Errno::INVAL),
            },
            Operation::Open(_) => match node {
                Node::File(_, _, LayerFile::Info) => {
                    reply.with(&OpenOut { open_flags: OpenFlags::DIRECT_IO.bits(), ..OpenOut::default() });
                }
                Node::File(image, root, LayerFile::Blob) => self.later(reply, move |server| {
                    let blob = server.store.blob(&image, &root).map_err(|error| server.fault(&error))?;
                    Ok(Answer::Opened(server.keep_blob(Arc::new(blob.ok_or(Errno::NOENT)?))))
                }),
                Node::Content(diff_id) => self.later(reply, move |server| {
                    let contents = server.store.contents.as_ref().ok_or(Errno::NOENT)?;
                    let layer = contents.open(&diff_id).map_err(|error| server.fault(&error))?;
                    Ok(Answer::Opened(server.keep_blob(Arc::new(layer.ok_or(Errno::NOENT)?))))
                }),
                _ => reply.refuse(Errno::INVAL),
            },
            Operation::Read(read) => self.read(&node, read, reply),
            Operation::Release(release) => {
                let closed = self.blobs.lock().open.remove(&release.fh);
                reply.done();
                drop(closed);
            }
            Operation::Opendir(_) => reply.with(&OpenOut::default()),
            Operation::Readdir(read) => self.list(&node, &read, reply),
            Operation::Releasedir(_) => reply.done(),
            Operation::Statfs => {
                let st = Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() };
                reply.with(&StatfsOut { st });
            }
            // These are notes about uses, which are answered as if there were no such file.
            Operation::Create(USE) => match node {
                Node::Layer(image, root) => self.later(reply, move |server| {
                    server.store.acquire(&image, &root);
                    Err(Errno::NOENT)
                }),
                _ => reply.refuse(Errno::ROFS),
            },
            Operation::Rmdir(name) => match (node, name::layer(name)) {
                (Node::Image(image), Some(root)) => self.later(reply, move |server| {
                    server.store.release(&image, &root);
                    Err(Errno::NOENT)
                }),
                _ => reply.refuse(Errno::ROFS),
            },
            Operation::Create(_) => reply.refuse(Errno::ROFS),
            _ => reply.refuse(Errno::NOSYS),
        }
    }

    fn look_up(self: &Arc<Self>, parent: &Node, name: &[u8], reply: Reply) {
        let node = match parent {
            Node::Root if name == CONTENTS && self.store.contents.is_some() => Some(Node::Contents),
            Node::Root => name::Reference::of_name(name).map(Node::Image),
            Node::Contents => contents::prefix(name).map(Node::Prefix),
            Node::Prefix(prefix) => match contents::entry(*prefix, name) {
                Some(diff_id) => {
                    return self.later(reply, move |server| Ok(Answer::Entry(server.content(diff_id)?)));
                }
                None => None,
            },
            Node::Image(image) => name::layer(name).map(|root| Node::Layer(image.clone(), root)),
            Node::Layer(image, root) => match LayerFile::of_name(name) {
                Some(file) => {
                    let (image, root) = (image.clone(), *root);
                    return self.later(reply, move |server| Ok(Answer::Entry(server.file(image, root, file)?)));
                }
                None => None,
            },
            Node::File(..) | Node::Content(_) => return reply.refuse(Errno::NOTDIR),
        };
        match node {
            Some(node) => {
                let mode = mode_of(&node);
                self.send_entry(reply, (node, mode, 0));
            }
            None => reply.refuse(Errno::NOENT),
        }
    }

    /// A file of a layer. Mounts the layer for its tree.
    fn file(&self, image: name::Reference, root: Digest, file: LayerFile) -> Result<Found, Errno> {
        let len = match file {
            LayerFile::Diff => {
                self.store.tree(&image, &root).map(|tree| tree.map(|tree| tree.as_os_str().len() as u64))
            }
            LayerFile::Info => self.store.info(&image, &root).map(|info| info.map(|info| info.len() as u64)),
            LayerFile::Blob => self.store.len(&image, &root),
        };
        let len = len.map_err(|error| self.fault(&error))?.ok_or(Errno::NOENT)?;
        let node = Node::File(image, root, file);
        let mode = mode_of(&node);
        Ok((node, mode, len))
    }

    /// A layer by its diff ID.
    fn content(&self, diff_id: Digest) -> Result<Found, Errno> {
        let contents = self.store.contents.as_ref().ok_or(Errno::NOENT)?;
        let content = contents.find(&diff_id).map_err(|error| self.fault(&error))?.ok_or(Errno::NOENT)?;
        let node = Node::Content(diff_id);
        let mode = mode_of(&node);
        Ok((node, mode, content.len))
    }

    fn read(self: &Arc<Self>, node: &Node, read: ReadIn, reply: Reply) {
        let len = read.size.min(1 << 20) as usize;
        let read_blob = move |server: &Self| {
            let blob = server.blobs.lock().open.get(&read.fh).cloned().ok_or(Errno::BADF)?;
            let rest = usize::try_from(blob.len().saturating_sub(read.offset)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len.min(rest)];
            blob.read_at(read.offset, &mut bytes).map_err(|error| server.fault(&error))?;
            Ok(Answer::Bytes(bytes))
        };
        let (image, root, file) = match node.clone() {
            Node::File(image, root, file) => (image, root, file),
            Node::Content(_) => return self.later(reply, read_blob),
            _ => return reply.refuse(Errno::ISDIR),
        };
        match file {
            LayerFile::Diff => reply.refuse(Errno::INVAL),
            LayerFile::Info => self.later(reply, move |server| {
                let info = server.store.info(&image, &root).map_err(|error| server.fault(&error))?;
                let info = info.ok_or(Errno::NOENT)?;
                let rest = usize::try_from(read.offset).ok().and_then(|offset| info.get(offset..)).unwrap_or_default();
                Ok(Answer::Bytes(rest[..rest.len().min(len)].to_vec()))
            }),
            LayerFile::Blob => self.later(reply, read_blob),
        }
    }

    /// Lists the layers in use.
    fn list(&self, node: &Node, read: &ReadIn, reply: Reply) {
        let names: Vec<(String, u32)> = match node {
            Node::Root => self.store.images().iter().map(|image| (image.name(), DIRECTORY)).collect(),
            Node::Image(image) => {
                self.store.layers_of(image).iter().map(|root| (name::layer_name(root), DIRECTORY)).collect()
            }
            Node::Layer(..) => [(LayerFile::Diff, LINK), (LayerFile::Info, FILE), (LayerFile::Blob, FILE)]
                .map(|(file, mode)| (file.name().to_owned(), mode))
                .into(),
            Node::Contents | Node::Prefix(_) => Vec::new(),
            Node::File(..) | Node::Content(_) => return reply.refuse(Errno::NOTDIR),
        };
        let own = [(".".to_owned(), DIRECTORY), ("..".to_owned(), DIRECTORY)];
        let mut entries = DirectoryEntries::new(read.size as usize);
        let skipped = usize::try_from(read.offset).unwrap_or(usize::MAX);
        for (place, (name, mode)) in own.into_iter().chain(names).enumerate().skip(skipped) {
            let next = place as u64 + 1;
            // The kernel asks for a number only to show it.
            let entry = DirectoryEntry { inode_number: next, next, kind: mode >> 12, name: name.as_bytes() };
            if !entries.add(&entry) {
                break;
            }
        }
        reply.bytes(entries.as_bytes());
    }

    /// Answers on a thread of its own.
    fn later(self: &Arc<Self>, reply: Reply, work: impl FnOnce(&Self) -> Result<Answer, Errno> + Send + 'static) {
        let Some(pending) = self.pending.add(reply) else { return };
        let server = Arc::clone(self);
        let answering = Arc::clone(&pending);
        let answer = move || {
            let answer = work(&server);
            server.pending.remove(&answering);
            if let Some(reply) = answering.take() {
                server.send(reply, answer);
            }
        };
        let started = thread::Builder::new().name("floe-answer".to_owned()).stack_size(STACK_BYTES).spawn(answer);
        if started.is_err() {
            self.refuse(&pending);
        }
    }

    fn refuse(&self, pending: &PendingReply) {
        self.pending.remove(pending);
        if let Some(reply) = pending.take() {
            reply.refuse(Errno::AGAIN);
        }
    }

    fn send(&self, reply: Reply, answer: Result<Answer, Errno>) {
        match answer {
            Ok(Answer::Entry(found)) => self.send_entry(reply, found),
            Ok(Answer::Attributes(number, node, mode, len)) => {
                let attr = self.attr(number, &node, mode, len);
                reply.with(&AttrOut { attr, ..AttrOut::default() });
            }
            Ok(Answer::Bytes(bytes)) => reply.bytes(&bytes),
            Ok(Answer::Opened(fh)) => reply.with(&OpenOut { fh, ..OpenOut::default() }),
            Err(errno) => reply.refuse(errno),
        }
    }

    /// The kernel asks again for each use of a name: layers come and go.
    fn send_entry(&self, reply: Reply, (node, mode, len): Found) {
        let number = self.nodes.lock().look_up(node.clone());
        let attr = self.attr(number, &node, mode, len);
        reply.with(&EntryOut { nodeid: number, attr, ..EntryOut::default() });
    }

    fn attr(&self, ino: u64, node: &Node, mode: u32, len: u64) -> Attr {
        let (uid, gid) = self.owner;
        let nlink = if matches!(node, Node::File(..) | Node::Content(_)) { 1 } else { 2 };
        Attr { ino, size: len, blocks: len.div_ceil(512), mode, nlink, uid, gid, blksize: 4096, ..Attr::default() }
    }

    fn keep_blob(&self, blob: Arc<RemoteImage>) -> u64 {
        let mut blobs = self.blobs.lock();
        blobs.next += 1;
        let handle = blobs.next;
        blobs.open.insert(handle, blob);
        handle
    }

    /// Reports an error, and returns its number.
    fn fault(&self, error: &io::Error) -> Errno {
        self.store.say(&error.to_string());
        Errno::IO
    }
}

/// What an answer that took time says.
enum Answer {
    Entry(Found),
    Attributes(u64, Node, u32, u64),
    Bytes(Vec<u8>),
    Opened(u64),
}

impl Stopper {
    /// Ends the server. Programs that use the directory keep it until they end.
    pub fn stop(&self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn mode_of(node: &Node) -> u32 {
    match node {
        Node::Root | Node::Image(_) | Node::Layer(..) | Node::Contents | Node::Prefix(_) => DIRECTORY,
        Node::File(_, _, LayerFile::Diff) => LINK,
        Node::File(..) | Node::Content(_) => FILE,
    }
}

/// Mounts on a directory: writable, because notes about uses are creations and removals, which are refused.
fn mount_on(directory: &Path, device: &OwnedFd, (uid, gid): (u32, u32)) -> io::Result<()> {
    let data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    let data = std::ffi::CString::new(data).map_err(|_| io::ErrorKind::InvalidInput)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("floe", directory, "fuse.floe-store", flags, data.as_c_str())?)
}
