//! What the requests that read metadata find.

use std::{sync::Arc, time::Duration};

use floe_image::{Attr, Error, FileSystem, Nid, SeekTarget};
use fuser::{Errno, FileAttr, INodeNo};

use crate::{
    Access, FaultSink, Keeper, MountOptions, RequestCounts, caller::is_administrator,
    inodes::attributes::AttributeView, inodes::errno::errno_of, inodes::node_numbers::NodeNumbers,
};

/// How long the kernel may keep what it was told: the image never changes.
const ENDLESS: Duration = Duration::from_secs(u32::MAX as u64);

/// The longest name that `statfs` tells of, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// The namespaces of extended attributes.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", TRUSTED];

/// The only attributes outside of them, which SquashFS does not have.
const ACCESS_CONTROL_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// What only an administrator may see in a list of extended attributes.
const TRUSTED: &[u8] = b"trusted.";

/// A mounted image, apart from its file system, which each request is given.
///
/// Each request may run twice: a first time where it may not wait for the source, and then where it may. So what it
/// changes here comes last.
pub(crate) struct Served {
    pub(crate) nodes: NodeNumbers,
    pub(crate) attributes: AttributeView,
    pub(crate) counts: RequestCounts,
    /// How long the kernel may keep names and attributes.
    pub(crate) keep: Duration,
    faults: Option<FaultSink>,
    keeper: Option<Arc<Keeper>>,
}

/// Why a request is refused.
pub(crate) enum Refusal {
    /// The request does not fit what is there.
    Request(Errno),
    /// The image or its source is at fault.
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

/// What a lookup found.
pub(crate) enum Found {
    /// An inode, and how long its attributes may be kept.
    Inode(FileAttr, Duration),
    /// Nothing, which may be kept too.
    Nothing,
}

/// The size of an extended attribute or of their list, or the bytes themselves.
pub(crate) enum Sized {
    Size(u32),
    Bytes(Vec<u8>),
}

impl Served {
    /// A file system whose root has these attributes.
    pub(crate) fn new(file_system: Arc<dyn FileSystem>, root: &Attr, options: &MountOptions) -> Self {
        let block_size = file_system.info().block_size.clamp(512, 4096);
        Self {
            nodes: NodeNumbers::new(file_system, root.inode_number),
            attributes: AttributeView { block_size, uid: options.uid, gid: options.gid },
            counts: RequestCounts::default(),
            keep: if options.access() == Access::OwnerAndRoot { Duration::ZERO } else { ENDLESS },
            faults: options.faults.clone(),
            keeper: options.keeper.clone(),
        }
    }

    /// Tells of an error and gives its errno.
    pub(crate) fn fault(&self, error: &Error) -> Errno {
        self.counts.note_error(error);
        if let Some(sink) = &self.faults {
            sink(error);
        }
        errno_of(error)
    }

    /// The inode that a node number means.
    pub(crate) fn nid(&self, node: INodeNo) -> Result<Nid, Errno> {
        self.nodes.nid(node.0).ok_or(Errno::ESTALE)
    }

    pub(crate) fn attr(&self, file_system: &dyn FileSystem, node: INodeNo) -> Result<FileAttr, Refusal> {
        let attr = file_system.attr(self.nid(node)?)?;
        Ok(self.attributes.file_attr(&attr, attr.inode_number))
    }

    pub(crate) fn find(&self, file_system: &dyn FileSystem, parent: INodeNo, name: &[u8]) -> Result<Found, Refusal> {
        let parent = self.nid(parent)?;
        // The kernel asks for the node itself when it has forgotten all but its number.
        let found = if name == b"." { Some(parent) } else { file_system.lookup(parent, name)? };
        let Some(nid) = found else {
            return if name.len() > NAME_BYTES_MAX { Err(Errno::ENAMETOOLONG.into()) } else { Ok(Found::Nothing) };
        };
        if nid == file_system.root() && name != b"." && name != b".." {
            return Err(Errno::ELOOP.into());
        }
        let attr = file_system.attr(nid)?;
        let node = self.nodes.learn(&attr)?;
        let ttl = if NodeNumbers::is_alias(node) { Duration::ZERO } else { self.keep };
        Ok(Found::Inode(self.attributes.file_attr(&attr, node), ttl))
    }

    pub(crate) fn xattr(
        &self,
        file_system: &dyn FileSystem,
        node: INodeNo,
        name: &[u8],
        size_max: u32,
    ) -> Result<Sized, Refusal> {
        check_xattr_name(file_system.info().format, name)?;
        let value = file_system.xattr(self.nid(node)?, name)?;
        Ok(sized(value.ok_or(Errno::ENODATA)?, size_max)?)
    }

    /// The list as `listxattr` gives it; `caller` is the thread that asks.
    pub(crate) fn xattr_names(
        &self,
        file_system: &dyn FileSystem,
        node: INodeNo,
        caller: u32,
        size_max: u32,
    ) -> Result<Sized, Refusal> {
        let mut names = file_system.xattr_names(self.nid(node)?)?;
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
        node: INodeNo,
        offset: i64,
        whence: i32,
    ) -> Result<i64, Refusal> {
        let target = match whence {
            libc::SEEK_DATA => SeekTarget::Data,
            libc::SEEK_HOLE => SeekTarget::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = file_system.seek(self.nid(node)?, offset, target)?.ok_or(Errno::ENXIO)?;
        Ok(i64::try_from(found).map_err(|_| Errno::EOVERFLOW)?)
    }
}

/// Refuses names that are in no namespace of the format, as the kernel's mounts do. Names that are too long never get here.
fn check_xattr_name(format: &str, name: &[u8]) -> Result<(), Errno> {
    match NAMESPACES.iter().find_map(|namespace| name.strip_prefix(*namespace)) {
        Some(b"") => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        None if ACCESS_CONTROL_LISTS.contains(&name) && format != "squashfs" => Ok(()),
        None => Err(Errno::EOPNOTSUPP),
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
