//! Writes an image as a tar archive.

mod batches;
mod header;

use std::{
    collections::HashMap,
    fmt,
    io::{self, Write},
    ops::ControlFlow,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::sync_channel,
    },
    thread,
};

use floe_image::{Shown, start_error};

use crate::{
    Attr, ByteRange, Choice, Error, FileType, Image, Nid, Parts, PathError, SeekTarget, WalkEntry, XattrSelection,
    memory_limit::{check_thread_start, threads_within_limit},
};

use batches::Batches;
use header::{BLOCK_LEN, Member, MemberKind, SparseMap};

/// The end of an archive, in bytes: two blocks of zeros.
const END_LEN: usize = 2 * BLOCK_LEN;
/// A file is stored with a map of its holes if they have at least this many bytes.
const HOLES_LEN_MIN: u64 = 64 << 10;

/// Options of [`write_tar`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TarOptions {
    /// The number of threads that decode; at least 1.
    pub jobs: usize,
    /// The name of the root, which precedes the other names. With `.`, there are members `./` and `./etc/`. With `None`, the
    /// root has no member, and the others begin with their own names.
    pub root_name: Option<Vec<u8>>,
    /// Which extended attributes are stored.
    pub xattrs: XattrSelection,
    /// Whether further names of an inode become hard links. Otherwise they become copies.
    pub hard_links: bool,
    /// Whether files with holes are stored with a map of them, in sparse format 1.0 of GNU tar. Otherwise holes become zeros.
    pub holes: bool,
}

impl Default for TarOptions {
    fn default() -> Self {
        Self {
            jobs: thread::available_parallelism().map_or(1, usize::from),
            root_name: Some(b".".to_vec()),
            xattrs: XattrSelection::All,
            hard_links: true,
            holes: true,
        }
    }
}

/// What [`write_tar`] has written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TarSummary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of inodes, as hard links.
    pub hard_links: u64,
    /// Devices and pipes.
    pub special_files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Entries that an archive cannot hold.
    pub unfit: u64,
    /// Entries whose metadata could not be read.
    pub failures: u64,
}

/// Why an entry was left out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TarOmission {
    /// A tar archive has no sockets.
    Socket,
    /// Its metadata cannot be read.
    Unreadable(Error),
}

/// Why an archive is not complete.
#[derive(Debug)]
#[non_exhaustive]
pub enum TarError {
    /// It could not be written.
    Output(io::Error),
    /// A requested path is not in the image.
    Path(PathError),
    /// The content of a file cannot be read.
    Content {
        /// Its path in the image.
        path: Vec<u8>,
        /// The error.
        error: Error,
    },
    /// A thread could not be started.
    Thread(io::Error),
    /// The caller cancelled it.
    Cancelled,
}

/// Writes `parts` of an image as a tar archive: in the format of POSIX.1-2001 (pax), with extended attributes as
/// `SCHILY.xattr`. Members are in the order of a [`Walk`](crate::Walk). The bytes depend on the image and on the options
/// only; `options.jobs` makes no difference.
///
/// Entries that are left out are passed to `tell`, with their paths.
///
/// # Errors
/// The archive cannot be written, or the content of a file cannot be read. The archive then has no end, so that readers do
/// not take it for a complete one.
pub fn write_tar(
    image: &Image,
    parts: Parts<'_>,
    output: &mut (dyn Write + Send),
    options: &TarOptions,
    tell: &dyn Fn(&[u8], &TarOmission),
    cancel: &AtomicBool,
) -> Result<TarSummary, TarError> {
    let mut everything = |_: &WalkEntry| Choice::TakeAll;
    let mut below;
    let choose: &mut dyn FnMut(&WalkEntry) -> Choice = match parts {
        Parts::All => &mut everything,
        Parts::Where(choose) => choose,
        Parts::Below(paths) => {
            let paths = paths.iter().map(|path| plain_path(image, path)).collect::<Result<Vec<_>, _>>();
            let paths = paths.map_err(TarError::Path)?;
            below = move |entry: &WalkEntry| choice_below(&paths, &entry.path);
            &mut below
        }
    };
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Vec<u8>>(1);
        let (spare_sender, spare_receiver) = sync_channel(2);
        let write = move || {
            for batch in receiver {
                output.write_all(&batch)?;
                let _ = spare_sender.try_send(batch);
            }
            output.flush()
        };
        let builder = thread::Builder::new().name("floe-tar".into());
        let started = check_thread_start().and_then(|()| builder.spawn_scoped(scope, write));
        let writer = started.map_err(|error| TarError::Thread(start_error(error)))?;
        let jobs = threads_within_limit(options.jobs);
        let batches = Batches::new(image, jobs, sender, spare_receiver);
        let archive = Archive { image, options, tell, batches, names: HashMap::new(), summary: TarSummary::default() };
        let written = archive.write(choose, cancel);
        // A failed write also ends the other side.
        match writer.join() {
            Ok(Ok(())) => written,
            Ok(Err(error)) => Err(TarError::Output(error)),
            Err(_) => Err(TarError::Output(io::Error::other("the writing thread ended"))),
        }
    })
}

