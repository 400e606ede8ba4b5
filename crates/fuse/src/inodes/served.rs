//! Serves requests for metadata.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use floe_engine::Reader;
use floe_fuse_wire::{
    Errno,
    abi::{AttrOut, EntryOut},
};
use floe_image::{Attr, Capabilities, Error, FileSystem, FileType, Nid, SeekTarget};

use floe_keeper::{Access, Keeper, is_administrator};

use crate::{
    FaultSink, ImageAccess, MountSetup, Readdir, RequestCounts,
    inodes::attributes::{AttributeView, kind},
    inodes::directory::{self, Listed},
    inodes::errno::errno_of,
    inodes::listings::{Allowance, Listings},
    inodes::next_parts::{ListingPart, NextParts},
    inodes::node_numbers::NodeNumbers,
};

/// How long the kernel may cache replies, in seconds: forever, because the image never changes.
const ENDLESS_S: u64 = u32::MAX as u64;

/// The namespaces of extended attributes.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", TRUSTED];

/// The only accepted attributes outside these namespaces. SquashFS does not have them.
const ACCESS_CONTROL_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

const SEEK_DATA: u32 = libc::SEEK_DATA as u32;
const SEEK_HOLE: u32 = libc::SEEK_HOLE as u32;

/// The namespace that only administrators see in lists of extended attributes.
const TRUSTED: &[u8] = b"trusted.";

/// The prefixes of the attributes of overlayfs, and those of the same attributes where a user mounts it.
const OVERLAY: &[u8] = b"trusted.overlay.";
const USER_OVERLAY: &[u8] = b"user.overlay.";

/// The state of a mounted image. Each request brings its own view of the file system.
///
/// A request may run twice: first without permission to wait for the source, then with it. Methods therefore change
/// state only as their last step.
pub(crate) struct Served {
    pub(crate) nodes: NodeNumbers,
    name_bytes_max: usize,
    pub(crate) attributes: AttributeView,
    pub(crate) counts: RequestCounts,
    pub(crate) listings: Listings,
    pub(crate) next_parts: NextParts,
    readdir: Readdir,
    user_overlay: bool,
    faults: Option<FaultSink>,
    /// Whether the connection to the kernel has ended, so that nobody waits for replies.
    is_over: AtomicBool,
    keeper: Option<Arc<Keeper>>,
}

/// Why a request is refused.
pub(crate) enum Refusal {
    /// The request is invalid for its target.
    Request(Errno),
    /// The image or its source failed.
    Image(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Image(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Request(errno)
    }
}

/// An extended attribute or a list of their names: its size, or its bytes.
pub(crate) enum Sized {
    Size(u32),
    Bytes(Vec<u8>),
}

impl Served {
    /// Creates the state for a file system.
    pub(crate) fn new(file_system: &dyn FileSystem, setup: &MountSetup) -> Self {
        let MountSetup { options, hooks, handles } = setup;
        let info = file_system.info();
        Self {
            nodes: NodeNumbers::new(file_system.root()),
            name_bytes_max: info.name_bytes_max,
            attributes: AttributeView {
                block_size: info.block_size.clamp(512, 4096),
                uid: options.uid,
                gid: options.gid,
                keep_s: if options.kernel.access() == Access::OwnerAndRoot { 0 } else { ENDLESS_S },
            },
            counts: RequestCounts::default(),
            listings: Listings::default(),
            next_parts: NextParts::default(),
            readdir: options.readdir,
            user_overlay: options.user_overlay,
            faults: hooks.faults.clone(),
            is_over: AtomicBool::new(false),
            keeper: handles.keeper.clone(),
        }
    }

    /// Notes that the connection to the kernel has ended. Later errors reach no program, and the image may be closed already.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Reports an error to the sink and the counters, and returns its errno.
    pub(crate) fn fault(&self, error: &Error) -> Errno {
        if self.is_over.load(Relaxed) {
            return errno_of(error);
        }
        self.counts.note_error(error);
        if let Some(sink) = &self.faults {
            sink(error);
        }
        errno_of(error)
    }

    /// Returns the inode of a node number.
    pub(crate) fn nid(&self, node: u64) -> Nid {
        self.nodes.nid(node)
    }

    /// Returns how many entries with attributes a thread that lists a directory may get.
    pub(crate) fn allowance(&self, lister: u32, directory: Nid) -> Allowance {
        match self.readdir {
            // With a timeout of zero, the kernel would request the attributes again.
            Readdir::Adaptive if self.attributes.keep_s == 0 => Allowance::NONE,
            Readdir::Adaptive => self.listings.begin(lister, directory),
            _ => Allowance::ENDLESS,
        }
    }

    /// Lists a part of a directory with attributes as far as `allowed`.
    pub(crate) fn list(
        &self,
        file_system: &dyn FileSystem,
        part: ListingPart,
        allowed: Allowance,
    ) -> Result<Listed, Error> {
        let entry = |attr: &Attr| self.entry(attr);
        directory::names_and_attributes(file_system, part.directory, part.offset, part.len_max, entry, allowed)
    }