/// The path of an existing entry, with one slash before each name. Links are not followed.
fn plain_path(image: &Image, path: &[u8]) -> Result<Vec<u8>, PathError> {
    let (mut plain, mut nid) = (Vec::new(), image.root());
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        if image.attr(nid)?.file_type != FileType::Directory {
            return Err(PathError::NotADirectory { path: plain });
        }
        plain.push(b'/');
        plain.extend(name);
        let found = if name == b".." { None } else { image.file_system().lookup(nid, name)? };
        nid = found.ok_or_else(|| PathError::NotFound { path: plain.clone() })?;
    }
    Ok(plain)
}

/// Whether an entry is on the way to one of the paths, or below one.
fn choice_below(paths: &[Vec<u8>], entry: &[u8]) -> Choice {
    let entry = entry.strip_suffix(b"/").unwrap_or(entry);
    let is_within = |outer: &[u8], inner: &[u8]| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    if paths.iter().any(|path| is_within(path, entry)) {
        Choice::TakeAll
    } else if paths.iter().any(|path| is_within(entry, path)) {
        Choice::Take
    } else {
        Choice::LeaveOut
    }
}

/// An archive while it is written.
struct Archive<'a> {
    image: &'a Image,
    options: &'a TarOptions,
    tell: &'a dyn Fn(&[u8], &TarOmission),
    batches: Batches<'a>,
    /// The first names of inodes with several names.
    names: HashMap<Nid, Vec<u8>>,
    summary: TarSummary,
}

impl Archive<'_> {
    fn write(
        mut self,
        choose: &mut dyn FnMut(&WalkEntry) -> Choice,
        cancel: &AtomicBool,
    ) -> Result<TarSummary, TarError> {
        let mut walk = self.image.walk();
        // The depth of the directory that was taken with everything below it.
        let mut whole: Option<usize> = None;
        while let Some(entry) = walk.next() {
            if cancel.load(Relaxed) {
                return Err(TarError::Cancelled);
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    self.leave_out(&error.path, TarOmission::Unreadable(error.error));
                    continue;
                }
            };
            whole = whole.filter(|depth| entry.depth > *depth);
            if whole.is_none() {
                match choose(&entry) {
                    Choice::Take => {}
                    Choice::TakeAll => whole = Some(entry.depth),
                    Choice::LeaveOut => {
                        if entry.attr.file_type == FileType::Directory {
                            walk.skip_directory();
                        }
                        continue;
                    }
                }
            }
            self.add(&entry)?;
        }
        self.batches.bytes(&[0; END_LEN])?;
        self.batches.flush()?;
        Ok(self.summary)
    }

    fn leave_out(&mut self, path: &[u8], omission: TarOmission) {
        match omission {
            TarOmission::Socket => self.summary.unfit += 1,
            TarOmission::Unreadable(_) => self.summary.failures += 1,
        }
        (self.tell)(path, &omission);
    }

    fn add(&mut self, entry: &WalkEntry) -> Result<(), TarError> {
        let Some(name) = self.name(entry) else { return Ok(()) };
        let attr = &entry.attr;
        if attr.file_type == FileType::Socket {
            self.leave_out(&entry.path, TarOmission::Socket);
            return Ok(());
        }
        if let Some(first) = self.names.get(&attr.nid) {
            let kind = MemberKind::HardLink(first);
            let header = Member { name: &name, kind, attr, xattrs: &[] }.to_bytes();
            self.batches.bytes(&header)?;
            self.summary.hard_links += 1;
            return Ok(());
        }
        let read = match Inode::read(self.image, attr, self.options) {
            Ok(read) => read,
            Err(error) => {
                self.leave_out(&entry.path, TarOmission::Unreadable(error));
                return Ok(());
            }
        };
        let kind = match attr.file_type {
            FileType::Directory => MemberKind::Directory,
            FileType::Symlink => MemberKind::Symlink(&read.target),
            FileType::Regular => match &read.map {
                Some(map) => MemberKind::Sparse(map),
                None => MemberKind::File,
            },
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket => {
                MemberKind::Special
            }
        };
        let header = Member { name: &name, kind, attr, xattrs: &read.xattrs }.to_bytes();
        self.batches.bytes(&header)?;
        match attr.file_type {
            FileType::Directory => self.summary.directories += 1,
            FileType::Symlink => self.summary.symlinks += 1,
            FileType::Regular => {
                self.summary.files += 1;
                self.add_content(entry, read.map.as_ref())?;
            }
            _ => self.summary.special_files += 1,
        }
        if self.options.hard_links && attr.link_count > 1 && attr.file_type != FileType::Directory {
            self.names.insert(attr.nid, name);
        }
        Ok(())
    }

    fn add_content(&mut self, entry: &WalkEntry, map: Option<&SparseMap>) -> Result<(), TarError> {
        let nid = entry.attr.nid;
        let whole = [ByteRange::new(0, entry.attr.size)];
        let mut len = 0;
        if let Some(map) = map {
            let text = map.to_bytes();
            self.batches.bytes(&text)?;
        }
        for range in map.map_or(&whole[..], |map| &map.ranges) {
            self.batches.content(nid, *range, &entry.path)?;
            len += range.len();
        }
        self.summary.bytes += len;
        let used = usize::try_from(len % BLOCK_LEN as u64).unwrap_or(0);
        self.batches.bytes(&[0; BLOCK_LEN][..(BLOCK_LEN - used) % BLOCK_LEN])
    }

    /// The name of a member; `None` if the root has none.
    fn name(&self, entry: &WalkEntry) -> Option<Vec<u8>> {
        let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path);
        let mut name = self.options.root_name.clone().unwrap_or_default();
        if path.is_empty() && name.is_empty() {
            return None;
        }
        if !path.is_empty() && !name.is_empty() {
            name.push(b'/');
        }
        name.extend_from_slice(path);
        if entry.attr.file_type == FileType::Directory {
            name.push(b'/');
        }
        Some(name)
    }
}