    /// Lists a part of a directory for a later request. Does nothing if the listing would have to wait, unless the workers are
    /// inline.
    pub(crate) fn list_in_advance(self: Arc<Self>, reader: &Reader, part: ListingPart, allowed: Allowance) {
        let listing = Arc::clone(&self);
        let list = move |file_system: &dyn FileSystem| {
            let list = || listing.list(file_system, part, allowed).ok();
            Ok(catch_unwind(AssertUnwindSafe(list)).unwrap_or_default())
        };
        reader.metadata_then(list, move |listed| {
            if let Ok(Some(listed)) = listed {
                self.next_parts.keep(part, allowed, listed);
            }
        });
    }

    /// Returns the entry for a name whose inode has these attributes.
    pub(crate) fn entry(&self, attr: &Attr) -> EntryOut {
        self.attributes.entry(attr, self.nodes.node(attr.nid))
    }

    pub(crate) fn attr(&self, file_system: &dyn FileSystem, node: u64) -> Result<AttrOut, Refusal> {
        Ok(self.attributes.reply(&file_system.attr(self.nid(node))?))
    }

    pub(crate) fn find(&self, file_system: &dyn FileSystem, parent: u64, name: &[u8]) -> Result<EntryOut, Refusal> {
        let parent = self.nid(parent);
        // The kernel looks up "." to re-create a node of which it remembers only the number.
        let found = if name == b"." { Some(parent) } else { file_system.lookup(parent, name)? };
        let Some(nid) = found else {
            return if name.len() > self.name_bytes_max {
                Err(Errno::NAMETOOLONG.into())
            } else {
                Ok(self.attributes.nothing())
            };
        };
        if nid == file_system.root() && name != b"." && name != b".." {
            return Err(Errno::LOOP.into());
        }
        Ok(self.entry(&file_system.attr(nid)?))
    }

    /// Notes the reply to a lookup of a thread.
    pub(crate) fn note_lookup(&self, caller: u32, parent: u64, entry: &EntryOut) {
        if self.readdir == Readdir::Adaptive && entry.nodeid != 0 {
            self.listings.looked_up(caller, self.nid(parent), kind(FileType::Directory) == entry.attr.mode >> 12);
        }
    }

    /// The access that corresponds to the reply to a lookup.
    pub(crate) fn access<'name>(&self, parent: u64, name: &'name [u8], entry: &EntryOut) -> ImageAccess<'name> {
        let parent = self.nid(parent);
        match entry.nodeid {
            0 => ImageAccess::Missing { parent, name },
            node => {
                let is_directory = kind(FileType::Directory) == entry.attr.mode >> 12;
                ImageAccess::Found { parent, name, nid: self.nid(node), is_directory }
            }
        }
    }

    pub(crate) fn xattr(
        &self,
        file_system: &dyn FileSystem,
        node: u64,
        name: &[u8],
        size_max: u32,
    ) -> Result<Sized, Refusal> {
        check_xattr_name(file_system.capabilities(), name)?;
        let stored = name.strip_prefix(USER_OVERLAY).filter(|_| self.user_overlay);
        let stored = stored.map(|end| [OVERLAY, end].concat());
        let value = file_system.xattr(self.nid(node), stored.as_deref().unwrap_or(name))?;
        Ok(sized(value.ok_or(Errno::NODATA)?, size_max)?)
    }

    /// Returns the list in the form of `listxattr`. `caller` is the requesting thread.
    pub(crate) fn xattr_names(
        &self,
        file_system: &dyn FileSystem,
        node: u64,
        caller: u32,
        size_max: u32,
    ) -> Result<Sized, Refusal> {
        let mut names = file_system.xattr_names(self.nid(node))?;
        if self.user_overlay {
            names.retain(|name| !name.starts_with(USER_OVERLAY));
            for name in &mut names {
                if let Some(end) = name.strip_prefix(OVERLAY) {
                    *name = [USER_OVERLAY, end].concat();
                }
            }
        }
        let may_see_all = || match &self.keeper {
            Some(keeper) => keeper.is_administrator(caller),
            None => is_administrator(caller),
        };
        if names.iter().any(|name| name.starts_with(TRUSTED)) && !may_see_all() {
            names.retain(|name| !name.starts_with(TRUSTED));
        }
        let mut list = Vec::new();
        for name in &names {
            list.extend_from_slice(name);
            list.push(0);
        }
        Ok(sized(list, size_max)?)
    }

    pub(crate) fn seek(
        &self,
        file_system: &dyn FileSystem,
        node: u64,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Refusal> {
        let target = match whence {
            SEEK_DATA => SeekTarget::Data,
            SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(file_system.seek(self.nid(node), offset, target)?.ok_or(Errno::NXIO)?)
    }
}

/// Rejects names outside the namespaces of the format, like the kernel's mounts. The kernel has already rejected names
/// that are too long.
fn check_xattr_name(capabilities: Capabilities, name: &[u8]) -> Result<(), Errno> {
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        Some(b"") => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None if ACCESS_CONTROL_LISTS.contains(&name) && capabilities.has_acls => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}

fn sized(bytes: Vec<u8>, size_max: u32) -> Result<Sized, Errno> {
    let size = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
    match size_max {
        0 => Ok(Sized::Size(size)),
        size_max if size > size_max => Err(Errno::RANGE),
        _ => Ok(Sized::Bytes(bytes)),
    }
}