/// What a member needs of an inode, apart from its attributes and content.
struct Inode {
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    map: Option<SparseMap>,
}

impl Inode {
    fn read(image: &Image, attr: &Attr, options: &TarOptions) -> Result<Self, Error> {
        let file_system = image.file_system();
        let outline = file_system.outline(attr.nid)?;
        let mut xattrs = Vec::new();
        if outline.may_have_xattrs && options.xattrs != XattrSelection::None {
            file_system.xattrs(attr.nid, &mut |xattr| {
                if options.xattrs.includes(xattr.name) {
                    xattrs.push((xattr.name.to_vec(), xattr.value.to_vec()));
                }
                ControlFlow::Continue(())
            })?;
            xattrs.sort();
        }
        let target = if attr.file_type == FileType::Symlink { file_system.read_link(attr.nid)? } else { Vec::new() };
        let has_holes = options.holes && attr.file_type == FileType::Regular && outline.hole_alignment.is_some();
        let map = if has_holes { sparse_map(image, attr)? } else { None };
        Ok(Self { target, xattrs, map })
    }
}

/// The map of a file with enough holes.
fn sparse_map(image: &Image, attr: &Attr) -> Result<Option<SparseMap>, Error> {
    let (file_system, nid) = (image.file_system(), attr.nid);
    let mut ranges: Vec<ByteRange> = Vec::new();
    let mut at = 0;
    while at < attr.size
        && let Some(data) = file_system.seek(nid, at, SeekTarget::Data)?
        && data < attr.size
    {
        let end = file_system.seek(nid, data, SeekTarget::Hole)?.unwrap_or(attr.size).clamp(data + 1, attr.size);
        ranges.push(ByteRange::between(data, end));
        at = end;
    }
    let map = SparseMap { ranges, size: attr.size };
    let stored_len = map.stored_len();
    Ok((stored_len.saturating_add(HOLES_LEN_MIN) <= attr.size).then_some(map))
}

impl fmt::Display for TarOmission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket => formatter.write_str("a tar archive cannot hold sockets"),
            Self::Unreadable(error) => error.fmt(formatter),
        }
    }
}

impl fmt::Display for TarError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(error) => write!(formatter, "cannot write the archive: {error}"),
            Self::Path(error) => error.fmt(formatter),
            Self::Content { path, error } => write!(formatter, "{}: {error}; the archive has no end", Shown(path)),
            Self::Thread(error) => write!(formatter, "cannot start a thread: {error}"),
            Self::Cancelled => formatter.write_str("cancelled; the archive has no end"),
        }
    }
}

impl std::error::Error for TarError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Output(error) | Self::Thread(error) => Some(error),
            Self::Path(error) => Some(error),
            Self::Content { error, .. } => Some(error),
            Self::Cancelled => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_choose_what_leads_to_them_and_what_is_below() {
        let paths = [b"/usr/share/doc".to_vec(), b"/etc".to_vec()];
        for (entry, expected) in [
            ("/", Choice::Take),
            ("/usr", Choice::Take),
            ("/usr/share", Choice::Take),
            ("/usr/share/doc", Choice::TakeAll),
            ("/usr/share/docs", Choice::LeaveOut),
            ("/usr/lib", Choice::LeaveOut),
            ("/etc", Choice::TakeAll),
            ("/etc/fstab", Choice::TakeAll),
        ] {
            assert_eq!(choice_below(&paths, entry.as_bytes()), expected, "{entry}");
        }
        assert_eq!(choice_below(&[Vec::new()], b"/"), Choice::TakeAll);
    }
}
